"""The log of a process: one JSON object a line on standard error, whatever is logged."""

import json
import logging
import traceback
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

# What every record has; color_message is uvicorn's second form of its message.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON; what was given as `extra` becomes fields of it.

    Args:
        context: asked with each record for the fields of what its task is about.
        hidden: names of extras that are left out.
    """

    def __init__(
        self,
        *,
        context: Callable[[], Mapping[str, Any]] = dict,
        hidden: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._context = context
        self._hidden = _PLAIN.union(hidden)

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._context(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in self._hidden})
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        try:
            return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:
            # Lone surrogates, say of a file's name, or numbers of more than 64 bits.
            return json.dumps(line, default=str, skipkeys=True)


def configure(
    level: str,
    *,
    chatty: Collection[str] = (),
    context: Callable[[], Mapping[str, Any]] = dict,
    hidden: Collection[str] = (),
) -> None:
    """Send every log of the process, its libraries' too, to standard error as JSON.

    Args:
        level: least severe records that are written.
        chatty: loggers of which warnings at least are written, and no more.
        context: as of `JsonFormatter`.
        hidden: as of `JsonFormatter`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(context=context, hidden=hidden))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Python's warnings would be lines that are no JSON.
    logging.captureWarnings(True)
    for name in chatty:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))

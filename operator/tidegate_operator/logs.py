"""The log: one JSON object a line on standard error, as the gateway writes its own."""

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}
# What kopf adds for its own formatters: whole objects.
_FRAMEWORKS = frozenset({"k8s_ref", "k8s_skip", "settings"})

_CHATTY = ("httpx2", "aiohttp.access", "kopf")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON; what was given as `extra` becomes fields of it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        hidden = _PLAIN | _FRAMEWORKS
        line.update({name: value for name, value in vars(record).items() if name not in hidden})
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str, separators=(",", ":"))


def configure(level: str) -> None:
    """Send every log of the process, kopf's too, to standard error as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Python's warnings would be lines that are no JSON.
    logging.captureWarnings(True)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.root.level))

"""The log: one JSON object a line on standard error, with the id of the request it is about."""

import contextvars
import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any

import orjson

REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
"""The id of the request that this task answers; "" outside of one."""

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message", "taskName"}


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
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        line.update({k: v for k, v in vars(record).items() if k not in _PLAIN})
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        try:
            return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:
            # Lone surrogates, say of a file's name, or numbers of more than 64 bits.
            return json.dumps(line, default=str, skipkeys=True)


def configure(level: str) -> None:
    """Send every log of the process, uvicorn's and grpc's too, to standard error as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Python's warnings would be lines that are no JSON; Pillow warns of odd files.
    logging.captureWarnings(True)
    # Ours says more of each request, and these would say it again.
    logging.getLogger("uvicorn.access").disabled = True
    for chatty in ("uvicorn.error", "httpx2"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.root.level))

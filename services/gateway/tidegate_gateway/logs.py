"""The gateway's log: each line with the id of the request it is about."""

import contextvars
from collections.abc import Mapping

from tidegate_process import logs

REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
"""The id of the request that this task answers; "" outside of one."""

# Ours says more of each request, and these would say it again.
_CHATTY = ("uvicorn.access", "uvicorn.error", "httpx2")


def context() -> Mapping[str, str]:
    """What every line says of the request that this task answers."""
    request_id = REQUEST_ID.get()
    return {"request_id": request_id} if request_id else {}


def configure(level: str) -> None:
    """Send every log of the process, uvicorn's and grpc's too, to standard error as JSON."""
    logs.configure(level, chatty=_CHATTY, context=context)

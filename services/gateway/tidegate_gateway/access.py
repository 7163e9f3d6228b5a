"""One record a request: what it asked, how it ended, how long it took.

Both protocols keep the same record, so that a line in the log and a metric mean the same whichever
way a request came. The adapter begins it, fills in what it learns, and ends it once.
"""

import logging
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tidegate_gateway.errors import RequestError
from tidegate_gateway.logs import REQUEST_ID
from tidegate_gateway.metrics import UNKNOWN_MODEL, Metrics
from tidegate_gateway.settings import AnswerSettings

REQUEST_ID_HEADER = "x-request-id"
GATEWAY_HEADER = "tidegate-gateway"
ENGINES_HEADER = "tidegate-engine"

_log = logging.getLogger("tidegate_gateway.access")

# What is taken over from a client, so that nothing else can be written into our log or headers.
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(slots=True)
class Access:
    """What is known of a request so far.

    Attributes:
        protocol: http or grpc.
        route: the path template or the gRPC method; never what the client wrote.
        model: its name, once an engine has said that it knows it; "" until then.
        version: the one that answered; "" while none has.
        status: the HTTP status or the gRPC code's name.
        gateway: the name of this gateway, if answers tell it.
        engines: the names of the endpoints that it was tried on, in order.
        tells_engines: whether answers tell them.
        error: what went wrong, if anything.
        counts: what was counted of its parts, where it has any, by the name in the log.
    """

    request_id: str
    protocol: str
    route: str = "_unknown"
    model: str = ""
    version: str = ""
    status: str = ""
    gateway: str = ""
    engines: list[str] = field(default_factory=list)
    tells_engines: bool = False
    error: RequestError | None = None
    counts: dict[str, int] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def add_engines(self, names: Iterable[str]) -> None:
        """Note the engines of one of its parts, each of them once."""
        self.engines.extend(name for name in names if name not in self.engines)

    def headers(self) -> list[tuple[str, str]]:
        """What the answer carries besides its content: HTTP headers, or gRPC metadata."""
        told = [(REQUEST_ID_HEADER, self.request_id)]
        if self.gateway:
            told.append((GATEWAY_HEADER, self.gateway))
        if self.tells_engines and self.engines:
            told.append((ENGINES_HEADER, ",".join(self.engines)))
        return told


@contextmanager
def recorded(
    protocol: str, request_id: str | None, metrics: Metrics, answers: AnswerSettings
) -> Iterator[Access]:
    """Keep the record of a request; at the end it becomes a log line and metrics.

    Args:
        request_id: the client's own, which is kept when it is 1 to 128 visible ASCII characters;
            otherwise the request gets a new one.
        answers: what answers tell of the way they took.
    """
    own = request_id if request_id and _REQUEST_ID.fullmatch(request_id) else uuid.uuid4().hex
    access = Access(
        request_id=own,
        protocol=protocol,
        gateway=answers.gateway_name,
        tells_engines=answers.engine_names,
    )
    token = REQUEST_ID.set(own)
    in_flight = metrics.in_flight.labels(protocol)
    in_flight.inc()
    try:
        yield access
    finally:
        in_flight.dec()
        _finish(access, metrics)
        REQUEST_ID.reset(token)


def _finish(access: Access, metrics: Metrics) -> None:
    seconds = time.monotonic() - access.began
    metrics.answered(
        protocol=access.protocol,
        route=access.route,
        model=access.model or UNKNOWN_MODEL,
        status=access.status,
        seconds=seconds,
    )
    fields = {
        "protocol": access.protocol,
        "route": access.route,
        "status": access.status,
        "duration_ms": round(seconds * 1000, 3),
    }
    if access.model:
        fields |= {"model": access.model, "model_version": access.version}
    if access.engines:
        fields["engines"] = access.engines
    if access.error is not None:
        fields |= {"error": access.error.message, "error_type": type(access.error).__name__}
        if access.error.detail:
            fields["detail"] = access.error.detail
    fields |= access.counts
    _log.info("answered" if access.error is None else "refused", extra=fields)

"""How a request can end."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """All but OK are failures."""

    OK = "ok"
    STATUS = "status"  # answered with an error: its HTTP status or gRPC code is the detail
    CONNECTION = "connection"  # no whole answer: the detail says how the connection failed
    TIMEOUT = "timeout"  # no answer within the route's timeout
    WRONG = "wrong"  # answered as if well, but not with what it should be; the detail: in what
    NOT_SENT = "not_sent"  # the generator had too much in flight already


@dataclass(frozen=True)
class Answer:
    """What came of one request.

    Attributes:
        detail: which kind of `outcome`, out of few: answers are counted by it.
        sentence: what happened exactly, for a failure.
        version: the model version that answered; empty when the answer does not tell.
        engines: the engines that were tried for it, the last one answered; empty when the answer
            does not tell.
        gateway: the gateway that answered; empty when the answer does not tell.
    """

    outcome: Outcome
    detail: str = ""
    sentence: str = ""
    version: str = ""
    engines: tuple[str, ...] = ()
    gateway: str = ""

    @property
    def engine(self) -> str:
        """The engine that answered."""
        return self.engines[-1] if self.engines else ""


@dataclass(frozen=True)
class Origin:
    """Who answered, as headers or trailing metadata of the answer tell it."""

    engines: tuple[str, ...] = ()
    gateway: str = ""


ENGINE_HEADER = "tidegate-engine"  # with several attempts, all engines in their order, by commas
GATEWAY_HEADER = "tidegate-gateway"


def origin(engine: str, gateway: str) -> Origin:
    """The origin that the values of the two headers tell; empty strings for absent ones."""
    tried = tuple(name for part in engine.split(",") if (name := part.strip()))
    return Origin(tried, gateway.strip())

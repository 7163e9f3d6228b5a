"""What gateways tell: `GET /routing` of each gateway's pod, read strictly."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate_operator.answers import members, whole
from tidegate_operator.resources import PodSeen
from tidegate_operator.situation import GatewaySeen
from tidegate_process.asking import Asking


@dataclass(frozen=True, slots=True)
class Routing:
    """What a gateway says.

    Attributes:
        revision: of the table that it routes by; 0 without one.
        table: that table, as JSON has it and unread; None where it has none.
        oldest_in_use: by model the lowest revision that a request in flight came in by.
    """

    revision: int
    table: object = None
    oldest_in_use: Mapping[str, int] = field(default_factory=dict)


async def ask(asking: Asking, pod: PodSeen, port: int) -> Routing:
    """What the gateway in a pod says now.

    Raises:
        NoAnswer: nothing that can be used.
    """
    return read(await asking.ask(pod.address, port, "/routing"))


def read(document: Mapping[str, Any]) -> Routing:
    """The routing in a gateway's answer.

    Raises:
        NoAnswer: it is none; the message says where.
    """
    oldest = members(document, "oldestInUse")
    return Routing(
        revision=whole(document, "revision"),
        table=document.get("table"),
        oldest_in_use={model: whole(oldest, model) for model in oldest},
    )


def seen(pod: PodSeen, routing: Routing | None, model: str) -> GatewaySeen:
    """What counts of a gateway for one model; a routing of None is silence."""
    if routing is None:
        return GatewaySeen(pod.name, pod.ready, pod.started, revision=None)
    return GatewaySeen(
        name=pod.name,
        ready=pod.ready,
        started=pod.started,
        revision=routing.revision,
        oldest_in_use=routing.oldest_in_use.get(model),
    )

"""Free ports on 127.0.0.1."""

import contextlib
import random
import socket
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidegate_engine.local.errors import EngineError

HOST = "127.0.0.1"
# Below the kernel's range for outgoing connections (32768 and up): no client takes a chosen port
# between two starts of an engine that keeps it.
CHOICE = range(10_000, 32_768)
TRIES = 100


class Ports(NamedTuple):
    """The ports of one engine. 0: to be chosen."""

    grpc: int
    http: int
    metrics: int


def settle(wanted: Ports) -> Ports:
    """Check the ports given and choose the others. None is held: another may still take one.

    Raises:
        EngineError: a given port is taken, is given twice, or cannot be used.
    """
    given: Mapping[str, int] = {n: p for n, p in wanted._asdict().items() if p}
    taken = sorted(given.values())
    for name, port in given.items():
        if taken.count(port) > 1:
            raise EngineError(f"Port {port} is given for two uses; give each its own.")
        if problem := _problem(port):
            raise EngineError(
                f"The engine's {name} port {port} on {HOST} cannot be used ({problem}): "
                "stop what listens there, or choose another port."
            )
    free = _free(set(taken))
    return Ports(*(port or next(free) for port in wanted))


def _free(excluded: set[int]) -> Iterator[int]:
    for port in random.sample(CHOICE, TRIES):
        if port not in excluded and not _problem(port):
            yield port
    raise EngineError(f"No free port found on {HOST} between {CHOICE.start} and {CHOICE.stop - 1}.")


def _problem(port: int) -> str | None:
    """Why nothing can listen on a port of 127.0.0.1, or None."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        # As servers do: connections of a former listener that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.strerror or str(error)
        except OverflowError:
            return "not between 1 and 65535"
    return None

"""Endpoints from addresses: numeric ones as they are, names by looking them up again and again.

A headless Service has an A or AAAA record for each ready pod, so its name is all engines; a name's
addresses are asked for at an interval, since DNS tells of no change. That a name has no addresses
is an answer. Everything else that goes wrong says nothing about the engines, and the name keeps the
addresses that it had.

The system's resolver blocks and cannot be interrupted, for half a minute and more when name servers
are silent. Each lookup therefore has a thread of its own, that nobody waits for at the end of the
process, and a name whose lookup hangs is not looked up again before that thread is back: there is
never more than one for a name.
"""

import asyncio
import concurrent.futures
import ipaddress
import random
import re
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from tidegate_gateway.discovery import Endpoint, address_of, announced, outage
from tidegate_table.api_server import Outage

FLOOR_S = 0.5
"""Least seconds between two lookups of a name, whatever the interval."""
JITTER = 0.2
"""Share of the interval by which a pause is longer or shorter, at random, so that gateways that
started together do not go on asking together."""

_ENTRY = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\s\[\]:/]+)):(?P<port>[0-9]{1,5})")
_NO_ADDRESSES = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})

Resolve = Callable[[str], Iterable[str]]
"""A blocking lookup: the numeric addresses of a host's name.

Raises:
    socket.gaierror: EAI_NONAME or EAI_NODATA when the name has none.
    Exception: any other means that it could not be found out.
"""


class InvalidAddresses(Exception):
    """The addresses of the engines cannot be used; the message says which, and what is expected."""


def system_resolver(host: str) -> list[str]:
    """All A and AAAA records of `host`, or what the machine's own files say of it."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


def parse(addresses: str) -> list[tuple[str, int]]:
    """The hosts and ports of "host:port" entries with commas between; [host]:port for IPv6.

    Raises:
        InvalidAddresses: an entry is something else.
    """
    return [_parse_entry(entry.strip()) for entry in addresses.split(",")]


def _parse_entry(entry: str) -> tuple[str, int]:
    match = _ENTRY.fullmatch(entry)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise InvalidAddresses(
            "engine.address: expected host:port or [host]:port with a port from 1 to 65535, "
            f"got {entry!r}"
        )
    host = match["host"] or match["v6"]
    try:
        # Labels of 1 to 63 letters; the resolver would say the same at each lookup.
        host.encode("idna")
        if match["v6"]:
            ipaddress.IPv6Address(host)
    except ValueError:
        raise InvalidAddresses(
            "engine.address: expected a host's name, an IPv4 address or an IPv6 address in "
            f"brackets, got {entry!r}"
        ) from None
    return host, int(match["port"])


@dataclass(slots=True)
class _Name:
    """A name, and what is known of it: None before its first answer."""

    host: str
    outage: Outage
    hosts: tuple[str, ...] | None = None
    lookup: "asyncio.Future[tuple[str, ...]] | None" = None


@dataclass(slots=True)
class _Addresses:
    """What is known of all entries."""

    ports: list[tuple[str, int]]
    names: dict[str, _Name]
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def endpoints(self) -> tuple[Endpoint, ...] | None:
        """Their endpoints, ordered and each once; None while that could be wrongly none."""
        found = {
            address_of(host, port) for entry, port in self.ports for host in self._hosts(entry)
        }
        if not found and any(name.hosts is None for name in self.names.values()):
            return None
        return tuple(Endpoint(address=each, name=each) for each in sorted(found))

    def _hosts(self, entry: str) -> tuple[str, ...]:
        name = self.names.get(entry)
        return (entry,) if name is None else name.hosts or ()


class AddressSource:
    """The endpoints behind addresses.

    Args:
        addresses: "host:port" entries with commas between; [host]:port for IPv6. A name stands for
            all its addresses.
        interval_s: seconds between two lookups of a name, give or take `JITTER`, at least
            `FLOOR_S`.
        lookup_timeout_s: seconds after which an unanswered lookup counts as an outage.
        resolve: how a name is looked up.

    Raises:
        InvalidAddresses: `addresses` cannot be used.
    """

    def __init__(
        self,
        addresses: str,
        *,
        interval_s: float,
        lookup_timeout_s: float = 5.0,
        resolve: Resolve = system_resolver,
    ) -> None:
        self._ports = parse(addresses)
        self._interval_s = interval_s
        self._lookup_timeout_s = lookup_timeout_s
        self._resolve = resolve

    def snapshots(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See `discovery.Source`. Where no entry is a name, it tells the one set and waits."""
        hosts = sorted({host for host, _ in self._ports if not _is_numeric(host)})
        names = {host: _Name(host, outage(source="dns", host=host)) for host in hosts}
        known = _Addresses(self._ports, names)
        work = [partial(self._follow, name, known.changed) for name in names.values()]
        return announced(work, known.endpoints, known.changed)

    async def _follow(self, name: _Name, changed: asyncio.Event) -> None:
        try:
            while True:
                await self._look_up(name)
                changed.set()
                await asyncio.sleep(pause_s(self._interval_s))
        finally:
            if name.lookup is not None:
                name.lookup.cancel()

    async def _look_up(self, name: _Name) -> None:
        if name.lookup is None:
            name.lookup = _in_thread(self._resolve, name.host)
        await asyncio.wait({name.lookup}, timeout=self._lookup_timeout_s)
        if not name.lookup.done():
            name.outage.begins(f"no answer within {self._lookup_timeout_s:g} s")
            return
        lookup, name.lookup = name.lookup, None
        try:
            name.hosts = lookup.result()
        except Exception as error:  # noqa: BLE001 - whatever it is, it says nothing about engines
            if not isinstance(error, socket.gaierror) or error.errno not in _NO_ADDRESSES:
                name.outage.begins(f"{type(error).__name__}: {error}")
                return
            name.hosts = ()
        name.outage.ends()


def _in_thread(resolve: Resolve, host: str) -> "asyncio.Future[tuple[str, ...]]":
    """Look `host` up in a thread that does not keep the process from ending."""
    answer: concurrent.futures.Future[tuple[str, ...]] = concurrent.futures.Future()
    # From here on it cannot be cancelled, only be left alone.
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(tuple(resolve(host)))
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is read
            answer.set_exception(error)

    try:
        threading.Thread(target=run, name=f"lookup of {host}", daemon=True).start()
    except RuntimeError as error:
        # The container has as many threads as it may: it says nothing about engines either.
        answer.set_exception(error)
    return asyncio.wrap_future(answer)


def pause_s(interval_s: float) -> float:
    """Seconds until the next lookup of a name."""
    spread = random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - nothing secret
    return max(FLOOR_S, interval_s * spread)


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

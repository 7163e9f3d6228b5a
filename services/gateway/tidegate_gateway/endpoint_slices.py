"""Endpoints from Kubernetes: the EndpointSlices of one Service, listed once and then watched.

The API server tells of each change at once, and of what DNS cannot: pods that are leaving or not
ready, their names and zones. All slices are listed, and what happens after that version is watched.
A watch ends for many reasons, most of them harmless, and is resumed from the last version that was
seen, also after the server has refused one, since a list costs it more than a watch. Only where it
has forgotten that version (410), cannot use it (400), tells of an error within the watch, or says
what cannot be read, all is listed anew; until that has come in, what was known stands.

A watch can die without a word, when a node or a proxy on the way vanishes. So the server is asked
to end each one after a while, and one that is silent for longer than that is given up.

The gateway's service account needs a Role in the namespace of the Service:

    apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]
"""

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson

from tidegate_gateway.discovery import Endpoint, Outage, address_of, announced

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the service account of a pod."""

_log = logging.getLogger(__name__)

JITTER = 0.2
"""Share of `Pace.watch_s` by which a watch is shorter or longer, at random, so that the watches of
gateways that started together do not go on ending together."""

Slice = Mapping[str, Any]
"""An EndpointSlice of discovery.k8s.io/v1, as JSON has it."""


# From slices to endpoints


@dataclass(frozen=True, slots=True)
class Reading:
    """What one slice says.

    Attributes:
        endpoints: those with a numeric address, in the order of the slice.
        ports: the names of its ports; none where it has no endpoints.
        refused: the addresses that are not numeric ones, and are left out.
    """

    endpoints: tuple[Endpoint, ...]
    ports: frozenset[str]
    refused: tuple[str, ...]


def read(each: Slice, port_name: str) -> Reading:
    """What a slice says of the engines.

    Args:
        port_name: the name of the engines' gRPC port; a slice without it has no endpoints for us.

    Raises:
        LookupError, TypeError, AttributeError: it is no EndpointSlice.
    """
    entries = each.get("endpoints") or ()
    ports = {_text(port.get("name")): port.get("port") for port in each.get("ports") or ()}
    port = ports.get(port_name) or 0
    if not isinstance(port, int):
        raise TypeError(f"expected the number of a port, got {port!r}")
    endpoints, refused = [], []
    if port and each["addressType"] in {"IPv4", "IPv6"}:
        for entry in entries:
            # The API gives no meaning to further addresses of an endpoint.
            host = _text(entry["addresses"][0])
            try:
                endpoints.append(_endpoint(entry, address_of(host, port)))
            except ValueError:
                refused.append(host)
    return Reading(tuple(endpoints), frozenset(ports if entries else ()), tuple(refused))


def _endpoint(entry: Mapping[str, Any], address: str) -> Endpoint:
    conditions = entry.get("conditions") or {}
    return Endpoint(
        address=address,
        name=_text((entry.get("targetRef") or {}).get("name")) or address,
        zone=_text(entry.get("zone")),
        # Unknown means true. Where the Service has publishNotReadyAddresses, `ready` always is,
        # and `serving` says how the pod really is.
        ready=conditions.get("ready") is not False and conditions.get("serving") is not False,
        terminating=conditions.get("terminating") is True,
    )


def _text(value: object) -> str:
    """A value that is a text or is not there."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value


def merged(readings: Iterable[Reading]) -> tuple[Endpoint, ...]:
    """The endpoints in all slices of a Service, ordered by address and each once.

    A pod that moves from one slice to another stands in both for a while, and one of the two may be
    old; the better state is taken: https://kubernetes.io/docs/concepts/services-networking/
    endpoint-slices/#duplicate-endpoints. A Service with both IP families names each pod twice, and
    its engines would then count twice: leave it at one.
    """
    best: dict[str, Endpoint] = {}
    for reading in readings:
        for found in reading.endpoints:
            known = best.get(found.address, found)
            best[found.address] = max(known, found, key=_quality)
    return tuple(best[address] for address in sorted(best))


def _quality(endpoint: Endpoint) -> tuple[bool, bool, bool, str, str]:
    # The last two only make the choice the same in whatever order the slices come.
    staying = not endpoint.terminating
    return endpoint.ready and staying, endpoint.ready, staying, endpoint.zone, endpoint.name


class Gone(Exception):
    """The API server has forgotten the version from which a watch was to begin."""


class ApiFailed(Exception):
    """The API server refused, or answered something else than was asked; the message says what."""


class Refused(ApiFailed):
    """The API server answered with a status that says nothing of the version that we know."""


class Slices:
    """The slices of a Service, by what has been listed and watched of them so far.

    Args:
        port_name: the name of the engines' gRPC port.

    Attributes:
        version: the resource version up to which they are known; "" when they must be listed.
    """

    def __init__(self, port_name: str) -> None:
        self.version = ""
        self._port_name = port_name
        self._readings: dict[str, Reading] = {}

    def listed(self, document: bytes) -> None:
        """Take in a whole list, which replaces all.

        Raises:
            ApiFailed: it is no list of slices; what was known stands.
        """
        found = _parsed(document)
        if found.get("kind") != "EndpointSliceList":
            raise ApiFailed(f"expected an EndpointSliceList, got {found.get('kind')!r}")
        with _well_formed("an EndpointSliceList"):
            version = _version(found)
            self._readings = {
                _name(each): read(each, self._port_name) for each in found.get("items") or ()
            }
        self.version = version

    def watched(self, line: bytes) -> None:
        """Take in one event of a watch.

        Raises:
            Gone: it says so.
            ApiFailed: it tells of another error, or is no event; what was known stands.
        """
        event = _parsed(line)
        with _well_formed("an event of a watch"):
            self._happened(event.get("type"), event.get("object") or {})

    def _happened(self, kind: object, seen: Slice) -> None:
        if kind == "ERROR":
            raise _failure(seen.get("code"), seen)
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise ApiFailed(f"expected an event of a watch, got one of type {kind!r}")
        version = _version(seen)
        if kind == "DELETED":
            self._readings.pop(_name(seen), None)
        elif kind != "BOOKMARK":
            self._readings[_name(seen)] = read(seen, self._port_name)
        self.version = version

    def endpoints(self) -> tuple[Endpoint, ...]:
        """See `merged`."""
        return merged(self._readings.values())

    def doubts(self) -> dict[str, dict[str, object]]:
        """What is most likely a mistake in how the Service was named or set up.

        Returns:
            Sentences, each with the values that it is about; of many addresses the first five.
        """
        found: dict[str, dict[str, object]] = {}
        readings = self._readings.values()
        if not readings:
            found["the Service has no EndpointSlices"] = {}
        ports = {name for reading in readings for name in reading.ports}
        if ports and self._port_name not in ports:
            found["no endpoint has a port of the name that was asked for"] = {
                "port_name": self._port_name,
                "ports": sorted(ports),
            }
        refused = sorted({host for reading in readings for host in reading.refused})
        if refused:
            found["endpoints are left out: their addresses are not numeric"] = {
                "addresses": refused[:5]
            }
        return found


def _name(each: Slice) -> str:
    return _text(each["metadata"]["name"])


def _version(document: Mapping[str, Any]) -> str:
    return _text(document["metadata"]["resourceVersion"])


@contextmanager
def _well_formed(what: str) -> Iterator[None]:
    """What is not in the form that the API promises is a failure of the server, and not of ours."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ApiFailed(f"expected {what}, got one that cannot be read: {reason}") from error


def _parsed(document: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise ApiFailed(f"expected JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiFailed(f"expected a JSON object, got {type(found).__name__}")
    return found


def _failure(code: object, status: Mapping[str, Any]) -> Gone | ApiFailed:
    message = _message(code, status)
    return Gone(message) if code == 410 else ApiFailed(message)


def _message(code: object, status: Mapping[str, Any]) -> str:
    return f"{code}: {status.get('message') or 'no message'}"


# The API server


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API server is, and who we are to it.

    Attributes:
        url: such as https://10.96.0.1:443.
        namespace: our own.
        token: the file with our token; read for each request, since Kubernetes replaces it long
            before it expires. None: we say nothing of us.
        authorities: the file with the certificates that sign the server's; None: the machine's.
    """

    url: str
    namespace: str
    token: Path | None = None
    authorities: Path | None = None


class NotInCluster(Exception):
    """This process is in no pod that may speak to the API server; the message says what lacks."""


def in_cluster(
    environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> ApiServer:
    """The API server of the cluster that this process runs in, and the pod's service account.

    Args:
        environment: of this process; Kubernetes puts the server's host and port into it.
        service_account: the folder with its token, namespace and authorities.

    Raises:
        NotInCluster: one of these is not there.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise NotInCluster(
            "expected KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which a pod has, "
            f"got {host!r} and {port!r}"
        )
    files = [service_account / name for name in ("token", "ca.crt", "namespace")]
    for file in files:
        if not file.is_file():
            raise NotInCluster(f"expected the service account's {file.name} in {file.parent}")
    token, authorities, namespace = files
    return ApiServer(
        url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace.read_text(encoding="utf-8").strip(),
        token=token,
        authorities=authorities,
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """How patient and how eager the source is; all in seconds.

    Attributes:
        connect_s: to connect.
        list_s: for a whole list.
        watch_s: after which the server ends a watch, give or take `JITTER`.
        silence_s: without a byte, after which a watch counts as dead; more than the longest watch,
            since that of a quiet Service is silent for as long.
        settled_s: that a watch must have lasted to end an outage, and for the next to follow
            without a pause.
        pause_first_s: the first pause after a failure, doubled each time; each is shortened at
            random by up to a half, so that gateways do not come all at once.
        pause_most_s: the longest.
    """

    connect_s: float = 5.0
    list_s: float = 10.0
    watch_s: float = 60.0
    silence_s: float = 85.0
    settled_s: float = 1.0
    pause_first_s: float = 0.2
    pause_most_s: float = 5.0

    def watch_whole_s(self) -> int:
        """How long the next watch is to last; to the API server, 0 means as long as it likes."""
        spread = random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - nothing secret
        return max(1, round(self.watch_s * spread))

    def pause_s(self, failures: int) -> float:
        """The longest pause after so many failures in a row, 1 or more."""
        # An exponent of a thousand would be no float any more.
        return min(self.pause_most_s, self.pause_first_s * 2.0 ** min(failures - 1, 30))


class EndpointSliceSource:
    """The endpoints of a Service.

    Args:
        service: its name.
        namespace: its namespace; "": our own.
        port_name: the name that the engines' gRPC port has in the Service.
        api: the API server; `in_cluster` finds it.
    """

    def __init__(
        self,
        service: str,
        namespace: str = "",
        port_name: str = "grpc",
        *,
        api: ApiServer,
        pace: Pace = Pace(),
    ) -> None:
        self._service = service
        self._namespace = namespace or api.namespace
        self._port_name = port_name
        self._api = api
        self._pace = pace

    def snapshots(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See `discovery.Source`."""
        follower = _Follower(self._api, self._service, self._namespace, self._port_name, self._pace)
        return announced([follower.follow], follower.endpoints, follower.changed)


class _Follower:
    """Keeps the slices of a Service as the API server has them.

    Attributes:
        changed: set after each change.
    """

    def __init__(
        self, api: ApiServer, service: str, namespace: str, port_name: str, pace: Pace
    ) -> None:
        self.changed = asyncio.Event()
        self._api = api
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = {"labelSelector": f"kubernetes.io/service-name={service}"}
        self._pace = pace
        self._about = {"source": "kubernetes", "service": service, "namespace": namespace}
        self._outage = Outage(**self._about)
        self._slices = Slices(port_name)
        self._doubts: dict[str, dict[str, object]] = {}
        self._listed = False
        self._watching_since: float | None = None

    def endpoints(self) -> tuple[Endpoint, ...] | None:
        """Those of the slices as they are now; None before the first list."""
        return self._slices.endpoints() if self._listed else None

    async def follow(self) -> None:
        """List and watch for ever."""
        failures = 0
        while True:
            well = await self._follow_once()
            settled = self._watched_s() >= self._pace.settled_s
            if settled:
                failures = 0
            if not well or not settled:
                failures += 1
                spread = random.uniform(0.5, 1)  # noqa: S311 - nothing secret
                await asyncio.sleep(self._pace.pause_s(failures) * spread)

    async def _follow_once(self) -> bool:
        """List if need be, and watch until the server ends it; answers False if it did not."""
        self._watching_since = None
        try:
            # A client for each time: none of its connections is an old one, and it has read the
            # authorities anew.
            async with self._client() as client:
                if not self._slices.version:
                    await self._list(client)
                await self._watch(client)
        except Gone as gone:
            _log.info("endpoints are listed anew", extra={**self._about, "reason": str(gone)})
            self._slices.version = ""
        except Refused as error:
            self._outage.begins(str(error))
        except ApiFailed as error:
            self._outage.begins(str(error))
            self._slices.version = ""
        except (httpx2.HTTPError, OSError) as error:
            self._outage.begins(f"{type(error).__name__}: {error}")
        else:
            return True
        return False

    def _watched_s(self) -> float:
        """Seconds that the last watch lasted; 0 where none was opened."""
        begun = self._watching_since
        return 0.0 if begun is None else asyncio.get_running_loop().time() - begun

    def _client(self) -> httpx2.AsyncClient:
        api = self._api
        headers = {"Accept": "application/json", "User-Agent": "tidegate-gateway"}
        if api.token is not None:
            token = api.token.read_text(encoding="ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        return httpx2.AsyncClient(
            base_url=api.url,
            headers=headers,
            verify=ssl.create_default_context(cafile=api.authorities),
            timeout=self._pace.connect_s,
            # A proxy of the environment is for the internet, not for the server next door.
            trust_env=False,
        )

    async def _list(self, client: httpx2.AsyncClient) -> None:
        # Without a resourceVersion the answer is the newest there is, whichever server gives it.
        async with asyncio.timeout(self._pace.list_s):
            response = await client.get(
                self._path, params=self._selector, timeout=self._pace.list_s
            )
        if response.status_code != 200:
            raise _refusal(response.status_code, response.content)
        self._slices.listed(response.content)
        self._listed = True
        self._take_note()

    async def _watch(self, client: httpx2.AsyncClient) -> None:
        params = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._slices.version,
            "timeoutSeconds": str(self._pace.watch_whole_s()),
        }
        timeout = httpx2.Timeout(self._pace.connect_s, read=self._pace.silence_s)
        async with client.stream("GET", self._path, params=params, timeout=timeout) as response:
            if response.status_code != 200:
                raise _refusal(response.status_code, await response.aread())
            loop = asyncio.get_running_loop()
            self._watching_since = loop.time()
            # A server that breaks each watch off at once is away as before.
            settled = loop.call_later(self._pace.settled_s, self._outage.ends)
            try:
                await self._read_events(response)
            finally:
                settled.cancel()
        self._outage.ends()

    async def _read_events(self, response: httpx2.Response) -> None:
        begun = b""
        async for chunk in response.aiter_bytes():
            # What stands after the last end of a line is an event that has not all come yet;
            # when the watch ends there, it comes again after this version.
            *lines, begun = (begun + chunk).split(b"\n")
            for line in filter(None, lines):
                self._slices.watched(line)
                self._take_note()

    def _take_note(self) -> None:
        """Tell of what came in, and warn of what is doubtful in it and was not before."""
        self.changed.set()
        doubts = self._slices.doubts()
        for sentence, values in doubts.items():
            if self._doubts.get(sentence) != values:
                _log.warning(sentence, extra={**self._about, **values})
        self._doubts = doubts


def _refusal(status: int, body: bytes) -> Gone | ApiFailed:
    try:
        said = _parsed(body)
    except ApiFailed:
        # A proxy on the way, or a server that is starting.
        said = {}
    # 400: it cannot use the version, or what else was asked for.
    return _failure(status, said) if status in {400, 410} else Refused(_message(status, said))

"""Endpoints from Kubernetes: the EndpointSlices of one Service, listed once and then watched.

The API server tells of each change at once, and of what DNS cannot: pods that are leaving or not
ready, their names and zones. All slices are listed, and what happens after that version is watched.
A watch ends for many reasons, most of them harmless, and is resumed from the last version that was
seen. Where the server has forgotten that version (410), or answers with any other error, all is
listed anew; until that has come in, what was known stands.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson

from tidegate_gateway.discovery import Endpoint, Outage, address_of, announced

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the service account of a pod."""

_log = logging.getLogger(__name__)

Slice = Mapping[str, Any]
"""An EndpointSlice of discovery.k8s.io/v1, as JSON has it."""


# From slices to endpoints


def endpoints_of(slices: Iterable[Slice], port_name: str) -> tuple[Endpoint, ...]:
    """The endpoints in all slices of a Service, ordered by address and each once.

    A pod that moves from one slice to another stands in both for a while, and one of the two may be
    old; the better state is taken: https://kubernetes.io/docs/concepts/services-networking/
    endpoint-slices/#duplicate-endpoints. A Service with both IP families names each pod twice, and
    its engines would then count twice: leave it at one.

    Args:
        port_name: the name of the engines' gRPC port; slices without it say nothing.
    """
    best: dict[str, Endpoint] = {}
    for each in slices:
        for found in _in_slice(each, port_name):
            known = best.get(found.address, found)
            best[found.address] = max(known, found, key=_quality)
    return tuple(best[address] for address in sorted(best))


def _quality(endpoint: Endpoint) -> tuple[bool, bool, bool, str, str]:
    # The last two only make the choice the same in whatever order the slices come.
    staying = not endpoint.terminating
    return endpoint.ready and staying, endpoint.ready, staying, endpoint.zone, endpoint.name


def _in_slice(each: Slice, port_name: str) -> Iterator[Endpoint]:
    port = next((p.get("port") for p in each.get("ports") or () if p.get("name") == port_name), 0)
    if not port or each["addressType"] not in {"IPv4", "IPv6"}:
        return
    for endpoint in each.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        # The API gives no meaning to further addresses of an endpoint.
        address = address_of(endpoint["addresses"][0], port)
        yield Endpoint(
            address=address,
            name=(endpoint.get("targetRef") or {}).get("name") or address,
            zone=endpoint.get("zone") or "",
            # Unknown means true. Where the Service has publishNotReadyAddresses, `ready` always is,
            # and `serving` says how the pod really is.
            ready=conditions.get("ready") is not False and conditions.get("serving") is not False,
            terminating=conditions.get("terminating") is True,
        )


class Gone(Exception):
    """The API server has forgotten the version from which a watch was to begin."""


class ApiFailed(Exception):
    """The API server refused, or answered something else than was asked; the message says what."""


class Slices:
    """The slices of a Service, by what has been listed and watched of them so far.

    Attributes:
        version: the resource version up to which they are known; "" when they must be listed.
    """

    def __init__(self) -> None:
        self.version = ""
        self._slices: dict[str, Slice] = {}

    def listed(self, document: bytes) -> None:
        """Take in a whole list, which replaces all.

        Raises:
            ApiFailed: it is no list of slices.
        """
        found = _parsed(document)
        if found.get("kind") != "EndpointSliceList":
            raise ApiFailed(f"expected an EndpointSliceList, got {found.get('kind')!r}")
        self._slices = {each["metadata"]["name"]: each for each in found.get("items") or ()}
        self.version = found["metadata"]["resourceVersion"]

    def watched(self, line: bytes) -> None:
        """Take in one event of a watch.

        Raises:
            Gone: it says so.
            ApiFailed: it tells of another error, or is no event.
        """
        event = _parsed(line)
        seen = event.get("object") or {}
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                self._slices[seen["metadata"]["name"]] = seen
            case "DELETED":
                self._slices.pop(seen["metadata"]["name"], None)
            case "BOOKMARK":
                pass
            case "ERROR":
                raise _failure(seen.get("code"), seen)
            case other:
                raise ApiFailed(f"expected an event of a watch, got one of type {other!r}")
        self.version = seen["metadata"]["resourceVersion"]

    def endpoints(self, port_name: str) -> tuple[Endpoint, ...]:
        """See `endpoints_of`."""
        return endpoints_of(self._slices.values(), port_name)

    def ports(self) -> set[str]:
        """The names of the ports of all slices that have endpoints."""
        return {
            port.get("name") or ""
            for each in self._slices.values()
            if each.get("endpoints")
            for port in each.get("ports") or ()
        }


def _parsed(document: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise ApiFailed(f"expected JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiFailed(f"expected a JSON object, got {type(found).__name__}")
    return found


def _failure(code: object, status: Mapping[str, Any]) -> Gone | ApiFailed:
    message = f"{code}: {status.get('message') or 'no message'}"
    return Gone(message) if code == 410 else ApiFailed(message)


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
        watch_s: after which the server ends a watch.
        silence_s: without a byte, after which a watch counts as dead; more than `watch_s`, since a
            watch of a quiet Service is silent for as long.
        settled_s: that a watch must have lasted for the next to follow without a pause.
        pause_first_s: the first pause after a failure, doubled each time; each is shortened at
            random by up to a half, so that gateways do not come all at once.
        pause_most_s: the longest.
    """

    connect_s: float = 5.0
    list_s: float = 10.0
    watch_s: int = 60
    silence_s: float = 70.0
    settled_s: float = 1.0
    pause_first_s: float = 0.2
    pause_most_s: float = 5.0

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
        self._port_name = port_name
        self._pace = pace
        self._about = {"source": "kubernetes", "service": service, "namespace": namespace}
        self._outage = Outage(**self._about)
        self._slices = Slices()
        self._listed = False
        self._watching_since: float | None = None

    def endpoints(self) -> tuple[Endpoint, ...] | None:
        """Those of the slices as they are now; None before the first list."""
        return self._slices.endpoints(self._port_name) if self._listed else None

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
        self._outage.ends()
        self.changed.set()
        self._check_port()

    async def _watch(self, client: httpx2.AsyncClient) -> None:
        params = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._slices.version,
            "timeoutSeconds": str(self._pace.watch_s),
        }
        timeout = httpx2.Timeout(self._pace.connect_s, read=self._pace.silence_s)
        async with client.stream("GET", self._path, params=params, timeout=timeout) as response:
            if response.status_code != 200:
                raise _refusal(response.status_code, await response.aread())
            self._watching_since = asyncio.get_running_loop().time()
            self._outage.ends()
            begun = b""
            async for chunk in response.aiter_bytes():
                # What stands after the last end of a line is an event that has not all come yet;
                # when the watch ends there, it comes again after this version.
                *lines, begun = (begun + chunk).split(b"\n")
                for line in filter(None, lines):
                    self._slices.watched(line)
                    self.changed.set()

    def _check_port(self) -> None:
        ports = self._slices.ports()
        if ports and self._port_name not in ports:
            _log.warning(
                "no endpoint has a port of the name that was asked for",
                extra={**self._about, "port_name": self._port_name, "ports": sorted(ports)},
            )


def _refusal(status: int, body: bytes) -> Gone | ApiFailed:
    try:
        said = _parsed(body)
    except ApiFailed:
        # A proxy on the way, or a server that is starting.
        said = {}
    return _failure(status, said)

"""Objects of Kubernetes' API, listed once and then watched.

All objects are listed, and what happens after that version is watched. A watch ends for many
reasons, most of them harmless, and is resumed from the last version that was seen, also after the
server has refused one, since a list costs it more than a watch. Only where it has forgotten that
version (410), cannot use it (400), tells of an error within the watch, or says what cannot be read,
all is listed anew; until that has come in, what was known stands.

A watch can die without a word, when a node or a proxy on the way vanishes. So the server is asked
to end each one after a while, and one that is silent for longer than that is given up.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import httpx2
import orjson

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the service account of a pod."""

_log = logging.getLogger(__name__)

JITTER = 0.2
"""Share of `Pace.watch_s` by which a watch is shorter or longer, at random, so that the watches of
processes that started together do not go on ending together."""

R = TypeVar("R")


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
    """How patient and how eager a follower is; all in seconds.

    Attributes:
        connect_s: to connect.
        list_s: for a whole list.
        watch_s: after which the server ends a watch, give or take `JITTER`.
        silence_s: without a byte, after which a watch counts as dead; more than the longest watch,
            since that of what does not change is silent for as long.
        settled_s: that a watch must have lasted to end an outage, and for the next to follow
            without a pause.
        pause_first_s: the first pause after a failure, doubled each time; each is shortened at
            random by up to a half, so that processes do not come all at once.
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


# What it says


class Gone(Exception):
    """The API server has forgotten the version from which a watch was to begin."""


class ApiFailed(Exception):
    """The API server refused, or answered something else than was asked; the message says what."""


class Refused(ApiFailed):
    """The API server answered with a status that says nothing of the version that we know."""


class Outage:
    """Whether the API server is away: logged when that begins and when it ends, not in between.

    Args:
        away: the sentence for the begin.
        back: the sentence for the end.
        **about: what the two lines tell of what is followed.
    """

    def __init__(self, away: str, back: str, /, **about: str) -> None:
        self.lasts = False
        self._away = away
        self._back = back
        self._about = about

    def begins(self, reason: str) -> None:
        """It failed, for `reason`."""
        if not self.lasts:
            self.lasts = True
            _log.warning(self._away, extra={**self._about, "reason": reason})

    def ends(self) -> None:
        """It answered."""
        if self.lasts:
            self.lasts = False
            _log.info(self._back, extra=dict(self._about))


class Objects(Generic[R]):
    """Objects of one kind, by what has been listed and watched of them so far.

    Args:
        kind: of a list of them, such as EndpointSliceList.
        read: what is kept of one; raises LookupError, TypeError, ValueError or AttributeError
            where it is none.

    Attributes:
        version: the resource version up to which they are known; "" when they must be listed.
        found: by name.
    """

    def __init__(self, kind: str, read: Callable[[Mapping[str, Any]], R]) -> None:
        self.version = ""
        self.found: dict[str, R] = {}
        self._kind = kind
        self._read = read

    def listed(self, document: bytes) -> None:
        """Take in a whole list, which replaces all.

        Raises:
            ApiFailed: it is none; what was known stands.
        """
        found = _parsed(document)
        if found.get("kind") != self._kind:
            raise ApiFailed(f"expected a {self._kind}, got {found.get('kind')!r}")
        with _well_formed(f"a {self._kind}"):
            version = _version(found)
            self.found = {_name(each): self._read(each) for each in found.get("items") or ()}
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

    def doubts(self) -> dict[str, dict[str, object]]:
        """What is most likely a mistake in what was asked for: sentences, each with its values."""
        return {}

    def _happened(self, kind: object, seen: Mapping[str, Any]) -> None:
        if kind == "ERROR":
            raise _failure(seen.get("code"), seen)
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise ApiFailed(f"expected an event of a watch, got one of type {kind!r}")
        version = _version(seen)
        if kind == "DELETED":
            self.found.pop(_name(seen), None)
        elif kind != "BOOKMARK":
            self.found[_name(seen)] = self._read(seen)
        self.version = version


def _name(each: Mapping[str, Any]) -> str:
    return text(each["metadata"]["name"])


def _version(document: Mapping[str, Any]) -> str:
    return text(document["metadata"]["resourceVersion"])


def text(value: object) -> str:
    """A value that is a text, or is not there and counts as an empty one.

    Raises:
        TypeError: it is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value


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


# Following


class Followed(Protocol):
    """What is listed and watched; `Objects` is."""

    version: str

    def listed(self, document: bytes) -> None:
        """Take in a whole list; raises ApiFailed."""
        ...

    def watched(self, line: bytes) -> None:
        """Take in one event of a watch; raises Gone or ApiFailed."""
        ...

    def doubts(self) -> dict[str, dict[str, object]]:
        """What is most likely a mistake in what was asked for."""
        ...


class Follower:
    """Keeps objects as the API server has them.

    Args:
        api: the API server.
        path: of the collection, such as /api/v1/namespaces/models/configmaps.
        selector: what of it is meant: labelSelector or fieldSelector.
        objects: what keeps them.
        outage: what is told when the server is away.
        about: what log lines tell of it.

    Attributes:
        changed: set after each change.
        is_listed: whether a list has come in.
        outage: whether the server is away.
    """

    def __init__(  # noqa: PLR0913  keywords
        self,
        api: ApiServer,
        path: str,
        selector: Mapping[str, str],
        objects: Followed,
        *,
        outage: Outage,
        about: Mapping[str, str],
        pace: Pace,
    ) -> None:
        self.changed = asyncio.Event()
        self.is_listed = False
        self.outage = outage
        self._api = api
        self._path = path
        self._selector = selector
        self._objects = objects
        self._about = about
        self._pace = pace
        self._doubts: dict[str, dict[str, object]] = {}
        self._watching_since: float | None = None

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
                if not self._objects.version:
                    await self._list(client)
                await self._watch(client)
        except Gone as gone:
            _log.info("all is listed anew", extra={**self._about, "reason": str(gone)})
            self._objects.version = ""
        except Refused as error:
            self.outage.begins(str(error))
        except ApiFailed as error:
            self.outage.begins(str(error))
            self._objects.version = ""
        except (httpx2.HTTPError, OSError) as error:
            self.outage.begins(f"{type(error).__name__}: {error}")
        else:
            return True
        return False

    def _watched_s(self) -> float:
        """Seconds that the last watch lasted; 0 where none was opened."""
        begun = self._watching_since
        return 0.0 if begun is None else asyncio.get_running_loop().time() - begun

    def _client(self) -> httpx2.AsyncClient:
        api = self._api
        headers = {"Accept": "application/json", "User-Agent": "tidegate"}
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
        self._objects.listed(response.content)
        self.is_listed = True
        self._take_note()

    async def _watch(self, client: httpx2.AsyncClient) -> None:
        params = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._objects.version,
            "timeoutSeconds": str(self._pace.watch_whole_s()),
        }
        timeout = httpx2.Timeout(self._pace.connect_s, read=self._pace.silence_s)
        async with client.stream("GET", self._path, params=params, timeout=timeout) as response:
            if response.status_code != 200:
                raise _refusal(response.status_code, await response.aread())
            loop = asyncio.get_running_loop()
            self._watching_since = loop.time()
            # A server that breaks each watch off at once is away as before.
            settled = loop.call_later(self._pace.settled_s, self.outage.ends)
            try:
                await self._read_events(response)
            finally:
                settled.cancel()
        self.outage.ends()

    async def _read_events(self, response: httpx2.Response) -> None:
        begun = b""
        async for chunk in response.aiter_bytes():
            # What stands after the last end of a line is an event that has not all come yet;
            # when the watch ends there, it comes again after this version.
            *lines, begun = (begun + chunk).split(b"\n")
            for line in filter(None, lines):
                self._objects.watched(line)
                self._take_note()

    def _take_note(self) -> None:
        """Tell of what came in, and warn of what is doubtful in it and was not before."""
        self.changed.set()
        doubts = self._objects.doubts()
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

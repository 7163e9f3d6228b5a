"""Endpoints from Kubernetes: what slices say, and that no fault of the watch loses a change.

The API server here is a fake, over real HTTP: a real one does not forget versions, break off within
a line or fall silent on demand. With a real one the source is tested in k8s-tests.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.discovery import Endpoint
from tidegate_gateway.endpoint_slices import EndpointSliceSource, Slices, merged, read
from tidegate_table.api_server import ApiFailed, ApiServer, Gone, NotInCluster, Pace, in_cluster

PATIENT = 20.0
Snapshot = tuple[Endpoint, ...]
Json = dict[str, Any]


def entry(
    address: str, pod: str | None = None, zone: str | None = None, **conditions: bool | None
) -> Json:
    """An endpoint of a slice, as the API has it: what is not known is not there."""
    found: Json = {"addresses": [address], "conditions": conditions}
    if pod is not None:
        found["targetRef"] = {"kind": "Pod", "name": pod}
    if zone is not None:
        found["zone"] = zone
    return found


def slice_of(name: str, *entries: Json, port: int = 8001, family: str = "IPv4") -> Json:
    return {
        "metadata": {"name": name},
        "addressType": family,
        "ports": [{"name": "http", "port": 8000}, {"name": "grpc", "port": port}],
        "endpoints": list(entries),
    }


# What slices say


def endpoints_of(slices: list[Json], port_name: str) -> Snapshot:
    return merged(read(each, port_name) for each in slices)


def test_an_endpoint_has_its_pods_name_its_zone_and_the_port_of_the_name() -> None:
    given_ = slice_of("s", entry("10.0.0.1", "triton-0", "north", ready=True), port=9001)

    assert endpoints_of([given_], "grpc") == (
        Endpoint("10.0.0.1:9001", name="triton-0", zone="north"),
    )
    assert endpoints_of([given_], "http")[0].address == "10.0.0.1:8000"
    assert endpoints_of([given_], "metrics") == ()


def test_an_endpoint_without_a_pod_has_its_address_for_a_name() -> None:
    assert endpoints_of([slice_of("s", entry("10.0.0.1"))], "grpc") == (
        Endpoint("10.0.0.1:8001", name="10.0.0.1:8001"),
    )


@pytest.mark.parametrize(
    ("conditions", "ready", "terminating"),
    [
        ({}, True, False),
        ({"ready": None, "serving": None, "terminating": None}, True, False),
        ({"ready": True, "serving": True, "terminating": False}, True, False),
        ({"ready": False, "serving": False, "terminating": False}, False, False),
        ({"ready": False, "serving": True, "terminating": True}, False, True),
        # publishNotReadyAddresses: `ready` is true whatever the pod says.
        ({"ready": True, "serving": False, "terminating": False}, False, False),
        ({"ready": True, "serving": True, "terminating": True}, True, True),
    ],
)
def test_the_conditions_of_a_pod(
    conditions: dict[str, Any], ready: bool, terminating: bool
) -> None:
    (found,) = endpoints_of([slice_of("s", entry("10.0.0.1", **conditions))], "grpc")

    assert (found.ready, found.terminating) == (ready, terminating)


def test_slices_of_both_families_are_merged_and_names_are_none() -> None:
    found = endpoints_of(
        [
            slice_of("v6", entry("fd00::1"), family="IPv6"),
            slice_of("v4", entry("10.0.0.2"), entry("10.0.0.1")),
            slice_of("dns", entry("engine.example"), family="FQDN"),
        ],
        "grpc",
    )

    assert [each.address for each in found] == ["10.0.0.1:8001", "10.0.0.2:8001", "[fd00::1]:8001"]


def test_only_the_first_address_of_an_endpoint_has_a_meaning() -> None:
    two = entry("10.0.0.1") | {"addresses": ["10.0.0.1", "10.0.0.2"]}

    assert [e.address for e in endpoints_of([slice_of("s", two)], "grpc")] == ["10.0.0.1:8001"]


@pytest.mark.parametrize("nothing", [{"endpoints": None}, {"endpoints": []}, {"ports": None}])
def test_a_slice_without_endpoints_or_ports_says_nothing(nothing: Json) -> None:
    assert endpoints_of([slice_of("s", entry("10.0.0.1")) | nothing], "grpc") == ()


def test_an_address_that_is_not_numeric_is_left_out_and_the_others_are_not() -> None:
    found = read(slice_of("s", entry("010.0.0.1"), entry("10.0.0.2")), "grpc")

    assert [each.address for each in found.endpoints] == ["10.0.0.2:8001"]
    assert found.refused == ("010.0.0.1",)


CONDITION = st.sampled_from([True, False, None])
ENTRIES = st.builds(
    entry,
    st.integers(1, 4).map("10.0.0.{}".format),
    st.sampled_from(["a", "b", None]),
    st.sampled_from(["north", "south", None]),
    ready=CONDITION,
    serving=CONDITION,
    terminating=CONDITION,
)
SLICES = st.builds(
    lambda name, entries: slice_of(name, *entries),
    st.sampled_from("abcd"),
    st.lists(ENTRIES, max_size=4),
)
often = settings(max_examples=150, deadline=None, database=None)


@often
@given(st.lists(SLICES, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_slices_does_not_matter_and_nobody_is_lost(
    slices: list[Json], random: Any
) -> None:
    merged = endpoints_of(slices, "grpc")
    shuffled = random.sample(slices, len(slices))

    assert endpoints_of(shuffled + shuffled, "grpc") == merged
    addresses = {f"{e['addresses'][0]}:8001" for each in slices for e in each["endpoints"]}
    assert [each.address for each in merged] == sorted(addresses)


@often
@given(st.lists(SLICES, max_size=5))
def test_of_an_endpoint_in_several_slices_the_better_state_wins(slices: list[Json]) -> None:
    merged = {each.address: each for each in endpoints_of(slices, "grpc")}

    for each in slices:
        for alone in endpoints_of([each], "grpc"):
            chosen = merged[alone.address]
            if alone.ready and not alone.terminating:
                assert chosen.ready
                assert not chosen.terminating
            assert chosen.ready or not alone.ready


# Lists and events


def a_list(version: int, *slices: Json) -> bytes:
    return orjson.dumps(
        {
            "kind": "EndpointSliceList",
            "metadata": {"resourceVersion": str(version)},
            "items": list(slices),
        }
    )


def an_event(kind: str, version: int, about: Json) -> bytes:
    metadata = {**about.get("metadata", {}), "resourceVersion": str(version)}
    return orjson.dumps({"type": kind, "object": {**about, "metadata": metadata}})


def a_status(code: int, message: str = "as the server says it") -> Json:
    return {"kind": "Status", "status": "Failure", "code": code, "message": message}


@often
@given(st.lists(SLICES, max_size=3), st.lists(st.tuples(st.booleans(), SLICES), max_size=8))
def test_a_list_and_the_events_after_it_are_a_later_list(
    listed: list[Json], changes: list[tuple[bool, Json]]
) -> None:
    watching, truth = Slices("grpc"), {each["metadata"]["name"]: each for each in listed}
    watching.listed(a_list(1, *truth.values()))
    for version, (deleted, each) in enumerate(changes, start=2):
        name = each["metadata"]["name"]
        kind = "DELETED" if deleted else "MODIFIED" if name in truth else "ADDED"
        if deleted:
            truth.pop(name, None)
        else:
            truth[name] = each
        watching.watched(an_event(kind, version, each))

    listing = Slices("grpc")
    listing.listed(a_list(1 + len(changes), *truth.values()))
    assert watching.endpoints() == listing.endpoints()
    assert watching.version == listing.version


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ({"type": "ERROR", "object": a_status(410)}, Gone, "410: as the server says it"),
        ({"type": "ERROR", "object": a_status(500, "")}, ApiFailed, "500: no message"),
        ({"type": "NEWS", "object": {}}, ApiFailed, "of type 'NEWS'"),
        ([], ApiFailed, "got list"),
        ({}, ApiFailed, "of type None"),
        ({"type": ["ADDED"]}, ApiFailed, "of type"),
        ({"type": "ADDED"}, ApiFailed, "cannot be read: KeyError: 'metadata'"),
        ({"type": "ADDED", "object": [1]}, ApiFailed, "cannot be read: TypeError"),
        ({"type": "ERROR", "object": [1]}, ApiFailed, "cannot be read: AttributeError"),
        ({"type": "BOOKMARK", "object": {"metadata": {}}}, ApiFailed, "'resourceVersion'"),
        (
            {"type": "DELETED", "object": {"metadata": {"resourceVersion": "8"}}},
            ApiFailed,
            "'name'",
        ),
    ],
)
def test_an_event_that_is_no_change(line: object, kind: type[Exception], message: str) -> None:
    slices = Slices("grpc")
    slices.listed(a_list(7, slice_of("s", entry("10.0.0.1"))))

    with pytest.raises(kind, match=message):
        slices.watched(orjson.dumps(line))
    assert slices.version == "7"
    assert len(slices.endpoints()) == 1


# Each is a slice but for one thing.
ODD_SLICES = [
    {"metadata": {}},
    {"metadata": {"name": 1}},
    {"addressType": {}},
    {"endpoints": 1},
    {"ports": [1]},
    {"ports": [{"name": 1, "port": 8001}]},
    {"ports": [{"name": "grpc", "port": "8001"}]},
    {"endpoints": [1]},
    {"endpoints": [{"addresses": []}]},
    {"endpoints": [{"addresses": [1]}]},
    {"endpoints": [entry("10.0.0.1") | {"conditions": [1]}]},
    {"endpoints": [entry("10.0.0.1") | {"zone": 1}]},
]


@pytest.mark.parametrize("odd", ODD_SLICES, ids=str)
def test_a_slice_that_cannot_be_read_changes_nothing(odd: Json) -> None:
    slices, before = Slices("grpc"), slice_of("s", entry("10.0.0.1"))
    slices.listed(a_list(7, before))

    with pytest.raises(ApiFailed, match="cannot be read"):
        slices.listed(a_list(8, engines(2), before | odd))
    with pytest.raises(ApiFailed, match="cannot be read"):
        slices.watched(an_event("ADDED", 8, before | odd))
    assert slices.version == "7"
    assert [each.address for each in slices.endpoints()] == ["10.0.0.1:8001"]


@pytest.mark.parametrize(
    "document",
    [b"<html>", b"", b'{"kind": "PodList"}', b"[]", b'{"kind": "EndpointSliceList"}'],
)
def test_a_list_of_something_else_is_refused(document: bytes) -> None:
    with pytest.raises(ApiFailed, match="expected"):
        Slices("grpc").listed(document)


@given(st.integers(1, 10**6))
@settings(max_examples=50, deadline=None, database=None)
def test_pauses_grow_up_to_the_longest(failures: int) -> None:
    pace = Pace(pause_first_s=0.2, pause_most_s=5.0)

    assert 0.2 <= pace.pause_s(failures) <= pace.pause_s(failures + 1) <= 5.0
    assert (pace.pause_s(1), pace.pause_s(2), pace.pause_s(6)) == (0.2, 0.4, 5.0)


def test_watches_do_not_end_together_and_a_quiet_one_is_not_taken_for_dead() -> None:
    pace = Pace()
    drawn = {pace.watch_whole_s() for _ in range(200)}

    assert len(drawn) > 5
    assert min(drawn) >= 48
    assert max(drawn) <= 72 < pace.silence_s
    # To the API server, 0 is no limit of ours.
    assert Pace(watch_s=0.1).watch_whole_s() == 1


# Where the API server is


def service_account(folder: Path) -> Path:
    for name, content in {"token": "secret\n", "ca.crt": "", "namespace": "models\n"}.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_knows_its_api_server(host: str, url: str, tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}

    assert in_cluster(environment, service_account(tmp_path)) == ApiServer(
        url, "models", token=tmp_path / "token", authorities=tmp_path / "ca.crt"
    )


@pytest.mark.parametrize("lacking", ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"])
def test_another_process_hears_which_variable_it_lacks(lacking: str, tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1", lacking: ""}

    with pytest.raises(NotInCluster, match=lacking):
        in_cluster(environment, service_account(tmp_path))


@pytest.mark.parametrize("lacking", ["token", "ca.crt", "namespace"])
def test_a_pod_without_a_service_account_hears_which_file_it_lacks(
    lacking: str, tmp_path: Path
) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    (service_account(tmp_path) / lacking).unlink()

    with pytest.raises(NotInCluster, match=lacking):
        in_cluster(environment, tmp_path)


# A fake API server


class Request:
    """What was asked of the server."""

    def __init__(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        parts = urlsplit(first.split()[1])
        self.path = parts.path
        self.query = dict(parse_qsl(parts.query))
        self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        self.watch = self.query.get("watch") == "true"


class FakeApi:
    """Lists and watches slices as the API server does, and fails as it is told to.

    Attributes:
        oldest: the oldest version from which it still can watch.
        forgets_in_stream: it says so in an event; else with the status of its answer.
        token: the only one that it takes; "" takes all.
        refuse: how many of the next lists and watches it answers with `refusal`.
        silent: it answers nothing any more, and says nothing on open watches.
        hasty: it ends each watch at once.
    """

    def __init__(self) -> None:
        self.version = 100
        self.oldest = 0
        self.forgets_in_stream = False
        self.token = ""
        self.refuse = {"list": 0, "watch": 0}
        self.refusal = (500, orjson.dumps(a_status(500)))
        self.silent = False
        self.hasty = False
        self.slices: dict[str, Json] = {}
        self.requests: list[Request] = []
        self.watches: dict[asyncio.StreamWriter, int] = {}
        self.connections: set[asyncio.StreamWriter] = set()
        self.port = 0
        self._events: list[tuple[int, bytes]] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in [*self.connections]:
            writer.transport.abort()
        await self._server.wait_closed()

    # What happens in the cluster.

    def put(self, *slices: Json) -> None:
        for each in slices:
            name = each["metadata"]["name"]
            kind = "MODIFIED" if name in self.slices else "ADDED"
            self.slices[name] = each
            self._happened(kind, each)

    def delete(self, name: str) -> None:
        self._happened("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        self.version += 100
        for writer in self.watches:
            self.write(writer, an_event("BOOKMARK", self.version, {}) + b"\n")

    def forget(self) -> None:
        """Forget all versions before the present one."""
        self.version += 1
        self.oldest = self.version

    # What happens to watches.

    def write(self, writer: asyncio.StreamWriter, part: bytes) -> None:
        if not self.silent:
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))

    def say(self, part: bytes) -> None:
        for writer in self.watches:
            self.write(writer, part)

    def end_watches(self) -> None:
        for writer in [*self.watches]:
            self._end(writer)

    def cut_watches(self) -> None:
        for writer in [*self.watches]:
            del self.watches[writer]
            writer.close()

    def count(self, *, watch: bool) -> int:
        return sum(each.watch is watch for each in self.requests)

    def _happened(self, kind: str, each: Json) -> None:
        self.version += 1
        line = an_event(kind, self.version, each) + b"\n"
        self._events.append((self.version, line))
        for writer in self.watches:
            self.write(writer, line)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        del self.watches[writer]
        writer.write(b"0\r\n\r\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request = Request(head)
                self.requests.append(request)
                if not self.silent:
                    self._answer(request, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.watches.pop(writer, None)
            self.connections.discard(writer)
            writer.close()

    def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        what = "watch" if request.watch else "list"
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            self._whole(writer, 401, orjson.dumps(a_status(401, "Unauthorized")))
        elif self.refuse[what]:
            self.refuse[what] -= 1
            self._whole(writer, *self.refusal)
        elif not request.watch:
            self._whole(writer, 200, a_list(self.version, *self.slices.values()))
        else:
            self._watch(int(request.query["resourceVersion"]), writer)

    def _watch(self, since: int, writer: asyncio.StreamWriter) -> None:
        if since < self.oldest and not self.forgets_in_stream:
            self._whole(writer, 410, orjson.dumps(a_status(410)))
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.watches[writer] = since
        if since < self.oldest:
            said = {"type": "ERROR", "object": a_status(410)}
            self.write(writer, orjson.dumps(said) + b"\n")
        else:
            for version, line in self._events:
                if version > since:
                    self.write(writer, line)
        if self.hasty:
            self._end(writer)

    def _whole(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    fake = FakeApi()
    await fake.start()
    yield fake
    await fake.stop()


QUICK = Pace(settled_s=0.05, pause_first_s=0.01, pause_most_s=0.05)


@asynccontextmanager
async def told(
    api: FakeApi, pace: Pace = QUICK, *, token: Path | None = None, namespace: str = "models"
) -> AsyncIterator[AsyncGenerator[Snapshot, None]]:
    server = ApiServer(f"http://127.0.0.1:{api.port}", namespace="own", token=token)
    snapshots = EndpointSliceSource("engines", namespace, api=server, pace=pace).snapshots()
    try:
        yield snapshots
    finally:
        await snapshots.aclose()
        # Those of the server end when it has seen the end of the connections.
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert not api.connections


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT):
        while not check():  # noqa: ASYNC110 - the fake has no event for each thing that is asked
            await asyncio.sleep(0.005)


async def hosts(snapshots: AsyncGenerator[Snapshot, None]) -> list[str]:
    """The last numbers of the addresses that are told next."""
    endpoints = await asyncio.wait_for(anext(snapshots), PATIENT)
    return [each.address.removeprefix("10.0.0.").removesuffix(":8001") for each in endpoints]


def engines(*numbers: int, name: str = "engines-a") -> Json:
    return slice_of(name, *(entry(f"10.0.0.{number}", ready=True) for number in numbers))


# List and watch


async def test_a_service_is_listed_and_then_watched_from_that_version(api: FakeApi) -> None:
    api.put(engines(1), engines(2, name="engines-b"))
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1", "2"]
        await until(lambda: len(api.watches) == 1)

    listed, watched = api.requests
    path = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
    selector = {"labelSelector": "kubernetes.io/service-name=engines"}
    assert (listed.path, listed.query) == (path, selector)
    assert watched.path == path
    assert 48 <= int(watched.query.pop("timeoutSeconds")) <= 72
    assert watched.query == selector | {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "102",
    }


async def test_without_a_namespace_it_is_our_own(api: FakeApi) -> None:
    async with told(api, namespace="") as snapshots:
        assert await hosts(snapshots) == []

    assert "/namespaces/own/" in api.requests[0].path


async def test_each_change_is_told_and_what_is_none_is_not(api: FakeApi) -> None:
    api.put(engines(1))
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(api.watches) == 1)
        api.put(engines(2, name="engines-b"))
        assert await hosts(snapshots) == ["1", "2"]
        api.put(engines(1))
        api.bookmark()
        api.put(engines(3))
        assert await hosts(snapshots) == ["2", "3"]
        api.delete("engines-b")
        assert await hosts(snapshots) == ["3"]
        api.delete("engines-a")
        assert await hosts(snapshots) == []


async def test_events_come_in_any_pieces(api: FakeApi) -> None:
    async with told(api) as snapshots:
        assert await hosts(snapshots) == []
        await until(lambda: len(api.watches) == 1)
        # U+0085 ends a line of text, but no event.
        first = engines(1) | {"annotations": {"note": "one\u0085two"}}
        lines = an_event("ADDED", 201, first) + b"\n" + an_event("ADDED", 202, engines(2, name="b"))
        for place in range(0, len(lines), 7):
            api.say(lines[place : place + 7])
            await asyncio.sleep(0)
        assert await hosts(snapshots) == ["1"]
        api.say(b"\n")
        assert await hosts(snapshots) == ["1", "2"]


# Watches that end


async def test_a_watch_that_ends_is_resumed_from_the_last_version_seen(api: FakeApi) -> None:
    async with told(api) as snapshots:
        assert await hosts(snapshots) == []
        await until(lambda: len(api.watches) == 1)
        api.put(engines(1))
        assert await hosts(snapshots) == ["1"]
        api.bookmark()
        api.end_watches()
        api.put(engines(2))
        assert await hosts(snapshots) == ["2"]

    versions = [each.query.get("resourceVersion") for each in api.requests]
    assert versions == [None, "100", "201"]


@pytest.mark.parametrize("end", [FakeApi.cut_watches, FakeApi.end_watches])
async def test_a_watch_that_breaks_off_within_a_line_loses_nothing(
    api: FakeApi, end: Callable[[FakeApi], None]
) -> None:
    api.put(engines(1))
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(api.watches) == 1)
        line = an_event("MODIFIED", api.version + 1, engines(2))
        api.say(line[: len(line) // 2])
        end(api)
        api.put(engines(2))
        assert await hosts(snapshots) == ["2"]

    assert api.count(watch=False) == 1


@pytest.mark.parametrize("in_stream", [True, False])
async def test_all_is_listed_anew_when_the_version_is_forgotten(
    api: FakeApi, in_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(engines(1), engines(2, name="engines-b"))
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1", "2"]
        await until(lambda: len(api.watches) == 1)
        api.forgets_in_stream = in_stream
        api.cut_watches()
        api.delete("engines-a")
        api.forget()
        assert await hosts(snapshots) == ["2"]
        await until(lambda: len(api.watches) == 1)
        api.put(engines(3))
        assert await hosts(snapshots) == ["2", "3"]

    # The cut is a failure, the forgotten version is none.
    reasons = [vars(each)["reason"] for each in caplog.records if each.levelname == "WARNING"]
    assert not any("410" in reason for reason in reasons)


async def test_a_watch_that_is_silently_dead_is_noticed(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(engines(1))
    pace = Pace(silence_s=0.2, pause_first_s=0.01)
    async with told(api, pace) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(api.watches) == 1)
        api.silent = True
        api.put(engines(2))
        await until(lambda: api.count(watch=True) >= 2)
        api.silent = False
        assert await hosts(snapshots) == ["2"]

    assert api.count(watch=False) == 1
    assert "ReadTimeout" in vars(caplog.records[0])["reason"]


async def test_watches_that_end_at_once_do_not_follow_at_once(api: FakeApi) -> None:
    api.hasty = True
    loop = asyncio.get_running_loop()
    async with told(api, Pace(pause_first_s=0.4, pause_most_s=0.4)) as snapshots:
        assert await hosts(snapshots) == []
        begin = loop.time()
        await until(lambda: api.count(watch=True) >= 5)

    # Four pauses of at least a half of the longest.
    assert loop.time() - begin >= 4 * 0.2 - 0.01


async def test_a_watch_that_has_lasted_is_followed_at_once(api: FakeApi) -> None:
    async with told(api, Pace(settled_s=0, pause_first_s=10 * PATIENT)) as snapshots:
        assert await hosts(snapshots) == []
        await until(lambda: len(api.watches) == 1)
        api.end_watches()
        await until(lambda: api.count(watch=True) == 2)


# A server that is away or refuses


async def test_nothing_is_told_before_the_first_list(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_table.api_server")
    api.put(engines(1))
    api.refuse["list"] = 5
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(caplog.records) == 2)

    assert api.count(watch=False) == 6
    begin, end = caplog.records
    assert vars(begin)["reason"] == "500: as the server says it"
    assert (begin.levelname, end.levelname) == ("WARNING", "INFO")
    assert (vars(end)["service"], vars(end)["namespace"]) == ("engines", "models")


async def test_a_watch_that_is_refused_is_tried_again_without_a_list(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_table")
    api.put(engines(1))
    api.refusal = (503, b"<html>no upstream</html>")
    api.refuse["watch"] = 20
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: api.count(watch=True) == 10)
        api.put(engines(2))
        assert await hosts(snapshots) == ["2"]
        await until(lambda: len(caplog.records) == 2)

    assert (api.count(watch=False), api.count(watch=True)) == (1, 21)
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]
    assert [vars(each).get("reason") for each in caplog.records] == ["503: no message", None]


async def test_a_version_that_the_server_cannot_use_is_not_asked_for_again(api: FakeApi) -> None:
    api.put(engines(1))
    api.refusal = (400, orjson.dumps(a_status(400)))
    api.refuse["watch"] = 1
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(api.watches) == 1)

    assert [each.watch for each in api.requests] == [False, True, False, True]


@pytest.mark.parametrize(
    "line",
    [
        orjson.dumps({"type": "ERROR", "object": a_status(500)}),
        b'{"type": "ADDED", "object": [1]}',
        b"<html>",
    ],
)
async def test_watches_that_fail_within_are_one_outage_and_all_is_listed_anew(
    api: FakeApi, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_table")
    api.put(engines(1))
    # None of them lasts for long enough to count as the end of the outage.
    pace = Pace(settled_s=PATIENT, pause_first_s=0.01, pause_most_s=0.01)
    async with told(api, pace) as snapshots:
        assert await hosts(snapshots) == ["1"]
        for lists in range(1, 6):
            await until(lambda: len(api.watches) == 1)
            assert api.count(watch=False) == lists
            api.say(line + b"\n")
            await until(lambda: not api.watches)
        await until(lambda: len(api.watches) == 1)
        assert [each.levelname for each in caplog.records] == ["WARNING"]

        # One that ends as it should is the end of it too.
        api.end_watches()
        await until(lambda: len(caplog.records) == 2)

    assert caplog.records[1].levelname == "INFO"


async def test_what_was_known_stands_while_the_server_refuses_lists(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_table.api_server")
    api.put(engines(1))
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(api.watches) == 1)
        api.refuse["list"] = 3
        api.put(engines(2))
        assert await hosts(snapshots) == ["2"]
        api.forget()
        api.end_watches()
        api.put(engines(3))
        assert await hosts(snapshots) == ["3"]
        await until(lambda: len(caplog.records) == 3)

    assert api.count(watch=False) == 5
    anew, *outage = caplog.records
    assert anew.message == "all is listed anew"
    reasons = [vars(each).get("reason") for each in outage]
    assert reasons == ["500: as the server says it", None]


async def test_what_was_known_stands_while_the_server_is_away(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate_table.api_server")
    api.put(engines(1))
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(api.watches) == 1)
        further = asyncio.create_task(hosts(snapshots))
        await api.stop()
        await until(lambda: len(caplog.records) == 1)
        assert not further.done()

        await api.start()
        api.put(engines(2))
        assert await further == ["2"]
        await until(lambda: len(caplog.records) == 2)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"<html>", "expected JSON"), (orjson.dumps({"kind": "PodList"}), "got 'PodList'")],
)
async def test_an_answer_of_something_else_is_an_outage(
    api: FakeApi, answer: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(engines(1))
    api.refusal = (200, answer)
    api.refuse["list"] = 2
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]

    (begin,) = (each for each in caplog.records if each.levelname == "WARNING")
    assert reason in vars(begin)["reason"]


async def test_a_list_that_hangs_is_given_up(api: FakeApi) -> None:
    api.put(engines(1))
    api.silent = True
    async with told(api, Pace(list_s=0.1, pause_first_s=0.01)) as snapshots:
        first = asyncio.create_task(hosts(snapshots))
        await until(lambda: len(api.requests) >= 2)
        api.silent = False
        assert await first == ["1"]


async def test_the_token_is_read_anew(api: FakeApi, tmp_path: Path) -> None:
    token = service_account(tmp_path) / "token"
    api.put(engines(1))
    api.token = "secret"
    async with told(api, token=token) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(api.watches) == 1)
        # The old one has expired before the new one is there.
        api.token = "new"
        api.end_watches()
        api.put(engines(2))
        before = len(api.requests)
        await until(lambda: len(api.requests) >= before + 2)
        token.unlink()
        token.write_text("new")
        assert await hosts(snapshots) == ["2"]


async def test_no_token_is_in_the_log(
    api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api.token = "another"
    async with told(api, token=service_account(tmp_path) / "token") as snapshots:
        first = asyncio.create_task(hosts(snapshots))
        await until(lambda: len(api.requests) >= 2)
        api.token = "secret"
        await first

    ours = [each for each in caplog.records if each.name.startswith("tidegate_table")]
    assert vars(ours[0])["reason"] == "401: Unauthorized"
    assert not any("secret" in str(vars(each)) for each in caplog.records)


# What is doubtful


async def test_a_port_that_no_endpoint_has_is_said_when_it_changes(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    unnamed = engines(1) | {"ports": [{"name": "", "port": 8001}, {"name": "http", "port": 8000}]}
    api.put(engines(1))
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(api.watches) == 1)
        assert not caplog.records
        for _ in range(3):
            api.put(unnamed)
        assert await hosts(snapshots) == []
        api.put(engines(2))
        assert await hosts(snapshots) == ["2"]
        assert len(caplog.records) == 1
        api.put(unnamed)
        assert await hosts(snapshots) == []

    for warning in caplog.records:
        assert warning.getMessage() == "no endpoint has a port of the name that was asked for"
        assert vars(warning)["port_name"] == "grpc"
        assert vars(warning)["ports"] == ["", "http"]
    assert len(caplog.records) == 2


async def test_a_service_that_has_no_slices_is_said_once(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async with told(api) as snapshots:
        assert await hosts(snapshots) == []
        await until(lambda: len(api.watches) == 1)
        api.bookmark()
        api.put(engines(1))
        assert await hosts(snapshots) == ["1"]

    (warning,) = caplog.records
    assert warning.getMessage() == "the Service has no EndpointSlices"
    assert (vars(warning)["service"], vars(warning)["namespace"]) == ("engines", "models")


async def test_a_service_without_engines_is_not_doubted(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(engines())
    async with told(api) as snapshots:
        assert await hosts(snapshots) == []

    assert not caplog.records


async def test_addresses_that_are_left_out_are_said_once(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    odd = slice_of("odd", *(entry(f"010.0.0.{number}") for number in range(1, 9)))
    api.put(engines(1), odd)
    async with told(api) as snapshots:
        assert await hosts(snapshots) == ["1"]
        await until(lambda: len(api.watches) == 1)
        api.put(odd, engines(2))
        assert await hosts(snapshots) == ["2"]

    (warning,) = caplog.records
    assert vars(warning)["addresses"] == [f"010.0.0.{number}" for number in range(1, 6)]

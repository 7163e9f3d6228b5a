"""What pods answer, read strictly."""

from typing import Any

import pytest

from tidegate_operator import gateways, loaders
from tidegate_operator.resources import PodSeen
from tidegate_operator.situation import VersionSeen
from tidegate_process.asking import NoAnswer

VERSION = {"digest": "d", "loaded": True, "proven": True, "failed": False, "error": "",
           "requests": 12}  # fmt: skip
MODEL = {"config": "c", "configError": "", "versions": {"1": VERSION}}
STATUS = {"schema": 1, "revision": 4, "table": {"revision": 4}, "models": {"m": MODEL},
          "engine": {"gpuMemory": {"usedBytes": 3, "totalBytes": 10}}}  # fmt: skip
ROUTING = {"revision": 4, "table": None, "oldestInUse": {"m": 3}}
POD = PodSeen("p", "u", "10.0.0.1", True, True)


def test_a_loaders_status() -> None:
    status = loaders.read(STATUS)

    assert (status.revision, status.free_memory) == (4, 7)
    seen = loaders.seen(POD, status, "m")
    assert (seen.name, seen.ready, seen.revision, seen.config) == ("p", True, 4, "c")
    assert seen.versions == {
        "1": VersionSeen(digest="d", loaded=True, proven=True, requests=12),
    }
    assert loaders.seen(POD, status, "other").versions == {}
    assert loaders.seen(POD, None, "m").revision is None


def test_a_loader_that_tells_of_no_gpu_has_no_free_memory() -> None:
    assert loaders.read({**STATUS, "engine": {"gpuMemory": None}}).free_memory is None


def test_members_of_a_later_release_are_ignored() -> None:
    later = {**STATUS, "later": 1, "models": {"m": {**MODEL, "later": 1}}}
    assert loaders.read(later) == loaders.read(STATUS)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 2}, "schema: expected 1, got 2"),
        ({"revision": "4"}, "revision: expected a whole number from 0, got '4'"),
        ({"revision": True}, "revision: expected a whole number"),
        ({"revision": -1}, "revision: expected a whole number"),
        ({"models": []}, "models: expected an object"),
        ({"models": {"m": {**MODEL, "config": None}}}, "config: expected a text"),
        ({"models": {"m": {**MODEL, "versions": {"1": {**VERSION, "proven": 1}}}}},
         "proven: expected true or false, got 1"),
        ({"models": {"m": {**MODEL, "versions": {"1": {}}}}}, "digest: expected a text"),
        ({"engine": {"gpuMemory": {"usedBytes": 1}}}, "totalBytes: expected a whole number"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_status_that_cannot_be_read_is_silence(change: dict[str, Any], why: str) -> None:
    with pytest.raises(NoAnswer) as silence:
        loaders.read({**STATUS, **change})
    assert why in str(silence.value)


def test_a_gateways_routing() -> None:
    routing = gateways.read(ROUTING)

    assert routing.revision == 4
    assert gateways.seen(POD, routing, "m").oldest_in_use == 3
    assert gateways.seen(POD, routing, "other").oldest_in_use is None
    assert gateways.seen(POD, None, "m").revision is None


@pytest.mark.parametrize(
    "change", [{"revision": None}, {"oldestInUse": [3]}, {"oldestInUse": {"m": ""}}]
)
def test_a_routing_that_cannot_be_read_is_silence(change: dict[str, Any]) -> None:
    with pytest.raises(NoAnswer):
        gateways.read({**ROUTING, **change})

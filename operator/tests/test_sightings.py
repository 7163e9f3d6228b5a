"""From what is told to what is decided on: who acts for a model, and what pods say."""

import json
from typing import Any

import pytest

from tidegate_operator.gateways import Routing
from tidegate_operator.loaders import Status
from tidegate_operator.resources import PodSeen
from tidegate_operator.sightings import (
    InvalidProof,
    Pods,
    claims_of,
    known_revision,
    name_of,
    proof_of,
)
from tidegate_operator.situation import Unreadable
from tidegate_operator.spec import ProofSource, Rollout
from tidegate_table.document import Table, write

GOLDEN = ProofSource("golden", 0.01)


def rollout(name: str, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": created},
        "spec": {"model": "m", "version": 1, **spec},
    }


def test_each_model_has_the_modelrollout_that_names_it() -> None:
    claims = claims_of([rollout("a"), rollout("b", model="n", version=7)])

    assert {model: name_of(each.document) for model, each in claims.owners.items()} == {
        "m": "a",
        "n": "b",
    }
    found = claims.owners["n"].rollout
    assert isinstance(found, Rollout)
    assert found.spec.version == "7"
    assert not claims.others


def test_of_several_for_a_model_the_oldest_acts_and_the_others_learn_its_name() -> None:
    old = rollout("z", created="2026-01-01T00:00:00Z")
    new = rollout("a", created="2026-01-01T00:00:01Z")
    same = rollout("zz", created="2026-01-01T00:00:00Z")

    claims = claims_of([new, same, old])

    assert claims.owners["m"].document is old
    assert [(name_of(each), winner) for each, winner in claims.others] == [("a", "z"), ("zz", "z")]


@pytest.mark.parametrize(
    "spec", [{"version": 0}, {"strategy": [1]}, {"strategy": {"steps": 3}}, {"proof": 1}], ids=repr
)
def test_one_that_cannot_be_read_is_there_all_the_same(spec: dict[str, Any]) -> None:
    claims = claims_of([rollout("a", **spec)])

    found = claims.owners["m"].rollout
    assert isinstance(found, Unreadable)
    assert found.name == "a"
    assert next(iter(spec)) in found.message


def test_what_has_failed_is_known_though_the_spec_cannot_be_read() -> None:
    document = rollout("a", version=0)
    document["metadata"]["generation"] = 4
    document["status"] = {"failed": {"version": 2, "generation": 4, "reason": "R", "message": "m"}}

    found = claims_of([document]).owners["m"].rollout

    assert isinstance(found, Unreadable)
    assert found.has_failed("2")
    assert not found.has_failed("3")


@pytest.mark.parametrize("spec", [None, [1], {}, {"model": 5}, {"model": ""}], ids=repr)
def test_one_that_names_no_model_does_nothing(spec: Any) -> None:
    nameless = {**rollout("a"), "spec": spec}

    assert [*claims_of([nameless, rollout("b", model="n")]).owners] == ["n"]


def test_the_highest_revision_that_any_status_tells_of_is_known() -> None:
    told = [{"table": {"revision": 7}}, {"table": {"revision": 12}}, {"table": {}}, {}, None, [1]]

    assert known_revision({**rollout("a"), "status": status} for status in told) == 12
    assert known_revision([rollout("a")]) == 0


def test_a_proof_has_the_request_and_the_outputs_of_its_configmap() -> None:
    data = {"request.json": '{"inputs": []}', "outputs.json": '[{"name": "o"}]'}

    proof = proof_of(GOLDEN, data)

    assert (proof.request, proof.outputs, proof.tolerance) == (
        {"inputs": []},
        [{"name": "o"}],
        0.01,
    )
    assert proof_of(GOLDEN, {"request.json": "{}"}).outputs is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "configmap golden: there is none"),
        ({}, "configmap golden: request.json: expected JSON"),
        ({"request.json": "{"}, "configmap golden: request.json: expected JSON"),
        ({"request.json": "[]"}, "configmap golden: request.json: expected an object"),
        ({"request.json": "[" * 100_000}, "configmap golden: request.json: expected JSON"),
        ({"request.json": '{"a": NaN}'}, "configmap golden: request.json: expected JSON"),
        ({"request.json": '{"a": "\\ud800"}'}, "configmap golden: request.json: expected JSON"),
        ({"request.json": "{}", "outputs.json": "{}"}, "outputs.json: expected a list of objects"),
        ({"request.json": "{}", "outputs.json": "[1]"}, "outputs.json: expected a list of objects"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_configmap_without_a_proof_says_what_lacks(data: Any, why: str) -> None:
    with pytest.raises(InvalidProof) as caught:
        proof_of(GOLDEN, data)
    assert why in str(caught.value)


# Pods


def pod(name: str, *, ready: bool = True, started: bool = True, was_ready: bool = True) -> PodSeen:
    return PodSeen(name, f"uid-{name}", "10.0.0.1", ready, started, was_ready)


def table(revision: int) -> Any:
    return json.loads(json.dumps(write(Table(revision, {}))))


def test_silent_are_ready_engines_and_started_gateways_that_do_not_answer() -> None:
    pods = Pods(
        engines=[
            (pod("answers"), Status(3)),
            (pod("silent"), None),
            (pod("not-ready", ready=False), None),
        ],
        gateways=[
            (pod("unready-and-silent", ready=False), None),
            (pod("never-ready", ready=False, was_ready=False), None),
            (pod("never-started", ready=False, started=False, was_ready=False), None),
        ],
    )

    silent = pods.silent()
    assert silent.served == ["silent", "unready-and-silent"]
    assert silent.running == [*silent.served, "never-ready"]
    assert silent.pods == [
        "silent", "not-ready", "unready-and-silent", "never-ready", "never-started"
    ]  # fmt: skip
    assert pods.told_revision() == 3
    assert [each.revision for each in pods.loaders_of("m")] == [3, None, None]
    assert [each.revision for each in pods.gateways_of("m")] == [None, None, None]


@pytest.mark.parametrize(
    ("status", "routing", "are_empty"),
    [(0, 0, True), (1, 0, False), (0, 1, False), (None, 0, False), (0, None, False)],
)
def test_pods_are_empty_where_all_say_that_they_have_no_table(
    status: int | None, routing: int | None, *, are_empty: bool
) -> None:
    last = None if status is None else Status(status)
    engines = [(pod("e-0"), Status(0)), (pod("e-1", ready=False), last)]
    answer = None if routing is None else Routing(routing)
    gateways = [(pod("g-0"), Routing(0)), (pod("g-1", started=False), answer)]

    assert Pods(engines, gateways).are_empty() is are_empty


def test_without_an_engine_or_a_gateway_nobody_can_say_so() -> None:
    assert not Pods([(pod("e-0"), Status(0))], []).are_empty()
    assert not Pods([], [(pod("g-0"), Routing(0))]).are_empty()
    assert Pods([], []).silent().pods == ["an engine", "a gateway"]


def test_tables_above_a_revision_are_held_whoever_holds_them() -> None:
    pods = Pods(
        engines=[(pod("a"), Status(5, table(5))), (pod("b"), Status(9, {"schema": 99}))],
        gateways=[(pod("c"), Routing(4, table(4))), (pod("d"), None), (pod("e"), Routing(0, None))],
    )

    assert [each.revision for each in pods.held_above(3)] == [5, 4]
    assert [each.revision for each in pods.held_above(4)] == [5]
    assert pods.told_revision() == 9

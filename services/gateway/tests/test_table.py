"""Which routing table is applied, what is in use of it, and the file that it comes from."""

import json
import logging
from contextlib import ExitStack, suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.errors import ModelNotFound
from tidegate_gateway.routing import Route
from tidegate_gateway.table import Routes
from tidegate_table.document import (
    Loads,
    ModelRoutes,
    Phase,
    Policy,
    Proof,
    Roll,
    Table,
    parse,
)

PATIENT_S = 20.0


def table(revision: int, *, stable: str = "1", models: tuple[str, ...] = ("m",)) -> Table:
    return Table(
        revision=revision,
        models={model: ModelRoutes(stable, {stable: 100}) for model in models},
        aliases={"alias": "m"} if "m" in models else {},
    )


def text(revision: int, *, stable: str = "1") -> str:
    models = {"m": {"stable": stable}}
    return json.dumps({"schema": 1, "revision": revision, "models": models})


def anywhere(model: str, version: str) -> bool:
    return True


@pytest.fixture
def routes() -> Routes:
    return Routes(Random(1))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


# What is applied


def test_order_is_by_revision_alone(routes: Routes) -> None:
    seen: list[int] = []
    routes.on_change(lambda applied: seen.append(applied.revision))

    applied = [routes.apply(table(revision)) for revision in (5, 4, 5, 6, 1, 9)]

    assert applied == [True, False, False, True, False, True]
    assert seen == [5, 6, 9]
    assert routes.revision == 9
    assert routes.table == table(9)


@pytest.mark.parametrize("revision", [7, 3])
def test_a_change_without_a_higher_revision_is_told(
    routes: Routes, revision: int, caplog: pytest.LogCaptureFixture
) -> None:
    routes.apply(table(7))

    assert not routes.apply(table(revision, stable="2"))

    assert routes.table == table(7)
    assert warnings(caplog) == [
        f"expected a routing table of a revision above 7, got {revision}: the change is not applied"
    ]


def test_the_same_table_again_is_nothing_to_tell(
    routes: Routes, caplog: pytest.LogCaptureFixture
) -> None:
    routes.apply(table(7))

    assert not routes.apply(table(7))

    assert warnings(caplog) == []


def test_what_is_applied_is_logged_with_what_is_ignored(
    routes: Routes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    routes.apply(Table(3, {"m": ModelRoutes("1", {"1": 100}, {"weigths": {}})}))

    (record,) = caplog.records
    assert record.message == "routing table applied"
    assert vars(record)["table_revision"] == 3
    assert vars(record)["ignored"] == ["model 'm': weigths"]


@pytest.mark.parametrize("pin", ["", "3"])
def test_without_a_table_all_is_left_to_the_engine(routes: Routes, pin: str) -> None:
    assert routes.revision == 0
    assert routes.route("any", pin, "key", anywhere) == Route("any", pin, 0, bool(pin), "")


def test_with_a_table_it_decides(routes: Routes) -> None:
    routes.apply(table(4, stable="2"))

    assert routes.route("alias", "", None, anywhere) == Route("m", "2", 4, False, "")
    with pytest.raises(ModelNotFound):
        routes.route("any", "", None, anywhere)


def test_chance_differs_from_request_to_request(routes: Routes) -> None:
    routes.apply(Table(1, {"m": ModelRoutes("1", {"1": 50, "2": 50})}))

    assert {routes.route("m", "", None, anywhere).version for _ in range(100)} == {"1", "2"}


# What engines are to serve


def test_what_engines_are_to_serve_is_in_the_table(routes: Routes) -> None:
    assert routes.wanted() is None
    assert not routes.is_on_trial("m", "2")
    assert routes.digest("m", "2") == ""

    models = {"m": ModelRoutes("1", {"1": 95, "2": 5, "3": 0}), "own": ModelRoutes("1", {"1": 100})}
    loads = {"m": Loads("", {"1": "sha256:1", "2": ""}), "new": Loads("", {"1": ""})}
    routes.apply(Table(4, models, loads=loads))

    assert routes.wanted() == frozenset({("m", "1"), ("m", "2"), ("own", "1")})
    assert (routes.digest("m", "1"), routes.digest("m", "2")) == ("sha256:1", "")


@pytest.mark.parametrize(
    ("model", "version", "on_trial"),
    [("m", "1", False), ("m", "2", True), ("new", "1", True), ("own", "2", False)],
)
def test_what_loaders_have_beside_the_stable_version_is_on_trial(
    routes: Routes, model: str, version: str, on_trial: bool
) -> None:
    models = {"m": ModelRoutes("1", {"1": 95, "2": 5}), "own": ModelRoutes("1", {"1": 95, "2": 5})}
    loads = {"m": Loads("", {"1": "", "2": ""}), "new": Loads("", {"1": ""})}
    routes.apply(Table(4, models, loads=loads))

    assert routes.is_on_trial(model, version) is on_trial


# What is in use


def test_a_request_holds_the_revision_that_it_came_in_by(routes: Routes) -> None:
    with routes.in_use("m"):
        routes.apply(table(1, models=("m", "other")))
        assert routes.oldest_in_use() == {"m": 0, "other": 1}
        with routes.in_use("m"), routes.in_use("other"):
            routes.apply(table(2, models=("m", "other")))
            assert routes.oldest_in_use() == {"m": 0, "other": 1}
    assert routes.oldest_in_use() == {"m": 2, "other": 2}


def test_a_request_by_an_alias_is_one_of_the_model(routes: Routes) -> None:
    routes.apply(table(1))
    with routes.in_use("alias"):
        routes.apply(table(2))
        assert routes.oldest_in_use() == {"m": 1}


def test_a_request_that_fails_is_over(routes: Routes) -> None:
    routes.apply(table(1))
    with suppress(ModelNotFound), routes.in_use("m"):
        raise ModelNotFound("no")
    routes.apply(table(2))

    assert routes.oldest_in_use() == {"m": 2}


def test_a_model_that_left_the_table_is_named_while_it_has_requests(routes: Routes) -> None:
    routes.apply(table(1))
    with routes.in_use("m"):
        routes.apply(table(2, models=("other",)))
        assert routes.oldest_in_use() == {"m": 1, "other": 2}
    assert routes.oldest_in_use() == {"other": 2}


def test_names_that_clients_invent_are_not_told(routes: Routes) -> None:
    routes.apply(table(1))
    with routes.in_use("invented"):
        assert routes.oldest_in_use() == {"m": 1}


@settings(max_examples=100, deadline=None, database=None)
@given(
    st.lists(
        st.tuples(st.just("begin"), st.sampled_from(["a", "b"]))
        | st.tuples(st.just("end"), st.integers(0, 20))
        | st.tuples(st.just("apply"), st.none()),
        max_size=30,
    )
)
def test_the_oldest_is_the_lowest_of_those_in_flight(steps: list[tuple[str, Any]]) -> None:
    routes = Routes(Random(1))
    in_flight: list[tuple[str, int, ExitStack]] = []
    for step, argument in [("apply", None), *steps]:
        match step:
            case "begin":
                request = ExitStack()
                request.enter_context(routes.in_use(argument))
                in_flight.append((argument, routes.revision, request))
            case "end" if in_flight:
                in_flight.pop(argument % len(in_flight))[2].close()
            case "apply":
                routes.apply(table(routes.revision + 1, models=("a", "b")))
        assert routes.oldest_in_use() == {
            model: min((r for m, r, _ in in_flight if m == model), default=routes.revision)
            for model in ("a", "b")
        }


def test_the_document_tells_all(routes: Routes) -> None:
    assert routes.document() == {"revision": 0, "table": None, "oldestInUse": {}}

    routes.apply(table(3))
    with routes.in_use("m"):
        routes.apply(table(4))
        told = routes.document()

    assert json.loads(json.dumps(told)) == {
        "revision": 4,
        "table": {
            "schema": 1,
            "revision": 4,
            "aliases": {"alias": "m"},
            "models": {"m": {"stable": "1", "weights": {"1": 100}}},
            "loads": {},
        },
        "oldestInUse": {"m": 3},
    }


def test_the_document_has_the_whole_table(routes: Routes) -> None:
    """When the ConfigMap is gone, the operator writes it anew from what a gateway tells."""
    proof = Proof({"inputs": []}, [{"name": "output"}], 0.5)
    roll = Roll("1", "2", Phase.STEPPING, 1, 41)
    loads = Loads(
        "text", {"1": "", "2": ""}, {"2": proof}, roll, Policy("uid", "Keep"), {"later": 1}
    )
    applied = Table(
        42,
        {"m": ModelRoutes("1", {"1": 75, "2": 25}, {"later": 2})},
        aliases={"alias": "m"},
        loads={"m": loads, "new": Loads("", {"1": ""})},
        unknown={"later": 3},
    )
    routes.apply(applied)

    told = json.loads(json.dumps(routes.document()))

    assert parse(told["table"]) == applied
    assert told["oldestInUse"] == {"m": 42}

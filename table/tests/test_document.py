"""The document of the routing table: what is a valid one, and that nothing of it gets lost."""

import copy
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_table.document import (
    InvalidTable,
    Loads,
    ModelRoutes,
    Phase,
    Policy,
    Proof,
    Roll,
    Table,
    is_digest,
    is_version,
    parse,
    read,
    write,
)

PAGE = Path(__file__).parents[2] / "docs" / "routing.md"

DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "revision": 7,
    "aliases": {"classifier": "image_classifier"},
    "models": {
        "image_classifier": {"stable": "1", "weights": {"1": 95, "2": 5, "3": 0}},
        "identity": {"stable": "4"},
    },
}

VERSIONS = st.integers(1, 10**19 - 1).map(str)
NAMES = st.text(min_size=1, max_size=8)


@st.composite
def weights(draw: st.DrawFn, versions: st.SearchStrategy[list[str]]) -> dict[str, float]:
    """Percentages of some versions; now and then with decimals, or all on one."""
    names = draw(versions)
    scale = draw(st.sampled_from([1, 1000]))
    inner = st.integers(0, 100 * scale)
    cuts = sorted(draw(st.lists(inner, min_size=len(names) - 1, max_size=len(names) - 1)))
    bounds = [0, *cuts, 100 * scale]
    shares = [b - a for a, b in pairwise(bounds)]
    return {
        name: share if scale == 1 else share / scale
        for name, share in zip(names, shares, strict=True)
    }


SOME_WEIGHTS = weights(st.lists(VERSIONS, min_size=1, max_size=4, unique=True))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A valid table, with members of a later release."""
    later = st.dictionaries(st.sampled_from(["shadow", "digest", "Stable", "x"]), JSON, max_size=2)
    models: dict[str, Any] = {}
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        shares = draw(SOME_WEIGHTS)
        models[name] = {"stable": draw(st.sampled_from([*shares])), "weights": shares}
        models[name] |= draw(later)
    aliases = draw(st.dictionaries(NAMES, st.sampled_from([*models]))) if models else {}
    return {
        "schema": 1,
        "revision": draw(st.integers(min_value=1)),
        "models": models,
        "aliases": {alias: model for alias, model in aliases.items() if alias not in models},
        **draw(later),
    }


# The document


def test_a_table_is_read_whole() -> None:
    assert parse(DOCUMENT) == Table(
        revision=7,
        models={
            "image_classifier": ModelRoutes("1", {"1": 95, "2": 5, "3": 0}),
            "identity": ModelRoutes("4", {"4": 100}),
        },
        aliases={"classifier": "image_classifier"},
    )


def test_the_table_of_the_page_is_valid() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)

    table = parse(json.loads(block))

    assert table.ignored() == []
    assert any(len(routes.weights) > 1 for routes in table.models.values())
    assert table.aliases


@settings(max_examples=100, deadline=None, database=None)
@given(documents())
def test_what_is_written_is_what_was_read(document: dict[str, Any]) -> None:
    before = copy.deepcopy(document)
    table = parse(document)

    assert write(table) == {"loads": {}} | before
    assert parse(write(table)) == table
    assert json.loads(json.dumps(write(table))) == write(table)


def test_members_of_a_later_release_are_kept_and_named() -> None:
    document = copy.deepcopy(DOCUMENT) | {"engines": {"a": 1}}
    document["models"]["identity"]["weigths"] = {"5": 100}

    table = parse(document)

    assert table.ignored() == ["engines", "model 'identity': weigths"]
    assert write(table)["engines"] == {"a": 1}
    assert write(table)["models"]["identity"]["weigths"] == {"5": 100}


WEIGHTS = "model 'm': weights: "
FAULTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"schema": 2, "revision": 0}, ["schema: expected 1, got 2"]),
    ({"schema": True}, ["schema: expected 1, got true"]),
    ({"schema": ...}, ["schema: expected 1, got none"]),
    ({"revision": 0}, ["revision: expected a whole number from 1, got 0"]),
    ({"revision": True}, ["revision: expected a whole number from 1, got true"]),
    ({"revision": 1.0}, ["revision: expected a whole number from 1, got 1.0"]),
    ({"revision": "7"}, ["revision: expected a whole number from 1, got '7'"]),
    ({"revision": ...}, ["revision: expected a whole number from 1, got none"]),
    ({"models": ...}, ["models: expected an object, got none"]),
    ({"models": None}, ["models: expected an object, got null"]),
    ({"models": {"": {"stable": "1"}}}, ["model '': expected a name, got an empty one"]),
    ({"models": {"m": "1"}}, ["model 'm': expected an object, got '1'"]),
    ({"models": {"m": {}}}, ["model 'm': stable: expected a version such as '1', got none"]),
    (
        {"models": {"m": {"stable": 1}}},
        ["model 'm': stable: expected a version such as '1', got 1"],
    ),
    (
        {"models": {"m": {"stable": "01", "weights": {"01": 100}}}},
        [
            "model 'm': stable: expected a version such as '1', got '01'",
            WEIGHTS + "expected versions such as '1', got '01'",
        ],
    ),
    (
        {"models": {"m": {"stable": "1", "weights": {"2": 100}}}},
        ["model 'm': stable: expected one of the versions in weights, got '1'"],
    ),
    (
        {"models": {"m": {"stable": "1", "weights": [95, 5]}}},
        [WEIGHTS + "expected an object, got a list"],
    ),
    (
        {"models": {"m": {"stable": "1", "weights": {"1": 101, "2": -1}}}},
        [
            WEIGHTS + "version '1': expected a number of 0 to 100, got 101",
            WEIGHTS + "version '2': expected a number of 0 to 100, got -1",
        ],
    ),
    *(
        (
            {"models": {"m": {"stable": "1", "weights": {"1": 100, "2": weight}}}},
            [WEIGHTS + f"version '2': expected a number of 0 to 100, got {got}"],
        )
        for weight, got in [
            (math.nan, "nan"),
            (math.inf, "inf"),
            (10**400, str(10**400)),
            (True, "true"),
            ("5", "'5'"),
            (None, "null"),
        ]
    ),
    (
        {"models": {"m": {"stable": "1", "weights": {"1": 97}}}},
        [WEIGHTS + "expected a sum of 100, got 97"],
    ),
    (
        {"models": {"m": {"stable": "1", "weights": {"1": 33.3, "2": 33.3, "3": 33.3}}}},
        [WEIGHTS + "expected a sum of 100, got 99.9"],
    ),
    (
        {"models": {"m": {"stable": "1", "weights": {"1": 50, "2": 50.00000001}}}},
        [WEIGHTS + "expected a sum of 100, got 100.00000001"],
    ),
    (
        {"models": {"m": {"stable": "1", "weights": {}}}},
        [
            WEIGHTS + "expected a sum of 100, got 0",
            "model 'm': stable: expected one of the versions in weights, got '1'",
        ],
    ),
    ({"aliases": ["a"]}, ["aliases: expected an object, got a list"]),
    ({"aliases": {"": "m"}}, ["alias '': expected a name, got an empty one"]),
    (
        {"aliases": {"m": "m"}},
        ["alias 'm': expected a name that no model has, got that of one"],
    ),
    ({"aliases": {"a": "x"}}, ["alias 'a': expected the name of a model, got 'x'"]),
    ({"aliases": {"a": ["m"]}}, ["alias 'a': expected the name of a model, got a list"]),
    (
        {"aliases": {"a": "m", "b": "a"}},
        ["alias 'b': expected the name of a model, got 'a'"],
    ),
    (
        {"aliases": {"a" * 100: "m", "b": "x" * 100}},
        [f"alias 'b': expected the name of a model, got '{'x' * 64}'…"],
    ),
]


@pytest.mark.parametrize(("changes", "faults"), FAULTS, ids=[str(c)[:60] for c, _ in FAULTS])
def test_a_table_that_is_wrong_is_refused(changes: dict[str, Any], faults: list[str]) -> None:
    document = {"schema": 1, "revision": 7, "models": {"m": {"stable": "1"}}} | changes

    with pytest.raises(InvalidTable) as refused:
        parse({name: value for name, value in document.items() if value is not ...})

    assert list(refused.value.faults) == faults
    assert str(refused.value) == "\n".join(faults)


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(InvalidTable) as refused:
        parse(
            {
                "schema": 1,
                "revision": -1,
                "models": {"a": {"stable": "x"}, "b": 5},
                "aliases": {"c": "d"},
            }
        )

    assert list(refused.value.faults) == [
        "revision: expected a whole number from 1, got -1",
        "model 'a': stable: expected a version such as '1', got 'x'",
        "model 'b': expected an object, got 5",
        "alias 'c': expected the name of a model, got 'd'",
    ]


@settings(max_examples=100, deadline=None, database=None)
@given(JSON | documents(), JSON, st.data())
def test_anything_is_a_table_or_refused_with_sentences(
    document: Any, odd: Any, data: st.DataObject
) -> None:
    place = document
    while isinstance(place, dict) and place:
        name = data.draw(st.sampled_from([*place]))
        if data.draw(st.booleans()):
            place[name] = odd
        place = place[name]
    try:
        table = parse(document)
    except InvalidTable as refused:
        assert refused.faults
        assert all(fault for fault in refused.faults)
    else:
        assert write(table)["revision"] >= 1


def test_decimals_may_be_off_as_far_as_a_float_is() -> None:
    table = parse(
        {
            "schema": 1,
            "revision": 1,
            "models": {"m": {"stable": "1", "weights": dict.fromkeys("123", 33.3333333333)}},
        }
    )

    assert len(table.models["m"].weights) == 3


@pytest.mark.parametrize(
    ("text", "so"),
    [
        ("1", True),
        ("9" * 19, True),
        ("1" * 20, False),
        ("0", False),
        ("01", False),
        ("", False),
        ("1\n", False),
        ("+1", False),
        ("\u0661", False),
    ],
)
def test_what_a_version_is(text: str, so: bool) -> None:
    assert is_version(text) is so


# What loaders and the operator read


LOADS: dict[str, Any] = {
    "config": 'name: "m"',
    "versions": {"1": {"digest": f"sha256:{'a' * 64}"}, "2": {"digest": ""}},
    "proofs": {"2": {"request": {"inputs": []}, "outputs": None, "tolerance": 0.5}},
    "roll": {
        "from": "1",
        "to": "2",
        "phase": "Stepping",
        "step": 1,
        "since": 6,
        "engine": "",
    },
    "policy": {"uid": "u", "onDelete": "Unload"},
    "engines": {"engine-0": ["1"]},
}


def loads_of(**changes: Any) -> dict[str, Any]:
    """A table whose one model has these loads."""
    loads = {name: value for name, value in (LOADS | changes).items() if value is not ...}
    models = {"m": {"stable": "1", "weights": {"1": 95, "2": 5}}}
    return {"schema": 1, "revision": 7, "aliases": {}, "models": models, "loads": {"m": loads}}


def test_loads_are_read_and_written_whole() -> None:
    table = parse(loads_of())

    assert table.loads["m"] == Loads(
        config='name: "m"',
        versions={"1": f"sha256:{'a' * 64}", "2": ""},
        proofs={"2": Proof({"inputs": []}, None, 0.5)},
        roll=Roll("1", "2", Phase.STEPPING, 1, 6),
        policy=Policy("u", "Unload"),
        unknown={"engines": {"engine-0": ["1"]}},
    )
    assert table.ignored() == ["loads of model 'm': engines"]
    assert write(table) == loads_of()
    assert read(json.dumps(loads_of()).encode()) == table


def test_a_model_that_has_no_stable_version_yet_is_in_loads_alone() -> None:
    document = loads_of(roll=LOADS["roll"] | {"from": ""}) | {"models": {}}

    assert parse(document).loads["m"].roll == Roll("", "2", Phase.STEPPING, 1, 6)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"versions": ...}, "versions: expected an object, got none"),
        ({"config": 5}, "config: expected a text, got 5"),
        (
            {"versions": {"1": {"digest": "md5"}, "2": {"digest": ""}}},
            "version '1': expected a digest (sha256:… or an empty text), got an object",
        ),
        (
            {"versions": {"2": {"digest": ""}}, "roll": None},
            "versions: expected '1', which gateways may ask for, got none",
        ),
        (
            {"versions": {"1": {"digest": ""}}, "roll": None},
            "versions: expected '2', which gateways may ask for, got none",
        ),
        ({"roll": LOADS["roll"] | {"to": "3"}}, "roll: to: expected one of the versions, got '3'"),
        (
            {"roll": LOADS["roll"] | {"from": "2"}},
            "roll: from: expected another version than in to, got '2'",
        ),
        *(
            (
                {"roll": LOADS["roll"] | {"phase": phase}},
                f"roll: phase: expected a text such as Loading, got {got}",
            )
            for phase, got in [("", "''"), (None, "null"), (["Loading"], "a list")]
        ),
        (
            {"roll": LOADS["roll"] | {"since": 0}},
            "roll: since: expected a whole number from 1, got 0",
        ),
        ({"proofs": {"2": {}}}, "proof of version '2': request: expected an object, got none"),
        ({"policy": {"uid": "u"}}, "policy: onDelete: expected a text such as Keep, got none"),
        (
            {"policy": {"uid": "u", "onDelete": ""}},
            "policy: onDelete: expected a text such as Keep, got ''",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_loads_that_are_wrong_are_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidTable) as refused:
        parse(loads_of(**changes))

    assert list(refused.value.faults) == [f"loads of model 'm': {fault}"]


def test_a_phase_and_a_policy_of_a_later_release_are_kept() -> None:
    """They are the operator's: whoever routes and loads by the table goes on."""
    document = loads_of(
        roll=LOADS["roll"] | {"phase": "Shadowing"}, policy={"uid": "u", "onDelete": "Archive"}
    )

    loads = parse(document).loads["m"]

    assert loads.roll is not None
    assert (loads.roll.phase, loads.policy) == ("Shadowing", Policy("u", "Archive"))
    assert write(parse(document)) == document


def test_what_a_digest_is() -> None:
    assert is_digest(f"sha256:{'0' * 64}")
    assert not any(is_digest(text) for text in ("", "sha256:", "0" * 64, f"sha256:{'g' * 64}"))


def test_what_could_not_be_kept_is_refused() -> None:
    """orjson reads such a number, and does not write it again."""
    proof = {"2": {"request": {"inputs": [2**64]}}}

    with pytest.raises(InvalidTable, match="expected JSON"):
        read(json.dumps(loads_of(proofs=proof)).encode())

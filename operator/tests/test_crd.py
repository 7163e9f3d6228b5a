"""The custom resource and the operator mean the same: defaults, members, what a status may hold.

What the API server refuses, and with which sentence, is tested with a real one in k8s-tests.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate_operator import conditions
from tidegate_operator.resources import GROUP, PLURAL, VERSION
from tidegate_operator.situation import (
    Decision,
    Fail,
    LoaderSeen,
    Observed,
    VersionSeen,
    Wait,
    Write,
)
from tidegate_operator.spec import MOST_STEPS, read
from tidegate_table.document import Loads, ModelRoutes, Phase, Roll, Table

CRD = Path(__file__).parents[2] / "charts" / "tidegate" / "crds" / "modelrollouts.yaml"
NOW = "2026-01-01T00:00:00Z"
FULL = {
    "model": "m",
    "version": 2,
    "digest": "sha256:" + "0" * 64,
    "memory": "2Gi",
    "strategy": {
        "type": "SideBySide",
        "steps": [{"weight": 5, "hold": "90s"}],
        "bake": "1h30m",
        "drain": "0s",
    },
    "proof": {"configMapRef": {"name": "golden"}, "tolerance": "0.5"},
    "progressDeadline": "10m",
    "onFailure": "Pause",
    "onDelete": "Unload",
    "paused": True,
}


@pytest.fixture(scope="module")
def definition() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load(CRD.read_text())
    return found


@pytest.fixture(scope="module")
def schema(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    (version,) = definition["spec"]["versions"]
    found: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def rollout(spec: Mapping[str, Any], status: Any = None) -> dict[str, Any]:
    metadata = {"name": "a", "uid": "u", "generation": 3, "creationTimestamp": NOW}
    return {"metadata": metadata, "spec": spec, "status": status}


def defaulted(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` with the schema's defaults, as the API server makes it."""
    if isinstance(value, list):
        return [defaulted(each, schema["items"]) for each in value]
    if not isinstance(value, dict):
        return value
    whole = dict(value)
    for name, member in schema.get("properties", {}).items():
        if name not in whole and "default" in member:
            whole[name] = member["default"]
        if name in whole:
            whole[name] = defaulted(whole[name], member)
    return whole


def foreign(value: Any, schema: Mapping[str, Any], where: str = "") -> list[str]:
    """The members that the API server would drop without a word, and those of another type."""
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    expected = types.get(schema.get("type", ""), object)
    if not isinstance(value, expected):
        return [f"{where}: expected {schema['type']}, got {value!r}"]
    if isinstance(value, list):
        return [each for item in value for each in foreign(item, schema["items"], f"{where}[]")]
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return [
            each
            for name, member in value.items()
            for each in (
                foreign(member, known[name], f"{where}.{name}")
                if name in known
                else [f"{where}.{name}"]
            )
        ]
    return []


def test_it_has_the_names_that_the_operator_asks_for(definition: Mapping[str, Any]) -> None:
    spec = definition["spec"]
    (version,) = spec["versions"]

    assert (spec["group"], version["name"], spec["names"]["plural"]) == (GROUP, VERSION, PLURAL)
    assert definition["metadata"]["name"] == f"{PLURAL}.{GROUP}"
    assert version["subresources"] == {"status": {}}


@pytest.mark.parametrize(
    "spec",
    [
        {"model": "m", "version": 2},
        {"model": "m", "version": 2, "strategy": {}},
        {"model": "m", "version": 2, "proof": {"configMapRef": {"name": "golden"}}},
        FULL,
    ],
    ids=", ".join,
)
def test_its_defaults_are_the_operators(spec: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    assert read(rollout(defaulted(spec, schema["spec"]))) == read(rollout(spec))


def test_it_knows_every_member_that_the_operator_reads(schema: Mapping[str, Any]) -> None:
    assert foreign(FULL, schema["spec"]) == []
    assert schema["spec"]["properties"]["strategy"]["properties"]["steps"]["maxItems"] == MOST_STEPS


ROLL = Roll("1", "2", Phase.STEPPING, 1, 5)
TABLES = {
    "nothing": Table(1, {}),
    "first": Table(
        2, {}, loads={"m": Loads("", {"2": ""}, roll=Roll("", "2", Phase.LOADING, 0, 2))}
    ),
    "rolls": Table(
        5,
        {"m": ModelRoutes("1", {"1": 66.5, "2": 33.5})},
        loads={"m": Loads("", {"1": "", "2": ""}, roll=ROLL)},
    ),
    "rolled": Table(9, {"m": ModelRoutes("2", {"2": 100})}, loads={"m": Loads("", {"2": ""})}),
}
DECISIONS: dict[str, Decision] = {
    "wait": Wait("Draining", "…", gateways=("gateway-1",)),
    "fail": Fail("2", "CandidateFailed", "engine-1: wrong"),
    "back": Write(None, None, "RollingBack", "back"),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("decision", DECISIONS)
def test_it_keeps_all_that_a_status_holds(
    table: str, decision: str, schema: Mapping[str, Any]
) -> None:
    engine = LoaderSeen("engine-0", True, 9, versions={"2": VersionSeen(proven=True)})
    before: Mapping[str, Any] = {}
    for _ in range(2):
        document = rollout({"model": "m", "version": 2}, before)
        seen = Observed("m", TABLES[table], read(document), loaders=[engine])
        before = conditions.status_of(seen, DECISIONS[decision], 3, before, NOW)
        assert foreign(before, schema["status"]) == []

    other = conditions.conflict(3, "older", before, NOW)
    assert foreign(other, schema["status"]) == []


def test_the_columns_show_what_a_status_has(
    definition: Mapping[str, Any], schema: Mapping[str, Any]
) -> None:
    (version,) = definition["spec"]["versions"]
    kinds = {"Available", "Progressing", "RolledBack", "GatewaysSynced"}
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"]
        part, name, *_ = path.removeprefix(".").split(".", 2)
        if name.startswith("conditions"):
            assert path.split('"')[1] in kinds
        elif part != "metadata":
            assert name in schema[part]["properties"]

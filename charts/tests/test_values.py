"""values.yaml explains every value, and the schema lets in no other."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[1] / "tidegate"
WITHOUT_OPERATOR = Path(__file__).parent / "without-operator.yaml"
GENERATE = runpy.run_path(str(CHART.parent / "generate.py"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES_TEXT = (CHART / "values.yaml").read_text()

ROLLOUT = SCHEMA["properties"]["rollouts"]["additionalProperties"]
CRD = yaml.safe_load((CHART / "crds" / "modelrollouts.yaml").read_text())
# Of a ModelRollout's spec: what is the key of `rollouts`, and what is not offered yet.
NOT_IN_ROLLOUTS = {"model", "analysis", "strategy.shadow", "strategy.maxUnavailable"}
# Some that a member takes, and some that none does.
TEXTS = [
    *(
        "",
        "90s",
        "1h30m",
        "1.5h",
        "250ms",
        "s",
        "5",
        "0.01",
        "1e3",
        "-1",
        "2Gi",
        "1.5G",
        "2GB",
        "7m",
    ),
    *(f"sha256:{'0' * 64}", f"sha256:{'0' * 63}", f"sha256:{'G' * 64}", f"{'1' * 21}s", "1" * 21),
]

# What Kubernetes itself judges, or Helm: open on purpose.
OPEN = {"definitions.kubernetes", "properties.global"}


def test_every_value_has_a_comment() -> None:
    """A map is explained as a whole, or each of its members is."""
    groups: dict[str, dict[str, bool]] = {}
    for value in GENERATE["values"](VALUES_TEXT):
        parent, _, name = value.path.rpartition(".")
        groups.setdefault(parent, {})[name] = bool(value.comment)

    assert all(groups[""].values()), groups[""]
    half = {path: names for path, names in groups.items() if len({*names.values()}) > 1}
    assert half == {}
    # A list or a scalar without a comment above must be explained with the map around it.
    assert all(groups["gateway"].values())
    assert all(groups["engine"].values())


def test_a_comment_ends_as_a_sentence() -> None:
    unfinished = [
        value.path
        for value in GENERATE["values"](VALUES_TEXT)
        if value.comment and not value.comment.endswith(".")
    ]
    assert unfinished == []


def test_schema_and_values_have_the_same_members() -> None:
    values = yaml.safe_load(VALUES_TEXT)
    in_values = {path for path in _paths(values) if not path.startswith("gateway.settings.")}
    in_schema = {*_properties(SCHEMA, "")} - {"global", "engine.updateStrategy.rollingUpdate"}
    optional = {path for path in in_schema if path.startswith("gateway.settings.")}
    partly = re.compile(r"\.(resources|updateStrategy\.rollingUpdate|affinity)\.|^rollouts\.")

    def judged(paths: set[str]) -> set[str]:
        return {path for path in paths if not partly.search(path)}

    assert judged(in_values) == judged(in_schema - optional)


def test_every_object_of_the_schema_is_closed() -> None:
    loose = [path for path, schema in _objects(SCHEMA, "") if "additionalProperties" not in schema]
    assert {*loose} == OPEN


def test_the_schema_has_the_settings_of_the_gateway() -> None:
    text = (CHART / "values.schema.json").read_text()
    assert GENERATE["schema_text"](text) == text, "run `make generate`"


def test_rollouts_are_judged_as_the_api_server_judges_them() -> None:
    (version,) = CRD["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    theirs = {path: each for path, each in _members(spec, "") if path not in NOT_IN_ROLLOUTS}
    ours = dict(_members(ROLLOUT, ""))
    assert ours.keys() == theirs.keys()
    assert {*ROLLOUT["required"]} == {*spec["required"]} - {"model"}
    for path, wanted in theirs.items():
        given = ours[path]
        for limit in ("required", "minimum", "maximum", "maxItems"):
            assert given.get(limit) == wanted.get(limit), path
        # PodByPod has a sentence of the API server's own.
        assert given.get("enum", []) == [e for e in wanted.get("enum", []) if e != "PodByPod"]
        for text in TEXTS if _forms(wanted) else ():
            assert _takes(given, text) == _rules_take(wanted, text), (path, text)


def test_the_readme_has_the_values() -> None:
    text = (CHART / "README.md").read_text()
    assert GENERATE["readme_text"](text, VALUES_TEXT) == text, "run `make generate`"


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("gateway.replica=3", "at '/gateway': additional properties 'replica' not allowed"),
        ("gatway.replicas=3", "at '': additional properties 'gatway' not allowed"),
        ("gateway.image.pullpolicy=x", "additional properties 'pullpolicy' not allowed"),
        (
            "gateway.settings.deadline.max=5",
            "at '/gateway/settings/deadline': additional properties 'max' not allowed",
        ),
        ("gateway.settings.http.port=80", "additional properties 'port' not allowed"),
        ("gateway.settings.log.level=loud", "at '/gateway/settings/log/level': value must be one"),
        ("gateway.settings.drain.delay_s=-1", "at '/gateway/settings/drain/delay_s': minimum"),
        ("gateway.settings.drain=null", "at '/gateway/settings': missing property 'drain'"),
        ("engine.gpu.count=half", "at '/engine/gpu/count': got string, want integer"),
        ("engine.models=null", "at '/engine': missing property 'models'"),
        (
            "engine.models={identity}",
            "engine.models: expected none, since operator.enabled: `rollouts` says which versions "
            'serve, got ["identity"]',
        ),
        (
            "operator.enabled=false",
            "engine.models: expected the models that each engine loads, since operator.enabled is "
            "false, got none",
        ),
        ("rollouts.a.version=0", "at '/rollouts/a/version': minimum: got 0, want 1"),
        ("rollouts.a.verison=1", "additional properties 'verison' not allowed"),
        ("rollouts.a.strategy.bake=5", "at '/rollouts/a/strategy/bake': got number, want string"),
        (
            "rollouts.a_b.version=1,rollouts.a-b.version=1",
            "expected models whose names differ in letters and digits",
        ),
        (
            "rollouts._.version=1",
            "rollouts._: expected a model with a letter or digit in its name, after which its "
            "ModelRollout is named, got none",
        ),
        (
            "operator.enabled=false,engine.models={identity},rollouts.identity.version=1",
            "rollouts: expected the default or none, since operator.enabled is false and so nobody "
            'rolls models, got {"identity":{"version":1},"image_classifier":{"version":1}}',
        ),
        (
            "engine.enabled=false,gateway.settings.engine.address=a:1,"
            "rollouts.image_classifier.version=2",
            "rollouts: expected the default or none, since engine.enabled is false and so nobody "
            "rolls models, got ",
        ),
        (
            "gateway.settings.engine.protocol=inference-service",
            "gateway.settings.engine.protocol: expected kserve-v2, since operator.enabled: it "
            "rolls models in Tritons, which do not speak inference-service",
        ),
        (
            "gateway.settings.routing.config_map=mine",
            "gateway.settings.routing: expected the chart's own table, config_map and folder, "
            "since operator.enabled, got mine",
        ),
        (
            "gateway.settings.discovery.service=triton",
            "gateway.settings.discovery.service: expected none, since operator.enabled: it rolls "
            "models in the chart's own engines, got triton",
        ),
        ("engine.loader.fetch=move", "at '/engine/loader/fetch': value must be one of"),
        ("engine.repository.bucket=x", "additional properties 'bucket' not allowed"),
        ("engine.resources.limits.memory=4GB", "at '/engine/resources/limits/memory'"),
        ("engine.extraArgs[0]=strict", "at '/engine/extraArgs/0': 'strict' does not match"),
        (
            "engine.repository.hostPath=/models,engine.repository.existingClaim=models",
            "engine.repository: expected at most one of existingClaim, hostPath and volume, got "
            "existingClaim and hostPath",
        ),
        (
            "engine.enabled=false",
            "gateway.settings.engine.address: expected host:port of an engine, since "
            "engine.enabled is false, got none",
        ),
        (
            "engine.connectionAgeSeconds=5",
            "at '/engine': additional properties 'connectionAgeSeconds' not allowed",
        ),
        (
            "gateway.settings.discovery.source=dns",
            "at '/gateway/settings/discovery/source': value must be one of 'address', 'kubernetes'",
        ),
        (
            "engine.enabled=false,gateway.settings.discovery.source=kubernetes",
            "gateway.settings.discovery.service: expected the Service of your engines, since "
            "engine.enabled is false and gateway.settings.discovery.source is kubernetes, got none",
        ),
        (
            "gateway.settings.discovery.source=kubernetes,gateway.settings.engine.address=a:1",
            "gateway.settings.engine.address: expected none, since "
            "gateway.settings.discovery.source is kubernetes, got a:1",
        ),
        (
            "engine.enabled=false,gateway.settings.discovery.service=triton,"
            "gateway.settings.engine.address=a:1",
            "gateway.settings.engine.address: expected none, since "
            "gateway.settings.discovery.service is given, got a:1",
        ),
        (
            "gateway.settings.discovery.namespace=gpus",
            "gateway.settings.discovery.service: expected the Service of your engines in gpus, "
            "since gateway.settings.discovery.namespace is not the release's (default), got none",
        ),
        ("routing.revision=-1", "at '/routing/revision': minimum: got -1, want 0"),
        ("routing.models.a.weight.1=100", "additional properties 'weight' not allowed"),
        ("routing.models.a.weights.1=100", "at '/routing/models/a': missing property 'stable'"),
        (
            "routing.models.a.stable=1",
            "at '/routing/models/a/stable': got number, want string",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(
    run_helm: Any, argument: str, sentence: str
) -> None:
    done = run_helm("template", "tidegate", CHART, "--set", argument)
    assert done.returncode != 0
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("routing", "sentence"),
    [
        (
            {"models": {"a": {"stable": "v1"}}},
            "at '/routing/models/a/stable': 'v1' does not match pattern '^[1-9][0-9]{0,18}$'",
        ),
        (
            {"models": {"a": {"stable": "1", "weights": {"latest": 100}}}},
            "'latest' does not match pattern '^[1-9][0-9]{0,18}$'",
        ),
        (
            {"models": {"a": {"stable": "1", "weights": {"1": 101, "2": -1}}}},
            "at '/routing/models/a/weights/1': maximum: got 101, want 100",
        ),
        (
            {"models": {"a": {"stable": "1", "weights": {"1": 95, "2": 4.5}}}},
            "routing.models.a.weights: expected a sum of 100, got 99.5",
        ),
        (
            {"models": {"a": {"stable": "1", "weights": {"3": 95, "2": 5}}}},
            "routing.models.a.stable: expected one of the versions in weights (2, 3), got 1",
        ),
        (
            {"models": {"a": {"stable": "1"}}, "aliases": {"b": "c"}},
            "routing.aliases.b: expected a model of routing.models, got c",
        ),
        (
            {"models": {"a": {"stable": "1"}, "b": {"stable": "1"}}, "aliases": {"b": "a"}},
            "routing.aliases.b: expected a name that is no model's, got that of one",
        ),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(
    run_helm: Any, routing: dict[str, Any], sentence: str
) -> None:
    done = run_helm(
        *("template", "tidegate", CHART, "--values", WITHOUT_OPERATOR),
        *("--set-json", f"routing={json.dumps(routing)}"),
    )
    assert done.returncode != 0
    assert sentence in done.stderr


def test_a_table_of_the_chart_and_one_of_a_file_are_one_too_many(run_helm: Any) -> None:
    done = run_helm(
        *("template", "tidegate", CHART, "--values", WITHOUT_OPERATOR),
        "--set-string=routing.models.a.stable=1",
        "--set=gateway.settings.routing.table=/tables/mine.json",
    )
    assert done.returncode != 0
    assert (
        "gateway.settings.routing.table: expected none, since routing.models is given, got "
        "/tables/mine.json"
    ) in done.stderr


def _paths(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{name}.")


def _members(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, member in schema.get("properties", {}).items():
        found = _resolved(member)
        yield prefix + name, found
        yield from _members(_resolved(found.get("items", found)), f"{prefix}{name}.")


def _takes(schema: dict[str, Any], text: str) -> bool:
    if "anyOf" in schema:
        return any(_takes(choice, text) for choice in schema["anyOf"])
    is_text = schema["type"] == "string" and len(text) <= schema.get("maxLength", len(text))
    return is_text and re.search(schema["pattern"], text) is not None


def _rules_take(schema: dict[str, Any], text: str) -> bool:
    if text == "":
        return "self == ''" in _rules(schema)
    return len(text) <= schema.get("maxLength", len(text)) and all(
        re.search(form, text) for form in _forms(schema)
    )


def _forms(schema: dict[str, Any]) -> list[str]:
    # Within CEL's quotes each backslash stands twice.
    return [
        form.replace("\\\\", "\\") for form in re.findall(r"matches\('(.*?)'\)", _rules(schema))
    ]


def _rules(schema: dict[str, Any]) -> str:
    return " ".join(rule["rule"] for rule in schema.get("x-kubernetes-validations", ()))


def _properties(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    schema = _resolved(schema)
    for name, member in schema.get("properties", {}).items():
        yield prefix + name
        yield from _properties(member, f"{prefix}{name}.")


def _objects(schema: object, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, list):
        for number, member in enumerate(schema):
            yield from _objects(member, f"{path}.{number}")
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield path.removeprefix("."), schema
        for name, member in schema.items():
            yield from _objects(member, f"{path}.{name}")


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    return schema

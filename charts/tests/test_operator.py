"""What the chart makes with the operator: who may do what, and what is loaded by whom."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate_engine.loader import settings as loader_settings
from tidegate_gateway import settings as gateway_settings
from tidegate_operator import settings as operator_settings
from tidegate_operator.spec import read

CHART = Path(__file__).parents[1] / "tidegate"
VALUES_FILES = sorted(path.name for path in CHART.glob("values*.yaml"))
TABLE = "tidegate-routing"
FOLLOW = {
    "apiGroups": [""],
    "resources": ["configmaps"],
    "resourceNames": [TABLE],
    "verbs": ["get", "list", "watch"],
}

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


@pytest.fixture(params=VALUES_FILES)
def manifests(request: pytest.FixtureRequest, render: Render) -> list[Manifest]:
    return render("--values", CHART / request.param, operated=True)


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def pod(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    spec: Manifest = one(manifests, kind, name)["spec"]["template"]["spec"]
    return spec


def containers(spec: Manifest) -> Iterator[Manifest]:
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def container(spec: Manifest, name: str) -> Manifest:
    (found,) = [each for each in containers(spec) if each["name"] == name]
    return found


def environment(of: Manifest) -> dict[str, str]:
    return {each["name"]: each["value"] for each in of["env"] if "value" in each}


def mounts(of: Manifest) -> dict[str, tuple[str, bool]]:
    return {m["name"]: (m["mountPath"], m.get("readOnly", False)) for m in of["volumeMounts"]}


@pytest.mark.needs("go")
def test_kubernetes_and_the_crd_know_every_field(
    manifests: list[Manifest], strictly_valid: Callable[[list[Manifest]], None]
) -> None:
    strictly_valid(manifests)


def test_every_container_is_restricted(manifests: list[Manifest]) -> None:
    found = [
        each
        for kind, name in (
            ("Deployment", "tidegate-gateway"),
            ("Deployment", "tidegate-operator"),
            ("StatefulSet", "tidegate-engine"),
        )
        for each in containers(pod(manifests, kind, name))
    ]
    assert {each["name"] for each in found} >= {"gateway", "operator", "triton", "loader"}
    for each in found:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["requests"].keys() >= {"cpu", "memory"}
        assert "memory" in each["resources"]["limits"]


def test_each_part_may_do_what_it_does_and_no_more(manifests: list[Manifest]) -> None:
    rules = {m["metadata"]["name"]: m["rules"] for m in manifests if m["kind"] == "Role"}
    assert rules.keys() == {
        "tidegate-gateway",
        "tidegate-gateway-table",
        "tidegate-engine",
        "tidegate-operator",
    }
    assert rules["tidegate-gateway-table"] == rules["tidegate-engine"] == [FOLLOW]
    may = [
        (*rule["resources"], tuple(rule["verbs"]), tuple(rule.get("resourceNames", ())))
        for rule in rules["tidegate-operator"]
    ]
    assert may == [
        ("modelrollouts", ("list", "watch"), ()),
        ("modelrollouts/status", ("patch",), ()),
        ("configmaps", ("create",), ()),
        ("configmaps", ("update",), (TABLE,)),
        ("configmaps", ("get",), ()),
        ("pods", ("list",), ()),
        ("events", ("create",), ()),
        ("leases", ("create",), ()),
        ("leases", ("get", "update"), ("tidegate-operator",)),
    ]
    bound = {
        m["metadata"]["name"]: m["subjects"][0]["name"]
        for m in manifests
        if m["kind"] == "RoleBinding"
    }
    assert bound == {
        "tidegate-gateway": "tidegate-gateway",
        "tidegate-gateway-table": "tidegate-gateway",
        "tidegate-engine": "tidegate-engine",
        "tidegate-operator": "tidegate-operator",
    }


def test_the_table_needs_a_token_where_the_dns_tells_of_engines(render: Render) -> None:
    manifests = render("--set=gateway.settings.discovery.source=address", operated=True)
    roles = {m["metadata"]["name"] for m in manifests if m["kind"] == "Role"}
    assert roles == {"tidegate-gateway-table", "tidegate-engine", "tidegate-operator"}
    gateway = pod(manifests, "Deployment", "tidegate-gateway")
    assert "token" in mounts(container(gateway, "gateway"))


def test_tokens_are_where_they_are_needed_and_not_in_triton(manifests: list[Manifest]) -> None:
    engine = pod(manifests, "StatefulSet", "tidegate-engine")
    assert {each["name"] for each in containers(engine) if "token" in mounts(each)} == {"loader"}
    for name in ("gateway", "operator"):
        spec = pod(manifests, "Deployment", f"tidegate-{name}")
        assert "token" in mounts(container(spec, name))


def test_the_key_is_in_the_engines_pods_alone(manifests: list[Manifest]) -> None:
    engine = pod(manifests, "StatefulSet", "tidegate-engine")
    with_key = {
        each["name"]
        for each in containers(engine)
        if "secretKeyRef" in json.dumps(each.get("env", []))
    }
    assert with_key == {"triton", "loader"}
    others = [m for m in manifests if m["kind"] not in ("StatefulSet", "Secret")]
    assert "secretKeyRef" not in json.dumps(others)
    arguments = container(engine, "triton")["args"]
    assert "--http-restricted-api=model-repository:tidegate-key=$(TIDEGATE_KEY)" in arguments
    assert "--grpc-restricted-protocol=model-repository:tidegate-key=$(TIDEGATE_KEY)" in arguments


def test_a_key_of_ones_own_is_used(render: Render) -> None:
    manifests = render("--set=engine.repositoryKey.existingSecret=mine", operated=True)
    assert not [m for m in manifests if m["kind"] == "Secret"]
    triton = container(pod(manifests, "StatefulSet", "tidegate-engine"), "triton")
    assert {"name": "mine", "key": "key"} in [
        each["valueFrom"]["secretKeyRef"] for each in triton["env"] if "valueFrom" in each
    ]


def test_triton_starts_with_nothing_loaded(manifests: list[Manifest]) -> None:
    triton = container(pod(manifests, "StatefulSet", "tidegate-engine"), "triton")
    assert "--model-control-mode=explicit" in triton["args"]
    assert "--strict-readiness=false" in triton["args"]
    assert "--exit-on-error=true" not in triton["args"]
    assert not [each for each in triton["args"] if each.startswith("--load-model")]


def test_the_loader_alone_writes_what_triton_loads_from(manifests: list[Manifest]) -> None:
    engine = pod(manifests, "StatefulSet", "tidegate-engine")
    loader, triton = container(engine, "loader"), container(engine, "triton")
    assert loader["restartPolicy"] == "Always"
    assert mounts(loader)["local"] == ("/models", False)
    assert mounts(loader)["models"] == ("/repository", True)
    assert mounts(triton)["local"] == ("/models", True)
    assert "models" not in mounts(triton)
    assert "--model-repository=/models" in triton["args"]


def test_linked_versions_are_where_the_loader_saw_them(render: Render) -> None:
    manifests = render("--set=engine.loader.fetch=link", operated=True)
    engine = pod(manifests, "StatefulSet", "tidegate-engine")
    assert mounts(container(engine, "triton"))["models"] == ("/repository", True)
    assert mounts(container(engine, "loader"))["models"] == ("/repository", True)


def test_models_of_the_image_are_copied_for_the_loader(render: Render) -> None:
    engine = pod(render(operated=True), "StatefulSet", "tidegate-engine")
    first = engine["initContainers"][0]
    assert first["image"] == container(engine, "triton")["image"]
    assert first["command"][-2:] == ["/opt/tidegate/models", "/repository"]
    # Over files that may not be written to, the second run would fail.
    assert "--no-preserve=mode" in first["command"]

    claimed = render("--set=engine.repository.existingClaim=models", operated=True)
    engine = pod(claimed, "StatefulSet", "tidegate-engine")
    assert [each["name"] for each in engine["initContainers"]] == ["loader"]
    (volume,) = [each for each in engine["volumes"] if each["name"] == "models"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}


def test_the_parts_take_the_settings_that_they_get(
    manifests: list[Manifest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = {
        "gateway": pod(manifests, "Deployment", "tidegate-gateway"),
        "operator": pod(manifests, "Deployment", "tidegate-operator"),
        "loader": pod(manifests, "StatefulSet", "tidegate-engine"),
    }

    def taken(name: str, load: Callable[[list[str]], Any]) -> Any:
        with monkeypatch.context() as patched:
            for variable, value in environment(container(parts[name], name)).items():
                # What is a folder in the container is one here.
                patched.setenv(variable, str(tmp_path) if value.startswith("/") else value)
            return load([])

    gateway = taken("gateway", gateway_settings.load)
    operator = taken("operator", operator_settings.load)
    loader = taken("loader", loader_settings.load)
    assert {gateway.routing.config_map, operator.table.config_map, loader.table.config_map} == {
        TABLE
    }
    assert gateway.engine.loader_port == operator.engines.loader_port == loader.http.port == 8003
    assert "app.kubernetes.io/instance=tidegate" in operator.engines.selector
    assert operator.lease.name == "tidegate-operator"


def test_every_part_reports_at_its_port(manifests: list[Manifest]) -> None:
    loader = container(pod(manifests, "StatefulSet", "tidegate-engine"), "loader")
    assert loader["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "loader"}
    assert loader["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "loader"}
    ports = one(manifests, "Service", "tidegate-engine")["spec"]["ports"]
    assert {each["name"]: each["port"] for each in ports} == {
        "grpc": 8001,
        "metrics": 8002,
        "loader": 8003,
    }


def test_there_is_one_operator_at_a_time(manifests: list[Manifest]) -> None:
    spec = one(manifests, "Deployment", "tidegate-operator")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_its_selector_is_as_in_chart_0_1_0(manifests: list[Manifest]) -> None:
    assert one(manifests, "Deployment", "tidegate-operator")["spec"]["selector"] == {
        "matchLabels": {
            "app.kubernetes.io/name": "tidegate",
            "app.kubernetes.io/instance": "tidegate",
            "app.kubernetes.io/component": "operator",
        }
    }


def test_helm_brings_the_kind(run_helm: Any) -> None:
    done = run_helm("show", "crds", CHART)
    assert done.returncode == 0, done.stderr
    (definition,) = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert definition == yaml.safe_load((CHART / "crds" / "modelrollouts.yaml").read_text())


def test_each_entry_of_rollouts_is_a_model_rollout(render: Render, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        """
rollouts:
  image_classifier: null
  ResNet_50:
    version: 3
    strategy: {steps: [{weight: 5, hold: 30s}], bake: 1m, drain: 10s}
    proof: {configMapRef: {name: golden}, tolerance: "0.01"}
    onDelete: Unload
"""
    )
    manifests = render("--values", values, operated=True)
    (rollout,) = [m for m in manifests if m["kind"] == "ModelRollout"]
    assert rollout["metadata"]["name"] == "resnet-50"
    given = yaml.safe_load(values.read_text())["rollouts"]["ResNet_50"]
    assert rollout["spec"] == {"model": "ResNet_50", **given}
    # As the operator reads it.
    rollout["metadata"]["uid"] = "u"
    assert read(rollout).spec.version == "3"


def test_the_default_is_the_example_model(render: Render) -> None:
    (rollout,) = [m for m in render(operated=True) if m["kind"] == "ModelRollout"]
    assert rollout["spec"] == {"model": "image_classifier", "version": 1}


@pytest.mark.parametrize(
    "mode",
    [
        ["--set=engine.enabled=false,gateway.settings.engine.address=triton.example.com:8001"],
        ["--set=operator.enabled=false", "--set=engine.models={identity}"],
    ],
    ids=["engines of one's own", "switched off"],
)
def test_without_it_nothing_of_it_is_made(mode: list[str], render: Render) -> None:
    manifests = render(*mode, operated=True)
    assert not [m for m in manifests if m["kind"] in ("ModelRollout", "Secret")]
    text = json.dumps(manifests)
    assert "loader" not in text.lower()
    assert "tidegate-operator" not in text
    assert TABLE not in text


def test_without_it_rollouts_may_be_emptied(render: Render) -> None:
    manifests = render("--set=rollouts.image_classifier=null")
    assert "StatefulSet" in {m["kind"] for m in manifests}


def test_the_notes_tell_how_to_wait_for_the_models(run_helm: Any) -> None:
    done = run_helm(
        *("install", "tidegate", CHART, "--namespace=tidegate", "--dry-run=client"),
        "--set=rollouts.ResNet_50.version=3",
    )
    assert done.returncode == 0, done.stderr
    _, _, notes = done.stdout.partition("\nNOTES:\n")
    (line,) = [line.strip() for line in notes.splitlines() if "condition=Available" in line]
    assert line == (
        "kubectl --namespace tidegate wait --for=condition=Available --timeout=10m "
        "modelrollout/resnet-50 modelrollout/image-classifier"
    )


def test_helm_test_waits_for_the_model_within_its_own_deadline(manifests: list[Manifest]) -> None:
    spec = one(manifests, "Pod", "tidegate-test")["spec"]
    (argument,) = [a for a in spec["containers"][0]["args"] if a.startswith("--patience=")]
    # Then three answers, of at most 30 s each.
    assert 30 <= int(argument.partition("=")[2]) <= spec["activeDeadlineSeconds"] - 3 * 30

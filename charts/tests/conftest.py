"""Helm for the chart's tests: what it renders, and what it refuses."""

import copy
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.build import provide_tools
from node.parts import cache_folder

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "tidegate"
WITHOUT_OPERATOR = Path(__file__).parent / "without-operator.yaml"

KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0"
# Names the version of Kubernetes that the test cluster runs.
KUBERNETES_MODULE = ROOT / "k8s-tests" / "node" / "src" / "hyper"

Manifest = dict[str, Any]
RunHelm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[Manifest]]


@pytest.fixture(scope="session")
def run_helm(tmp_path_factory: pytest.TempPathFactory) -> RunHelm:
    """Runs Helm with arguments, away from the user's own settings of it."""
    found = provide_tools(cache_folder(os.environ), print)["helm"]
    home = tmp_path_factory.mktemp("helm")
    environment = {
        "PATH": os.environ["PATH"],
        # For what it keeps of a cluster.
        "HOME": str(home),
        "HELM_CACHE_HOME": str(home),
        "HELM_CONFIG_HOME": str(home),
        "HELM_DATA_HOME": str(home),
    }

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [found, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment,
        )

    return run


@pytest.fixture(scope="session")
def render(run_helm: RunHelm) -> Render:
    """The objects that the chart makes with further arguments for `helm template`; with the
    operator only where a test says so."""

    @functools.cache
    def template(release: str, chart: Path, arguments: tuple[str | Path, ...]) -> list[Manifest]:
        done = run_helm("template", release, chart, "--namespace=tidegate", *arguments)
        assert done.returncode == 0, done.stderr
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]

    def manifests(
        *arguments: str | Path,
        release: str = "tidegate",
        chart: Path = CHART,
        operated: bool = False,
    ) -> list[Manifest]:
        mode = () if operated else ("--values", WITHOUT_OPERATOR)
        return copy.deepcopy(template(release, chart, (*mode, *arguments)))

    return manifests


@pytest.fixture(scope="session")
def strictly_valid(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[list[Manifest]], None]:
    """Asserts that Kubernetes, in the version of the test cluster, knows every field of objects."""
    kubeconform = _kubeconform()
    schemas = tmp_path_factory.mktemp("schemas")
    module = json.loads(
        _output("go", "mod", "download", "-json", "k8s.io/kubernetes", cwd=KUBERNETES_MODULE)
    )
    swagger = Path(module["Dir"]) / "api" / "openapi-spec" / "swagger.json"
    _output(sys.executable, ROOT / "charts" / "strict_schemas.py", swagger, schemas)
    (schemas / "modelrollout-tidegate-v1alpha1.json").write_text(json.dumps(_own_schema()))

    def check(manifests: list[Manifest]) -> None:
        done = subprocess.run(
            [
                *(kubeconform, "-strict", "-summary"),
                *("-schema-location", f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"),
            ],
            input=yaml.safe_dump_all(manifests),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{len(manifests)} resources found" in done.stdout
        assert f"Valid: {len(manifests)}," in done.stdout

    return check


def _own_schema() -> dict[str, Any]:
    """What the chart's own resource may hold, as strictly as the others."""
    text = (CHART / "crds" / "modelrollouts.yaml").read_text()
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    return _closed(version["schema"]["openAPIV3Schema"])


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    closed = dict(schema)
    if "properties" in schema:
        closed["properties"] = {k: _closed(v) for k, v in schema["properties"].items()}
        closed["additionalProperties"] = False
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    return closed


def _kubeconform() -> Path:
    """Built once by Go, which checks it against the public record of modules."""
    folder = ROOT / ".run" / "charts" / f"kubeconform-{KUBECONFORM.rpartition('@')[2]}"
    if not (folder / "kubeconform").exists():
        _output("go", "install", KUBECONFORM, env=os.environ | {"GOBIN": str(folder)})
    return folder / "kubeconform"


def _output(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, **options
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)

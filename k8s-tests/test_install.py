"""A team installs Tidegate with Helm, and it answers."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from installation import CHART, NAMESPACE, RELEASE, ROOT, bring_kind, install_words
from kubernetes import Kubernetes, eventually
from tidegate_engine.artefacts import artefact_path, default_cache

VALUES_FILES = ("values.yaml", "values-local.yaml", "values-gpu.yaml")


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_a_photo_is_answered_through_port_forward_as_the_page_says(
    release: Kubernetes, kube: Kubernetes, tmp_path: Path, page: str
) -> None:
    text = (ROOT / page).read_text()
    (command,) = re.findall(r"^curl -F .*$", text, re.MULTILINE)
    forwards = re.findall(r"^kubectl .*port-forward (\S+) 8080:(\d+)$", text, re.MULTILINE)
    ((service, port),) = forwards
    (tmp_path / "photo.jpg").write_bytes(artefact_path("coffee.png", default_cache()).read_bytes())
    with kube.forwarded(NAMESPACE, service, int(port)) as address:
        ended = subprocess.run(
            [*shlex.split(command.replace("127.0.0.1:8080", address)), "--silent", "--fail"],
            cwd=tmp_path, capture_output=True, check=True, timeout=60,
        )  # fmt: skip
    answer = json.loads(ended.stdout)
    assert answer["top"][0]["label"] == "espresso"


def test_helm_test_passes(release: Kubernetes, kube: Kubernetes) -> None:
    said = kube.helm("test", RELEASE, f"--namespace={NAMESPACE}", "--logs")
    assert "Phase:          Succeeded" in said, said


def test_three_engines_and_two_gateways_are_ready(release: Kubernetes, kube: Kubernetes) -> None:
    engines = kube.get("statefulset", f"--namespace={NAMESPACE}", f"{RELEASE}-engine")
    gateways = kube.get("deployment", f"--namespace={NAMESPACE}", f"{RELEASE}-gateway")
    assert (engines["status"]["readyReplicas"], gateways["status"]["readyReplicas"]) == (3, 2)
    nodes = {
        pod["spec"]["nodeName"]
        for pod in kube.get("pods", f"--namespace={NAMESPACE}",
                            "--selector=app.kubernetes.io/component=gateway")["items"]
    }  # fmt: skip
    assert len(nodes) == min(2, len(kube.get("nodes")["items"]))


@pytest.mark.parametrize("values", VALUES_FILES)
def test_the_api_server_takes_every_values_file(kube: Kubernetes, values: str) -> None:
    bring_kind(kube)
    rendered = kube.helm("template", "dry", str(CHART), f"--values={CHART / values}")
    said = kube.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=rendered)
    assert "statefulset.apps/dry-tidegate-engine created (server dry run)" in said


def test_an_upgrade_from_another_chart_version_changes_no_immutable_field(
    release: Kubernetes, kube: Kubernetes, tmp_path: Path
) -> None:
    kube.helm("package", str(CHART), "--version=9.9.9", f"--destination={tmp_path}")
    (package,) = tmp_path.glob("*.tgz")
    words = [str(package) if word == str(CHART) else word for word in install_words()]
    kube.helm(*words)
    assert "tidegate-9.9.9" in kube.helm("list", f"--namespace={NAMESPACE}")
    kube.helm(*install_words())


def test_what_uninstall_leaves(kube: Kubernetes) -> None:
    namespace = "uninstalled"
    words = [word.replace(f"--namespace={NAMESPACE}", f"--namespace={namespace}")
             for word in install_words()]  # fmt: skip
    kube.helm(*words, "--set=engine.replicas=1,gateway.replicas=1")
    kube.helm("uninstall", RELEASE, f"--namespace={namespace}", "--wait", "--cascade=foreground")
    kinds = kube.kubectl("api-resources", "--verbs=list", "--namespaced", "--output=name").split()
    kinds = [kind for kind in kinds if not kind.startswith("events")]
    # What every namespace has.
    expected = {"configmap/kube-root-ca.crt", "serviceaccount/default"}

    def left() -> set[str]:
        words = ("get", ",".join(kinds), f"--namespace={namespace}", "--output=name")
        return set(kube.kubectl(*words).split())

    # Pods take their grace period to leave, and Helm does not always wait for all of it.
    eventually(lambda: left() <= expected, "nothing of the release is left", timeout_s=90)
    assert left() == expected
    kube.kubectl("delete", "namespace", namespace)

"""The release that the tests install: its names, and how."""

from pathlib import Path

from kubernetes import Kubernetes

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "tidegate"
VALUES = Path(__file__).parent / "values.yaml"
NAMESPACE = "tidegate"
RELEASE = "tidegate"
GATEWAYS = "app.kubernetes.io/component=gateway"
ENGINES = "app.kubernetes.io/component=engine"


def install_words() -> list[str]:
    """`helm upgrade --install` of the release of all tests."""
    return [
        "upgrade",
        "--install",
        RELEASE,
        str(CHART),
        f"--namespace={NAMESPACE}",
        "--create-namespace",
        f"--values={CHART / 'values-local.yaml'}",
        f"--values={VALUES}",
        "--wait",
        "--timeout=4m",
    ]


def uninstall(kube: Kubernetes, namespace: str) -> None:
    """Take a release away, if it is there, and wait for its pods."""
    words = (RELEASE, f"--namespace={namespace}", "--ignore-not-found")
    kube.helm("uninstall", *words, "--wait", "--cascade=foreground")


def remove(kube: Kubernetes, namespace: str) -> None:
    """Take a release away, and its namespace with all that is in it."""
    uninstall(kube, namespace)
    kube.kubectl("delete", "namespace", namespace, "--ignore-not-found")


def bring_kind(kube: Kubernetes) -> None:
    """Have the kind ModelRollout as the chart has it, whoever brought which one before: Helm brings
    it with the first release and never again."""
    kube.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={CHART / 'crds'}")
    kube.kubectl(
        "wait", "--for=condition=Established", "crd/modelrollouts.tidegate.dev", "--timeout=60s"
    )

"""The release that the tests install: its names, and how."""

from pathlib import Path

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

"""The cluster of the tests, the release in it, and what is kept when a test fails.

CONTEXT=name runs them on a cluster of yours, which must be for tests: they install, kill and
remove. Nothing is ever done in a context that was not named. Without it they bring up that of
`make cluster`, and take it down again unless it was up before.
"""

import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from failures import keep, log_words
from installation import ENGINES, GATEWAYS, NAMESPACE, ROOT, install_words, remove
from kubernetes import Kubernetes
from node.cluster import Cluster
from node.config import Options
from node.errors import ClusterError
from node.layout import CONTEXT
from stage import Stage

EVIDENCE = ("test_disruption.py", "test_engines.py", "test_outages.py", "rolls/")

IMAGES = ROOT / ".run" / "images"

# Of the whole cluster, and of the release of most tests.
KEPT = {
    "pods.txt": ("get", "pods", "--all-namespaces", "--output=wide"),
    "nodes.txt": ("describe", "nodes"),
    "events.txt": ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
    "describe.txt": ("describe", "pods,services,endpointslices", "--all-namespaces"),
    "gateway.log": log_words(NAMESPACE, GATEWAYS),
    "engine.log": log_words(NAMESPACE, ENGINES),
    "gateway-before.log": log_words(NAMESPACE, GATEWAYS, "--previous"),
    "engine-before.log": log_words(NAMESPACE, ENGINES, "--previous"),
}

_failed = pytest.StashKey[bool]()
_kube = pytest.StashKey[Kubernetes]()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The test cluster, with the images in it. For tests that break nodes; others take `kube`."""
    subprocess.run([sys.executable, ROOT / "setup" / "images.py"], check=True)
    own = Cluster()
    try:
        was_up = bool(own.nodes)
    except ClusterError:
        was_up = False
    try:
        own.up(Options())
        own.load(sorted(IMAGES.glob("*.tar")))
        yield own
    finally:
        if not was_up:
            own.down()


@pytest.fixture(scope="session")
def kube(request: pytest.FixtureRequest) -> Kubernetes:
    """The cluster that was named, or the test cluster."""
    if named := os.environ.get("CONTEXT"):
        made = Kubernetes(named, None, None)
    else:
        own: Cluster = request.getfixturevalue("cluster")
        made = Kubernetes(CONTEXT, own.kubeconfig, own.layout.tools)
    request.config.stash[_kube] = made
    return made


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """Where releases are installed."""
    with ExitStack() as stack:
        yield Stage(stack)


@pytest.fixture
def release(kube: Kubernetes, stage: Stage) -> Kubernetes:
    """Three engines and two gateways, installed as the chart's page tells; for all tests that do
    not change it for good."""
    return stage.shows("release", lambda: _installed(kube))


@contextmanager
def _installed(kube: Kubernetes) -> Iterator[Kubernetes]:
    try:
        kube.helm(*install_words(), timeout_s=400)
        yield kube
    finally:
        remove(kube, NAMESPACE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = _fixtures(item)
        if "kube" in fixtures:
            item.add_marker(pytest.mark.needs("cluster"))
        if "cluster" in fixtures:
            item.add_marker(pytest.mark.needs("own-cluster"))


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return tuple(getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # Not from the test's fixtures: the one that failed may have been in the way of it.
    kube = item.config.stash.get(_kube, None) if "kube" in _fixtures(item) else None
    if call.excinfo is not None and kube is not None and not item.stash.get(_failed, False):
        item.stash[_failed] = True
        folder = keep(kube, item.name, KEPT)
        report.sections.append(("the cluster's state", f"kept in {folder}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the evidence of the zero-failure tests, which pytest keeps to itself when they pass."""
    for report in terminalreporter.getreports("passed"):
        if report.when == "call" and any(f"k8s-tests/{name}" in report.nodeid for name in EVIDENCE):
            terminalreporter.section(f"evidence: {report.nodeid.rpartition('::')[2]}")
            terminalreporter.write(report.capstdout)

"""The release of the tests of rolls, installed once; each test begins and ends with version 1."""

import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from installation import ENGINES, GATEWAYS, ROOT
from kubernetes import CommandFailed, Kubernetes
from node.cluster import Cluster
from rolls.load import MODEL, Watch, begin, plan
from rolls.release import (
    EXAMPLES,
    NAMESPACE,
    OPERATORS,
    RELEASE,
    Rolls,
    install_words,
    make_repository,
    rollout,
)
from traffic_pod import traffic

# As the conftest above has it, which keeps what is of the cluster and not of this release.
_FAILURES = ROOT / ".run" / "e2e"
_LOGS = {
    "gateway.log": (GATEWAYS, "gateway"),
    "triton.log": (ENGINES, "triton"),
    "loader.log": (ENGINES, "loader"),
    "operator.log": (OPERATORS, "operator"),
}
_rolls = pytest.StashKey[Rolls]()


@pytest.fixture(scope="session")
def installed(
    cluster: Cluster,
    kube: Kubernetes,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Rolls]:
    """The release, with version 1 of both models serving."""
    repository = tmp_path_factory.mktemp("rolls") / "models"
    make_repository(repository)
    with kube.proxied() as api:
        rolls = Rolls(kube, cluster, api, repository)
        request.config.stash[_rolls] = rolls
        try:
            kube.helm(*install_words(repository), timeout_s=400)
            kube.kubectl("apply", f"--filename={EXAMPLES / 'proof.yaml'}", f"-n={NAMESPACE}")
            rolls.await_settled(MODEL, 1)
            rolls.await_settled("image_classifier", 1)
            yield rolls
        finally:
            words = (RELEASE, f"--namespace={NAMESPACE}", "--wait", "--cascade=foreground")
            kube.helm("uninstall", *words)
            kube.kubectl("delete", "namespace", NAMESPACE)


@pytest.fixture
def rolls(installed: Rolls) -> Iterator[Rolls]:
    """The release; in the end version 1 of the model `versioned` serves alone again."""
    yield installed
    installed.apply(rollout(MODEL, 1, steps=(), bake="0s", drain="1s"))
    installed.await_settled(MODEL, 1)


@pytest.fixture(scope="module")
def watch(installed: Rolls) -> Iterator[Watch]:
    """Steady traffic on the model `versioned` for the tests of a module."""
    with traffic(installed.kube, NAMESPACE, plan(), {}, asked_directly=True) as control:
        begin(control)
        found = Watch(control)
        yield found
        found.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    rolls = item.config.stash.get(_rolls, None)
    if call.excinfo is not None and rolls is not None:
        report.sections.append(("the release's state", f"kept in {keep_state(rolls, item.name)}"))
    return report


def keep_state(rolls: Rolls, name: str) -> Path:
    """Write what the release's parts log, and where its rolls stand; returns the folder."""
    folder = _FAILURES / "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    folder.mkdir(parents=True, exist_ok=True)
    logs = {
        file: ("logs", f"--selector={selector}", f"--container={container}", "--prefix",
               "--timestamps", "--tail=20000")
        for file, (selector, container) in _LOGS.items()
    }  # fmt: skip
    for file, words in {
        "rollouts.yaml": ("get", "modelrollouts,configmaps", "--output=yaml"),
        **{f"rolls-{file}": words for file, words in logs.items()},
        **{f"rolls-before-{file}": (*words, "--previous") for file, words in logs.items()},
    }.items():
        try:
            said = rolls.kube.kubectl(*words, f"--namespace={NAMESPACE}")
        except (CommandFailed, subprocess.TimeoutExpired) as error:
            said = str(error)
        (folder / file).write_text(said)
    return folder

"""The release of the tests of rolls, installed once; each test begins and ends with version 1."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from failures import keep, log_words
from installation import ENGINES, GATEWAYS, remove
from kubernetes import Kubernetes
from node.cluster import Cluster
from rolls.load import MODEL, Watch, begin, plan
from rolls.release import (
    EXAMPLES,
    NAMESPACE,
    OPERATORS,
    Rolls,
    install_words,
    make_repository,
    rollout,
)
from stage import Stage
from traffic_pod import traffic

_LOGS = {
    f"{container}.log": log_words(NAMESPACE, selector, f"--container={container}", "--timestamps")
    for container, selector in {
        "gateway": GATEWAYS,
        "triton": ENGINES,
        "loader": ENGINES,
        "operator": OPERATORS,
    }.items()
}
# Of this release; the conftest above keeps what is of the cluster.
KEPT = {
    "rollouts.yaml": (
        "get",
        "modelrollouts,configmaps",
        f"--namespace={NAMESPACE}",
        "--output=yaml",
    ),
    **{f"rolls-{file}": words for file, words in _LOGS.items()},
    **{f"rolls-before-{file}": (*words, "--previous") for file, words in _LOGS.items()},
}
_rolls = pytest.StashKey[Rolls]()


@pytest.fixture(scope="module")
def installed(
    cluster: Cluster,
    kube: Kubernetes,
    stage: Stage,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Rolls:
    """The release, with version 1 of both models serving."""

    @contextmanager
    def installing() -> Iterator[Rolls]:
        repository = tmp_path_factory.mktemp("rolls") / "models"
        make_repository(repository)
        with kube.proxied() as api:
            made = Rolls(kube, cluster, api, repository)
            request.config.stash[_rolls] = made
            with _served(made):
                yield made

    return stage.shows("rolls", installing)


@contextmanager
def _served(rolls: Rolls) -> Iterator[None]:
    kube = rolls.kube
    try:
        kube.helm(*install_words(rolls.repository), timeout_s=400)
        kube.kubectl("apply", f"--filename={EXAMPLES / 'proof.yaml'}", f"-n={NAMESPACE}")
        rolls.await_settled(MODEL, 1)
        rolls.await_settled("image_classifier", 1)
        yield
    finally:
        remove(kube, NAMESPACE)


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
        folder = keep(rolls.kube, item.name, KEPT)
        report.sections.append(("the release's state", f"kept in {folder}"))
    return report

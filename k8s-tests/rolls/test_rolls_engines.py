"""Parts of the release come, go and change in mid-roll: engines have the right versions before they
get requests, and no request fails."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from installation import ENGINES, GATEWAYS
from node.nodes import CTR
from rolls.load import MODEL, Watch, await_answers
from rolls.release import (
    NAMESPACE,
    OPERATOR_DEPLOYMENT,
    OPERATORS,
    STATEFUL_SET,
    Rolls,
    install_words,
)

# Image → where the chart has its tag.
IMAGES = {
    "gateway": "gateway.image.tag",
    "operator": "operator.image.tag",
    "loader": "engine.loader.image.tag",
    "triton-cpu": "engine.image.tag",
}
# For all engines, one after the other.
REPLACED_S = 240


def test_an_engine_that_is_added_in_mid_roll(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part, scaled(rolls, 3):
        before = rolls.ready(ENGINES)
        rolls.begin_half(MODEL, 2)
        rolls.api.scale(NAMESPACE, STATEFUL_SET, len(before) + 1)
        (added,) = await_ready_with(rolls, before, ["1", "2"], count=1)
        await_answers(watch.control, "engine", [added])
        rolls.let_go_on(MODEL)
        rolls.await_settled(MODEL, 2)
        part.await_answers_of(2, rolls.engines())


def test_a_rollout_of_the_engines_in_mid_roll(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part:
        before = rolls.ready(ENGINES)
        half = rolls.begin_half(MODEL, 2)
        words = ("rollout", "restart", f"statefulset/{STATEFUL_SET}", f"--namespace={NAMESPACE}")
        rolls.kube.kubectl(*words)
        replaced = await_ready_with(rolls, before, ["1", "2"], count=len(before))
        await_answers(watch.control, "engine", replaced)
        assert rolls.roll(MODEL) == half
        rolls.let_go_on(MODEL)
        rolls.await_settled(MODEL, 2)
        part.await_answers_of(2, rolls.engines())


def test_without_the_operator_an_engine_comes_back_and_serves(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part, no_operator(rolls):
        before = rolls.ready(ENGINES)
        victim, *_ = before
        rolls.api.delete_pod(NAMESPACE, victim)
        assert await_ready_with(rolls, before, ["1"], count=1) == [victim]
        part.await_answers_of(1, before)


def test_an_upgrade_of_everything_in_mid_roll(rolls: Rolls, watch: Watch) -> None:
    """Every part gets the same image under another name, so that old and new ones are mixed."""
    for node in rolls.cluster.nodes:
        for image in IMAGES:
            name = f"localhost/tidegate/{image}"
            node.run((*CTR, "images", "tag", "--force", f"{name}:dev", f"{name}:next"))
    with watch.unnoticed() as part:
        before = uids(rolls)
        rolls.begin_half(MODEL, 2)
        tags = [f"--set={place}=next" for place in IMAGES.values()]
        rolls.kube.helm(*install_words(rolls.repository, *tags), timeout_s=400)
        after = uids(rolls)
        assert not set(before.values()) & set(after.values())
        await_answers(watch.control, "gateway", rolls.gateways())
        rolls.let_go_on(MODEL)
        rolls.await_settled(MODEL, 2)
        part.await_answers_of(2, rolls.engines())
    assert images(rolls) == {f"localhost/tidegate/{image}:next" for image in IMAGES}


def await_ready_with(
    rolls: Rolls, before: Mapping[str, str], versions: Collection[str], *, count: int
) -> list[str]:
    """Wait until so many engines are ready that were not there before, each with these versions
    proven from the first moment on; returns their names."""
    came: set[str] = set()

    def are_there() -> bool:
        for name, uid in rolls.ready(ENGINES).items():
            if before.get(name) != uid and name not in came:
                found = rolls.versions(name, MODEL)
                if not found:
                    continue  # It does not answer just now.
                proven = {version for version, each in found.items() if each["proven"]}
                assert set(versions) <= proven, f"{name} is ready with {found}"
                came.add(name)
        return len(came) >= count

    rolls.wait(are_there, f"{count} engines are ready with {versions}", REPLACED_S)
    return sorted(came)


def uids(rolls: Rolls) -> dict[str, str]:
    """Name → uid of every pod of the release."""
    return {
        name: pod["metadata"]["uid"]
        for selector in (ENGINES, GATEWAYS, OPERATORS)
        for name, pod in rolls.pods(selector).items()
    }


def images(rolls: Rolls) -> set[str]:
    """The images that the pods of the release are made from."""
    return {
        container["image"]
        for selector in (ENGINES, GATEWAYS, OPERATORS)
        for pod in rolls.pods(selector).values()
        for kind in ("containers", "initContainers")
        for container in pod["spec"].get(kind, [])
    }


@contextmanager
def scaled(rolls: Rolls, engines: int) -> Iterator[None]:
    """So many engines in the end."""
    try:
        yield
    finally:
        rolls.api.scale(NAMESPACE, STATEFUL_SET, engines)
        rolls.wait(
            lambda: len(rolls.engines()) == len(rolls.ready(ENGINES)) == engines, "all are ready"
        )


@contextmanager
def no_operator(rolls: Rolls) -> Iterator[None]:
    """The operator is away."""
    words = ("scale", f"deployment/{OPERATOR_DEPLOYMENT}", f"--namespace={NAMESPACE}")
    rolls.kube.kubectl(*words, "--replicas=0")
    rolls.wait(lambda: not rolls.pods(OPERATORS), "the operator is away")
    try:
        yield
    finally:
        rolls.kube.kubectl(*words, "--replicas=1")
        rolls.wait(lambda: len(rolls.ready(OPERATORS)) == 1, "the operator is back")

"""A bad candidate goes back by itself, and no request fails; none gets to it where that can be
known before."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rolls.load import MODEL, Watch
from rolls.release import PROOF, Rolls, rollout
from tidegate_table.document import Phase

DIES_LATER = 18
LOADS_FOR_LONG = 20
# Triton takes a second to fail each of the requests that wait for a dead backend, those that were
# answered elsewhere long ago included; until then the version is not let go.
GONE_S = 300


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(99, id="is not there"),
        pytest.param(11, id="does not load"),
        pytest.param(12, id="dies at load"),
        pytest.param(13, id="takes Triton with it at load"),
        pytest.param(14, id="wants another input"),
        pytest.param(15, id="names its output otherwise"),
        pytest.param(16, id="answers in another shape"),
        pytest.param(17, id="answers wrongly"),
    ],
)
def test_a_version_that_is_bad_from_the_beginning_gets_no_request(
    rolls: Rolls, watch: Watch, version: int
) -> None:
    with watch.unnoticed() as part:
        rolls.apply(rollout(MODEL, version, proof=PROOF))
        rolls.await_failure(MODEL, version)
        rolls.await_settled(MODEL, 1)
        assert part.answered_by(version) == 0


@pytest.mark.parametrize(
    "change", [("max_batch_size: 0", "max_batch_size: none"), ("dims: [ 1 ]", "dims: [ 2 ]")],
    ids=["cannot be read", "is another one"],
)  # fmt: skip
def test_a_version_whose_configuration_does_not_fit_gets_no_request(
    rolls: Rolls, watch: Watch, change: tuple[str, str]
) -> None:
    with watch.unnoticed() as part, changed(rolls.repository / MODEL / "config.pbtxt", *change):
        rolls.apply(rollout(MODEL, 2))
        rolls.await_failure(MODEL, 2)
        rolls.await_settled(MODEL, 1)
        assert part.answered_by(2) == 0


def test_a_version_with_another_digest_gets_no_request(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part:
        rolls.apply(rollout(MODEL, 2, digest=f"sha256:{'0' * 64}"))
        rolls.await_failure(MODEL, 2)
        rolls.await_settled(MODEL, 1)
        assert part.answered_by(2) == 0


def test_a_version_that_does_not_get_ready_in_time_gets_no_request(
    rolls: Rolls, watch: Watch
) -> None:
    with watch.unnoticed() as part:
        rolls.apply(rollout(MODEL, LOADS_FOR_LONG, progressDeadline="5s"))
        assert rolls.await_failure(MODEL, LOADS_FOR_LONG)["reason"] == "NoProgress"
        rolls.await_settled(MODEL, 1)
        assert part.answered_by(LOADS_FOR_LONG) == 0


def test_a_version_that_dies_under_traffic_goes_back(rolls: Rolls, watch: Watch) -> None:
    with watch.unnoticed() as part:
        rolls.apply(rollout(MODEL, DIES_LATER, steps=[(50, "10m")]))
        rolls.await_phase(MODEL, Phase.STEPPING)
        rolls.await_failure(MODEL, DIES_LATER)
        assert part.answered_by(DIES_LATER) > 0
        rolls.await_settled(MODEL, 1, GONE_S)
        part.await_answers_of(1, rolls.engines())


@contextmanager
def changed(file: Path, old: str, new: str) -> Iterator[None]:
    """A file of the repository is published in another form, and in the end in the first one."""
    text = file.read_text()
    assert old in text
    publish(file, text.replace(old, new))
    try:
        yield
    finally:
        publish(file, text)


def publish(file: Path, text: str) -> None:
    """Write a file whole, or not at all."""
    written = file.with_name(f".{file.name}.written")
    written.write_text(text)
    written.replace(file)

"""What loaders report against a candidate, and what of it counts."""

from dataclasses import replace

import pytest

from tidegate_operator.faults import digests, reported, too_large, unfit
from tidegate_operator.situation import Fail, LoaderSeen, Observed, VersionSeen
from tidegate_operator.spec import Rollout, Spec
from tidegate_table.document import Loads, Phase, Roll, Table

A, B, C = (f"sha256:{digit * 64}" for digit in "abc")
SINCE = 7
ROLL = Roll("1", "2", Phase.LOADING, 0, SINCE)
LOADS = Loads("text", {"1": A, "2": ""}, roll=ROLL)
ROLLOUT = Rollout("name", "uid", 1, "", Spec("m", "2", memory_bytes=5))


def loader(name: str, *, revision: int | None = SINCE, config: str = "text") -> LoaderSeen:
    return LoaderSeen(name, True, revision, config)


def proven(name: str, digest: str, *, revision: int | None = SINCE) -> LoaderSeen:
    version = VersionSeen(digest, loaded=True, proven=True)
    return replace(loader(name, revision=revision), versions={"2": version})


def test_a_configuration_that_cannot_be_read_is_told_as_it_is() -> None:
    spoilt = replace(loader("e-1"), config_error="line 3: expected a brace")
    assert unfit(ROLLOUT, LOADS, [loader("e-0"), spoilt]) == Fail(
        "2", "ConfigInvalid", "e-1: line 3: expected a brace"
    )


def test_only_engines_that_have_looked_at_the_model_are_compared() -> None:
    silent, fresh = loader("e-1", revision=None, config="other"), loader("e-2", config="")
    assert unfit(ROLLOUT, LOADS, [loader("e-0"), silent, fresh]) is None
    found = unfit(ROLLOUT, LOADS, [loader("e-0"), loader("e-3", config="other")])
    assert found is not None
    assert found.reason == "ConfigDiffers"


def test_a_model_that_cannot_be_rolled_is_not() -> None:
    config = "sequence_batching {}"
    found = unfit(ROLLOUT, replace(LOADS, config=""), [loader("e-0", config=config)])
    assert found is not None
    assert found.reason == "CannotBeRolled"


def test_memory_is_judged_where_it_is_told() -> None:
    assert too_large(ROLLOUT, [loader("e-0")]) is None
    found = too_large(ROLLOUT, [loader("e-0"), replace(loader("e-1"), free_memory=4)])
    assert found == Fail("2", "TooLarge", "expected 5 bytes free on the GPU of e-1, got 4")


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.STEPPING, Phase.BAKING, Phase.PROMOTED])
@pytest.mark.parametrize(
    ("revision", "version", "counts"),
    [
        (SINCE, VersionSeen(failed=True, error="why"), True),
        (SINCE + 1, VersionSeen(failed=True, error="why"), True),
        (SINCE - 1, VersionSeen(failed=True, error="why"), False),
        (None, VersionSeen(failed=True, error="why"), False),
        (SINCE, VersionSeen(loaded=True, proven=True), False),
        (SINCE, VersionSeen(), False),
    ],
)
def test_a_failure_counts_once_its_loader_acts_on_this_phase(
    phase: Phase, revision: int | None, version: VersionSeen, *, counts: bool
) -> None:
    roll = replace(ROLL, phase=phase)
    engines = [loader("e-0"), replace(loader("e-1", revision=revision), versions={"2": version})]
    expected = Fail("2", "CandidateFailed", "e-1: why") if counts else None
    assert reported(Observed("m", Table(9, {}), ROLLOUT, engines), roll) == expected


@pytest.mark.parametrize(
    ("pinned", "engines", "reason"),
    [
        ("", [proven("e-0", A), proven("e-1", A)], None),
        (A, [proven("e-0", A)], None),
        (B, [], None),
        ("", [proven("e-0", A), proven("e-1", B)], "DigestsDiffer"),
        (C, [proven("e-0", A), proven("e-1", B)], "DigestsDiffer"),
        (B, [proven("e-0", A)], "DigestDiffers"),
        ("", [proven("e-0", A), proven("e-1", B, revision=SINCE - 1)], None),
        ("", [proven("e-0", A), proven("e-1", B, revision=None)], None),
    ],
)
def test_all_engines_have_the_same_files_and_the_wanted(
    pinned: str, engines: list[LoaderSeen], reason: str | None
) -> None:
    found = digests(ROLL, replace(LOADS, versions={"2": pinned}), engines)
    assert (found and found.reason) == reason

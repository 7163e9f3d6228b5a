"""What a ModelRollout says is read strictly, and each fault is told as it is."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_operator.spec import (
    Failed,
    InvalidRollout,
    ProofSource,
    Rollout,
    Spec,
    Step,
    owner_of,
    read,
    seconds,
    size,
)

DIGEST = "sha256:" + "a" * 64


def document(status: Any = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "image-classifier",
            "uid": "uid",
            "generation": 3,
            "creationTimestamp": "2026-12-01T00:00:00Z",
        },
        "spec": {"model": "m", "version": 2, **spec},
        "status": status,
    }


def faults(**spec: Any) -> list[str]:
    with pytest.raises(InvalidRollout) as caught:
        read(document(**spec))
    assert str(caught.value) == "; ".join(caught.value.faults)
    return [*caught.value.faults]


def test_what_is_not_said_has_its_default() -> None:
    assert read(document()) == Rollout(
        "image-classifier",
        "uid",
        3,
        "2026-12-01T00:00:00Z",
        Spec(
            model="m",
            version="2",
            digest="",
            steps=(Step(10, 60.0), Step(50, 60.0)),
            bake_s=120.0,
            drain_s=30.0,
            progress_deadline_s=900.0,
            on_failure="RollBack",
            on_delete="Keep",
            paused=False,
            proof=None,
            memory_bytes=None,
        ),
        None,
    )


def test_all_that_can_be_said_is_read() -> None:
    found = read(
        document(
            digest=DIGEST,
            memory="2Gi",
            strategy={
                "type": "SideBySide",
                "steps": [{"weight": 5, "hold": "90s"}, {"weight": 99, "hold": "1h30m"}],
                "bake": "500ms",
                "drain": "1.5m",
            },
            proof={"configMapRef": {"name": "golden"}, "tolerance": "0.01"},
            progressDeadline="1h",
            onFailure="Pause",
            onDelete="Unload",
            paused=True,
        )
    )

    assert found.spec == Spec(
        model="m",
        version="2",
        digest=DIGEST,
        steps=(Step(5, 90.0), Step(99, 5400.0)),
        bake_s=0.5,
        drain_s=90.0,
        progress_deadline_s=3600.0,
        on_failure="Pause",
        on_delete="Unload",
        paused=True,
        proof=ProofSource("golden", 0.01),
        memory_bytes=2 * 2**30,
    )


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"model": ""}, "model: expected the name of a model, got ''"),
        ({"version": 0}, "version: expected a whole number from 1, got 0"),
        ({"version": True}, "version: expected a whole number from 1, got True"),
        ({"version": "2"}, "version: expected a whole number from 1, got '2'"),
        ({"version": 2**63}, f"version: expected a whole number from 1, got {2**63}"),
        (
            {"digest": "sha256:00"},
            "digest: expected sha256: and 64 hexadecimal digits, got 'sha256:00'",
        ),
        ({"memory": "much"}, "memory: expected an amount of memory such as 2Gi, got 'much'"),
        (
            {"progressDeadline": "soon"},
            "progressDeadline: expected a time such as 90s or 1h30m, got 'soon'",
        ),
        (
            {"progressDeadline": "0s"},
            "progressDeadline: expected more than no time at all, got 0s",
        ),
        ({"onFailure": "Stop"}, "onFailure: expected RollBack or Pause, got 'Stop'"),
        ({"onDelete": None}, "onDelete: expected Keep or Unload, got None"),
        ({"paused": "true"}, "paused: expected true or false, got 'true'"),
        ({"analysis": {}}, "analysis is not offered yet"),
        ({"strategy": "fast"}, "strategy: expected an object, got 'fast'"),
        ({"strategy": {"type": "PodByPod"}}, "strategy.type PodByPod is not offered yet"),
        ({"strategy": {"type": "?"}}, "strategy.type: expected SideBySide, got '?'"),
        ({"strategy": {"shadow": {}}}, "strategy.shadow is not offered yet"),
        ({"strategy": {"maxUnavailable": 1}}, "strategy.maxUnavailable is not offered yet"),
        (
            {"strategy": {"bake": "169h"}},
            "strategy.bake: expected at most 168h, got 169h",
        ),
        (
            {"strategy": {"drain": 30}},
            "strategy.drain: expected a time such as 90s or 1h30m, got 30",
        ),
        ({"strategy": {"steps": {}}}, "strategy.steps: expected a list of at most 20, got {}"),
        (
            {"strategy": {"steps": [{"weight": 0, "hold": "1m"}]}},
            "strategy.steps[0].weight: expected a whole number of 1 to 99, got 0",
        ),
        (
            {"strategy": {"steps": [{"weight": 9, "hold": "1m"}, {"weight": 9, "hold": "1m"}]}},
            "strategy.steps[1].weight: expected a whole number of 10 to 99, got 9",
        ),
        (
            {"strategy": {"steps": [{"weight": 100, "hold": "1m"}]}},
            "strategy.steps[0].weight: expected a whole number of 1 to 99, got 100",
        ),
        (
            {"strategy": {"steps": [{"weight": 5}]}},
            "strategy.steps[0].hold: expected a time such as 90s or 1h30m, got None",
        ),
        (
            {"strategy": {"steps": ["x"]}},
            "strategy.steps[0].weight: expected a whole number of 1 to 99, got None",
        ),
        (
            {"proof": "golden"},
            "proof.configMapRef.name: expected the name of a ConfigMap, got None",
        ),
        (
            {"proof": {"configMapRef": {"name": "golden"}, "tolerance": "-1"}},
            "proof.tolerance: expected a number from 0, got '-1'",
        ),
        (
            {"proof": {"configMapRef": {"name": "golden"}, "tolerance": "NaN"}},
            "proof.tolerance: expected a number from 0, got 'NaN'",
        ),
    ],
)
def test_a_fault_says_where_what_was_expected_and_what_came(spec: Any, told: str) -> None:
    assert faults(**spec) == [told]


def test_every_fault_is_told() -> None:
    assert len(faults(model="", version=0, paused=1, strategy={"bake": ""})) == 4


def test_a_spec_that_is_none_is_told() -> None:
    with pytest.raises(InvalidRollout, match=r"^spec: expected an object, got None$"):
        read({"metadata": {"name": "n", "uid": "u"}})


@pytest.mark.parametrize(
    ("text", "lasts_s"),
    [
        ("0s", 0.0),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("0.1s", 0.1),
        ("168h", 604800.0),
    ],
)
def test_durations_are_as_go_writes_them(text: str, lasts_s: float) -> None:
    assert seconds(text) == lasts_s


@pytest.mark.parametrize("text", ["", "90", "s", "-1s", "1 s", "1d", "1us", "90s ", "1e3s", "\n1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 90s or 1h30m"):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [(1, 1), ("1024", 1024), ("1k", 1000), ("2Gi", 2**31), ("1.5Ki", 1536), ("1T", 10**12)],
)
def test_amounts_of_memory_are_kubernetes_quantities(text: object, amount: int) -> None:
    assert size(text) == amount


@pytest.mark.parametrize("text", ["", "0", 0, -1, "1m", "Gi", "1GiB", "-1Gi", None, True, 1.5])
def test_what_is_no_amount_of_memory_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected an amount of memory such as 2Gi"):
        size(text)


def test_a_version_has_failed_under_one_spec_only() -> None:
    failed = {"version": 2, "generation": 3, "reason": "LoadFailed", "message": "why"}
    found = read(document({"failed": failed}))

    assert found.failed == Failed("2", 3, "LoadFailed", "why")
    assert found.has_failed("2")
    assert not found.has_failed("3")
    assert not read(document({"failed": {**failed, "generation": 2}})).has_failed("2")
    assert not read(document()).has_failed("2")


@pytest.mark.parametrize(
    "failed", [None, [], {}, {"version": 2}, {"version": True, "generation": 3}]
)
def test_a_failure_that_cannot_be_read_is_none(failed: Any) -> None:
    assert read(document({"failed": failed})).failed is None


def test_of_two_for_one_model_the_oldest_acts_and_the_name_decides_between_twins() -> None:
    older, newer = "2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z"
    assert owner_of([(newer, "a"), (older, "b")]) == "b"
    assert owner_of([(older, "b"), (older, "a")]) == "a"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
MEMBERS = [
    "model",
    "version",
    "digest",
    "memory",
    "strategy",
    "proof",
    "progressDeadline",
    "onFailure",
    "onDelete",
    "paused",
]


@settings(max_examples=150, deadline=None, database=None)
@given(st.dictionaries(st.sampled_from(MEMBERS), JSON), JSON)
def test_whatever_there_is_it_is_read_or_its_faults_are_told(spec: Any, strategy: Any) -> None:
    given_spec = {"strategy": {"steps": strategy}, **spec}
    try:
        found = read(document(**given_spec))
    except InvalidRollout as invalid:
        assert invalid.faults
        return
    assert found.spec.model == given_spec.get("model", "m")
    weights = [step.weight for step in found.spec.steps]
    assert weights == sorted({*weights})

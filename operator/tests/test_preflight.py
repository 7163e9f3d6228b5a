"""What speaks against a candidate before any engine loads it."""

import pytest

from tidegate_operator.preflight import differing, too_large, unfit

SEQUENCES = "the model has sequence batching: a sequence would be torn between two versions"
ENSEMBLE = (
    "the model has an ensemble: its steps take the newest version the moment that it is loaded"
)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("", ""),
        ('name: "m" backend: "onnxruntime" dynamic_batching {}', ""),
        ('name: "m"\nsequence_batching { max_sequence_idle_microseconds: 5 }', SEQUENCES),
        ("sequence_batching{}", SEQUENCES),
        ('platform: "ensemble" ensemble_scheduling: { step [ { model_name: "a" } ] }', ENSEMBLE),
        ("input [ { dims: [ 1 ] } ] ensemble_scheduling < >", ENSEMBLE),
        # Not fields of the model itself
        ("# sequence_batching {}\nmax_batch_size: 8", ""),
        ('name: "sequence_batching"', ""),
        ("name: 'ensemble_scheduling'", ""),
        (r'name: "a\" { " sequence_batching {}', SEQUENCES),
        ('parameters { key: "x" sequence_batching: 1 }', ""),
        ('parameters { key: "}" value { string_value: "{" } } sequence_batching {}', SEQUENCES),
        ("no_sequence_batching {}", ""),
    ],
)
def test_sequences_and_ensembles_are_not_rolled(config: str, why: str) -> None:
    assert unfit(config) == why


def test_one_configuration_serves_all_engines_and_both_versions() -> None:
    assert differing([], "text") == ""
    assert differing([("e-0", "text"), ("e-1", "text")], "text") == ""
    assert differing([("e-0", "text")], "") == ""
    assert (
        differing([("e-0", "text"), ("e-1", "other")], "text")
        == "config.pbtxt on e-1 is another one than on e-0"
    )
    assert differing([("e-0", "other")], "text") == (
        "config.pbtxt in the repository (on e-0) is another one than that which the stable "
        "version was proven with; one configuration serves all versions of a model"
    )


def test_it_must_fit_beside_stable_where_that_is_known() -> None:
    assert too_large(None, [("e-0", 0)]) == ""
    assert too_large(5, []) == ""
    assert too_large(5, [("e-0", 5), ("e-1", 6)]) == ""
    assert (
        too_large(5, [("e-0", 5), ("e-1", 4)]) == "expected 5 bytes free on the GPU of e-1, got 4"
    )

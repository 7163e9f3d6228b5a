"""The version policy is taken out of a configuration, and nothing else is touched."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_engine.loader.config_text import (
    InvalidConfig,
    with_versions,
    without_version_policy,
)

REST = 'backend: "python"  # version_policy { all {} }\ninput [ { name: "{", dims: [ -1 ] } ]'


@pytest.mark.parametrize(
    "policy",
    [
        "version_policy { all {} }",
        "version_policy: { specific: { versions: [ 1, 2 ] } }",
        "version_policy: < latest < num_versions: 2 > >;",
        "version_policy: # which ones\n  { specific { versions: 1 versions: 2 } },",
        "version_policy{all{}}",
    ],
)
def test_the_policy_goes_in_whatever_form_it_is_written(policy: str) -> None:
    for text in (f"{REST}\n{policy}\n", f"{policy}\n{REST}"):
        assert without_version_policy(text).strip() == REST


@pytest.mark.parametrize(
    "text",
    [
        'parameters { key: "version_policy" value: { string_value: "version_policy {" } }\n',
        "parameters { version_policy { all {} } }\n",
        "# version_policy { all {} }\nversion_policy_of_ours: 1\n",
        "name: 'it\\'s version_policy { }'\n",
    ],
)
def test_what_only_looks_like_a_policy_stays(text: str) -> None:
    assert without_version_policy(text) == text


@pytest.mark.parametrize(
    "text",
    ["version_policy", "version_policy: 3", "version_policy { all {}", "input [ { ]", "}"],
)
def test_a_text_that_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="expected"):
        without_version_policy(text)


_NAMES = st.sampled_from(["name", "input", "version_policy_x", "a1"])
_STRINGS = st.sampled_from(['"a"', "'version_policy {'", '"\\""', "'#'"])
_VALUES = st.recursive(
    st.one_of(_STRINGS, st.sampled_from(["1", "TYPE_FP32", "-1.5"])),
    lambda inner: st.lists(st.tuples(_NAMES, inner), max_size=3).map(
        lambda fields: "{ " + " ".join(f"{name}: {value}" for name, value in fields) + " }"
    ),
)
_FIELDS = st.tuples(_NAMES, _VALUES, st.sampled_from(["\n", ",\n", " ; ", " # {\n"])).map(
    lambda field: f"{field[0]}: {field[1]}{field[2]}"
)


@settings(deadline=None, database=None, max_examples=200)
@given(
    fields=st.lists(_FIELDS, min_size=1, max_size=6),
    place=st.integers(0, 6),
    versions=st.sets(st.integers(1, 99), min_size=1),
)
def test_a_policy_put_in_comes_out_again_and_a_text_without_one_stays_as_it_is(
    fields: list[str], place: int, versions: set[int]
) -> None:
    text = without_version_policy("".join(fields))
    assert without_version_policy(text) == text
    assert without_version_policy(with_versions(text, map(str, versions))) == text
    policy = with_versions("", map(str, versions))
    mixed = "".join([*fields[:place], policy, *fields[place:]])
    assert "specific" not in without_version_policy(mixed)
    assert without_version_policy(mixed).split() == text.split()

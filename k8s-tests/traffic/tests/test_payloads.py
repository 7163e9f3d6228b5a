import struct

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidegate_traffic.payloads import DATATYPES, difference, packed, values

NUMBERS = st.integers(min_value=0, max_value=2**24 - 1)


@settings(deadline=None)
@given(NUMBERS, NUMBERS, st.integers(min_value=1, max_value=50))
def test_two_requests_differ_in_every_element(one: int, other: int, elements: int) -> None:
    assume(one != other)
    pairs = zip(values(one, elements), values(other, elements), strict=True)
    assert all(mine != theirs for mine, theirs in pairs)


@settings(deadline=None)
@given(NUMBERS, st.integers(min_value=1, max_value=50), st.sampled_from(sorted(DATATYPES)))
def test_values_are_exact_in_every_datatype(number: int, elements: int, datatype: str) -> None:
    numbers = values(number, elements)
    content = packed(datatype, numbers)
    assert list(struct.unpack(f"<{elements}{DATATYPES[datatype]}", content)) == numbers


@settings(deadline=None)
@given(st.lists(st.integers(), min_size=1), st.data())
def test_one_changed_value_is_a_difference(sent: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(min_value=0, max_value=len(sent) - 1))
    came = [value + (place == at) for place, value in enumerate(sent)]
    assert difference(sent, sent) == ""
    assert difference(sent, came) == (
        f"expected the values that were sent, got {sent[at] + 1} for {sent[at]} at {at}"
    )


def test_a_torn_answer_is_a_difference() -> None:
    assert difference(b"12345678", b"1234") == "expected the 8 bytes that were sent, got 4"


def test_a_value_beyond_its_datatype_is_refused() -> None:
    with pytest.raises(ValueError, match="requires"):
        packed("INT32", [2**40])

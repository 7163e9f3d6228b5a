"""What tensor requests carry, and whether the right bytes came back. Pure."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

# KServe v2 datatype → struct's letter. Every value that we send is exact in each of them.
DATATYPES = {"FP32": "f", "FP64": "d", "INT32": "i", "INT64": "q"}

# Whole numbers below it are exact in FP32.
_RANGE = 2**24
# A prime: neighbouring elements are far apart, so that a shifted or torn answer differs.
_STRIDE = 7919


@dataclass(frozen=True)
class Constant:
    """An input of shape (len(values),) that is the same in every request."""

    name: str
    datatype: str
    values: tuple[float, ...]

    def content(self) -> bytes:
        """Its bytes, little-endian."""
        return packed(self.datatype, self.values)


@dataclass(frozen=True)
class Echo:
    """A request whose answer must be what was sent: the input, of another content in each request,
    comes back as the output.

    Attributes:
        datatype: of input and output.
        elements: both have shape (elements,).
        constants: further inputs.
        version_output: a further output, INT32 of shape (1,), by which whoever answers says which
            version it is; empty: there is none.
    """

    input: str
    output: str
    datatype: str = "FP32"
    elements: int = 16
    constants: tuple[Constant, ...] = ()
    version_output: str = ""


def values(number: int, elements: int) -> list[int]:
    """The input of request `number`: whole numbers in [0, 2**24).

    Two requests less than 2**24 apart differ in every element.
    """
    return [(number + position * _STRIDE) % _RANGE for position in range(elements)]


def packed(datatype: str, numbers: Sequence[float]) -> bytes:
    """`numbers` as the bytes of a tensor of `datatype`, little-endian.

    Raises:
        ValueError: one is not of that datatype.
    """
    try:
        return struct.pack(f"<{len(numbers)}{DATATYPES[datatype]}", *numbers)
    except struct.error as error:
        raise ValueError(str(error)) from None


def difference(sent: Sequence[float] | bytes, came: Sequence[float] | bytes) -> str:
    """How an answer differs from what was sent, as a sentence; empty when it does not."""
    if sent == came:
        return ""
    unit = "bytes" if isinstance(sent, bytes) else "values"
    if len(sent) != len(came):
        return f"expected the {len(sent)} {unit} that were sent, got {len(came)}"
    at = next(
        place for place, pair in enumerate(zip(sent, came, strict=True)) if pair[0] != pair[1]
    )
    return f"expected the {unit} that were sent, got {came[at]} for {sent[at]} at {at}"

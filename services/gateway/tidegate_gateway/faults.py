"""Several faults of one request, told together: who mends one should not then meet the next."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from tidegate_gateway.errors import InvalidInput

S = TypeVar("S")
T = TypeVar("T")

MOST_FAULTS = 8
"""The most faults that are told: enough to put a request right at once; a hostile one can have a
million."""


def each_read(entries: Iterable[S], read: Callable[[int, S], T]) -> list[T]:
    """What `read` makes of each entry and its index.

    Raises:
        InvalidInput: some cannot be read; the first eight faults are told.
    """
    found: list[T] = []
    faults: list[str] = []
    for index, entry in enumerate(entries):
        try:
            found.append(read(index, entry))
        except InvalidInput as fault:
            faults.append(fault.message)
            if len(faults) == MOST_FAULTS:
                break
    if faults:
        raise InvalidInput("; ".join(faults))
    return found

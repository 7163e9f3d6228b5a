"""Waiting for what must come true, with an end to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import ClusterError

Found = TypeVar("Found")
# Generous: a loaded machine is slow, and giving up early is worth nothing.
READY_SECONDS = 120.0
LOOK_SECONDS = 0.05


def until(find: Callable[[], Found | None], seconds: float, sentence: Callable[[], str]) -> Found:
    """What a function finds, once it finds something that counts as true.

    Args:
        find: asked again and again.
        seconds: for how long.
        sentence: the error, when that time is over.

    Raises:
        ClusterError: it has found nothing within that time.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = find()
        if found:
            return found
        if time.monotonic() > deadline:
            raise ClusterError(sentence())
        time.sleep(LOOK_SECONDS)


def ready(condition: Callable[[], bool], sentence: str) -> None:
    """Wait for up to `READY_SECONDS` until a condition holds.

    Args:
        condition: what is awaited.
        sentence: what is so as long as it does not hold, "node1 is not Ready".

    Raises:
        ClusterError: it does not hold in that time.
    """
    until(condition, READY_SECONDS, lambda: f"After {READY_SECONDS:.0f} s {sentence}.")

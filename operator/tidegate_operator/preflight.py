"""What is known of a candidate before any engine loads it: pure.

One config.pbtxt serves all versions of a model in Triton, so the candidate's must be that which
stable was proven with. Versions of a sequence's model cannot be told apart in mid-sequence, and an
ensemble's steps switch to the newest version by themselves: neither can be rolled by weights.
"""

import re
from collections.abc import Iterable, Sequence

_UNFIT = {
    "sequence_batching": "sequence batching: a sequence would be torn between two versions",
    "ensemble_scheduling": (
        "an ensemble: its steps take the newest version the moment that it is loaded"
    ),
}
# A string, a comment, a brace, or a word of protobuf's text format.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|#[^\n]*|[{}<>]|[A-Za-z_]\w*')


def unfit(config: str) -> str:
    """Why a model with this config.pbtxt cannot be rolled, or ""."""
    for name in _fields(config):
        if name in _UNFIT:
            return f"the model has {_UNFIT[name]}"
    return ""


def _fields(config: str) -> Iterable[str]:
    """The words at the outermost level, where the model's own fields stand."""
    depth = 0
    for word in _TOKEN.findall(config):
        if word in "{<":
            depth += 1
        elif word in "}>":
            depth -= 1
        elif depth == 0 and word[0] not in "\"'#":
            yield word


def differing(configs: Sequence[tuple[str, str]], pinned: str) -> str:
    """Why the configurations do not serve both versions, or "".

    Args:
        configs: (engine, text of its repository's config.pbtxt).
        pinned: that which stable was proven with; "": none is known yet.
    """
    if not configs:
        return ""
    first_engine, first = configs[0]
    for engine, config in configs[1:]:
        if config != first:
            return f"config.pbtxt on {engine} is another one than on {first_engine}"
    if pinned and first != pinned:
        return (
            f"config.pbtxt in the repository (on {first_engine}) is another one than that which "
            "the stable version was proven with; one configuration serves all versions of a model"
        )
    return ""


def too_large(needed: int | None, free: Sequence[tuple[str, int]]) -> str:
    """Why the candidate does not fit beside stable, or "".

    Args:
        needed: bytes that one version needs on the GPU; None: not said.
        free: (engine, free bytes on its GPU), for those that tell.
    """
    for engine, there in free:
        if needed is not None and there < needed:
            return f"expected {needed} bytes free on the GPU of {engine}, got {there}"
    return ""

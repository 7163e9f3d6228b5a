"""The text of a config.pbtxt, without its version policy and with another one: pure.

The policy alone is touched, and the rest stays as it was written, comments and all: the same text
is what a roll pins, and what loaders compare. The text format of protocol buffers:
https://protobuf.dev/reference/protobuf/textformat-spec/
"""

import re
from collections.abc import Iterable

FIELD = "version_policy"

# Comments and strings first, since they may hold anything; then brackets, names, and all else.
_PART = re.compile(
    r"""\#[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | [{}<>\[\]] | \w+ | \s+ | .""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">", "[": "]"}


class InvalidConfig(Exception):
    """A text that is no configuration; the message says what is wrong with it."""


def without_version_policy(text: str) -> str:
    """`text` without the fields `version_policy` of the model itself, ended by one line break.

    Raises:
        InvalidConfig: its brackets do not match, or a policy has none.
    """
    kept: list[str] = []
    open_brackets: list[str] = []
    dropping = False
    ended = False  # a policy has just ended, and a separator after it goes with it
    for part in _PART.findall(text):
        if part == FIELD and not open_brackets and not dropping:
            dropping, ended = True, False
            continue
        _follow(part, open_brackets)
        if dropping:
            if part in _CLOSING.values() and not open_brackets:
                dropping, ended = False, True
            elif not open_brackets and part != ":" and not _is_blank(part):
                raise InvalidConfig(f"{FIELD}: expected a message in brackets, got {part!r}")
        elif ended and part in (",", ";"):
            ended = False
        else:
            ended = ended and _is_blank(part)
            kept.append(part)
    if open_brackets or dropping:
        raise InvalidConfig("expected every bracket to be closed, got the end of the text")
    return "".join(kept).strip() + "\n"


def with_versions(text: str, versions: Iterable[str]) -> str:
    """`text`, which has no policy, with one that serves exactly `versions`."""
    listed = ", ".join(sorted(versions, key=int))
    return f"{text}{FIELD}: {{ specific: {{ versions: [ {listed} ] }} }}\n"


def _follow(part: str, open_brackets: list[str]) -> None:
    if part in _CLOSING:
        open_brackets.append(part)
    elif part in _CLOSING.values():
        opening = open_brackets.pop() if open_brackets else ""
        if _CLOSING.get(opening) != part:
            raise InvalidConfig(f"expected brackets that match, got {opening or 'none'} … {part}")


def _is_blank(part: str) -> bool:
    return part.isspace() or part.startswith("#")

"""What can go wrong in a loader, and how it is told to others.

LoaderError
├── NotFetched        a version cannot be brought into the local repository
└── TritonFailed      Triton did not do what it was asked to
    └── TritonSilent  it did not answer in time, or at all: what it does is not known
"""

import re

_LONGEST = 300
# Paths and URLs; and addresses of hosts.
_PLACES = re.compile(r"(?:[A-Za-z][\w+.-]*://|(?<![\w.])~?/|(?:[\w.-]+/){2})[^\s'\"(),;]*")
_ADDRESSES = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
    r"|\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\](?::\d+)?"
    r"|\b[\w-]+(?:\.[\w-]+)+:\d+\b"
)


class LoaderError(Exception):
    """Something failed; the message says what, without paths and addresses."""


class NotFetched(LoaderError):
    """A version cannot be brought into the local repository."""


class TritonFailed(LoaderError):
    """Triton refused."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class TritonSilent(TritonFailed):
    """Triton did not answer in time, or at all."""


def plain(text: str) -> str:
    """The first line of what another program says, without paths and addresses.

    Tracebacks, which Triton sends with the errors of Python models, follow in further lines.
    """
    first = next((line for line in text.splitlines() if line.strip()), "")
    return _ADDRESSES.sub("…", _PLACES.sub("…", first)).strip()[:_LONGEST]

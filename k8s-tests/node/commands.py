"""Running other programs: the one place that does, so that errors read alike."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from .errors import ClusterError, CommandFailed


def run(
    words: Sequence[str],
    *,
    stdin: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """Run a program to its end and return what it printed.

    Args:
        words: the program and its arguments.
        stdin: the open file that it reads; nothing by default.
        environment: its whole environment; this process's own by default.

    Raises:
        CommandFailed: it ended with an error.
        ClusterError: there is no such program.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - every caller writes the words itself
            words,
            stdin=stdin or subprocess.DEVNULL,
            env=environment,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise ClusterError(
            f"{words[0]} is not on this machine: `make cluster-deps` installs what the cluster "
            "needs."
        ) from None
    if ended.returncode != 0:
        said = last_words(ended.stderr or ended.stdout)
        raise CommandFailed(f"`{line(words)}` ended with {ended.returncode}: {said}")
    return ended.stdout


def succeeds(words: Sequence[str]) -> bool:
    """Whether a program ends well; its words do not matter."""
    try:
        run(words)
    except ClusterError:
        return False
    return True


def replace_process(words: Sequence[str]) -> None:
    """Become that program, with this terminal; returns only by raising.

    Raises:
        ClusterError: there is no such program.
    """
    try:
        os.execvp(words[0], list(words))  # noqa: S606
    except FileNotFoundError:
        raise ClusterError(f"{words[0]} is not on this machine.") from None


def line(words: Sequence[str]) -> str:
    """A command as one would type it, its end left out when it is long."""
    text = shlex.join(words)
    return text if len(text) <= 200 else f"{text[:200]} …"


def last_words(output: bytes) -> str:
    """The last line that a program printed."""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"

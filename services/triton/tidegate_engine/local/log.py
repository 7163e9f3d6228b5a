"""Triton's log: kept in a file, and read for why a start failed."""

import re
from pathlib import Path
from typing import BinaryIO

# As glog writes an error: E1130 18:14:47.732943 7316 main.cc:245] "failed to start GRPC service…"
_ERROR_LINE = re.compile(r"E\d{4} [\d:.]+ +\d+ \S+\] +(?P<message>.*)")
QUOTED_LINES = 12


def reason(text: str) -> str:
    """What a log of a Triton that ended says about why, in Triton's words.

    That is its final `error:` with all that follows (a traceback of the model's), else its last
    error line, else its last lines.
    """
    # Triton ends a list of failed models with a line of `;`.
    lines = [line.rstrip() for line in text.splitlines() if line.strip(" ;")]
    finals = [number for number, line in enumerate(lines) if line.startswith("error:")]
    if finals:
        return "\n".join(lines[finals[-1] :][:QUOTED_LINES])
    errors = [match["message"] for line in lines if (match := _ERROR_LINE.match(line))]
    if errors:
        return errors[-1]
    return "\n".join(lines[-QUOTED_LINES:]) or "its log is empty"


class Log:
    """The log file of one engine; each start appends to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin = 0

    def open(self) -> BinaryIO:
        """Open it for a new start, whose text begins here."""
        file = self.path.open("ab")
        self._begin = file.tell()
        return file

    def port_was_taken(self) -> bool:
        """Whether the latest start says that another process listens on one of its ports."""
        return "already in use" in self._latest()

    def reason(self) -> str:
        """Why the latest start ended, with the place of the whole log."""
        return f"{reason(self._latest())}\n(log: {self.path})"

    def _latest(self) -> str:
        try:
            return self.path.read_bytes()[self._begin :].decode(errors="replace")
        except FileNotFoundError:
            return ""

"""Writing files so that nobody reads half of one."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, content: str) -> None:
    """Write a file in one piece, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text(content, encoding="utf-8")
    unfinished.replace(path)

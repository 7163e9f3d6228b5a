"""The committed generated code is what the .proto files say, no file more or less."""

import subprocess
import sys
from pathlib import Path

PROTO = Path(__file__).parents[1]
WRITTEN_BY_HAND = {"__init__.py", "py.typed"}


def contents(package: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in package.iterdir() if file.is_file()}


def test_generated_code_has_not_drifted(tmp_path: Path) -> None:
    generation = subprocess.run(
        [sys.executable, PROTO / "generate.py", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert generation.returncode == 0, generation.stderr

    committed = contents(PROTO / "tidegate_proto")
    generated = contents(tmp_path / "tidegate_proto")

    assert committed.keys() - generated.keys() == WRITTEN_BY_HAND, "run `make generate`"
    assert generated.keys() - committed.keys() == set(), "run `make generate`"
    drifted = [name for name, content in generated.items() if committed[name] != content]
    assert drifted == [], "run `make generate`"

"""What the loader says of settings that cannot be used, and of how others say things."""

from pathlib import Path

import pytest

from tidegate_engine.loader.errors import plain
from tidegate_engine.loader.settings import load
from tidegate_process.settings import InvalidSettings


def test_settings_come_from_arguments_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_LOADER_TABLE__CONFIG_MAP", "tidegate-routing")
    monkeypatch.setenv("TIDEGATE_LOADER_TRITON__KEY", "secret")
    monkeypatch.setenv("TIDEGATE_LOADER_PORT_8003_TCP", "by Kubernetes")
    folders = [f"--{name}={tmp_path}" for name in ("repository.path", "repository.local")]
    given = load([*folders, f"--table.folder={tmp_path}", "--proof.interval_s=1.5"])
    assert given.table.config_map == "tidegate-routing"
    assert given.proof.interval_s == 1.5
    assert given.triton.key.get_secret_value() == "secret"
    assert "secret" not in repr(given)


@pytest.mark.parametrize(
    ("arguments", "variable", "sentence"),
    [
        ([], "", "table: expected config_map or file, got none of them"),
        (["--table.file=x", "--table.config_map=y"], "", "got both"),
        (["--table.file=x", "--repository.path=/no"], "", "repository.path: expected a folder"),
        (["--proof.interval_s=0", "--table.file=x"], "", "proof.interval_s: Input should be great"),
        ([], "TIDEGATE_LOADER_TRITON__KEYS", "no such setting; did you mean TIDEGATE_LOADER_"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    arguments: list[str], variable: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(variable, "x")
    with pytest.raises(InvalidSettings) as refused:
        load(arguments)
    assert sentence in str(refused.value)


def test_what_triton_says_is_told_without_places_and_tracebacks() -> None:
    said = (
        "load failed: Internal: OSError: /models/echo/3/model.onnx not at models/echo/3/x "
        "of s3://bucket/key or 10.0.0.1:8000\n\nAt:\n  /models/echo/3/model.py(1): <module>\n"
    )
    assert plain(said) == "load failed: Internal: OSError: … not at … of … or …"
    assert plain("\n ") == ""
    assert plain("input/output error 1/2") == "input/output error 1/2"

"""Settings: where they come from, and what is said of those that cannot be used."""

import os
from typing import Annotated

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from tidegate_process import settings
from tidegate_process.settings import (
    FixedPort,
    Group,
    InvalidSettings,
    LogSettings,
    Port,
    ProcessSettings,
    Seconds,
)


class HttpSettings(Group):
    """A listener."""

    host: str = "0.0.0.0"
    """Address to listen on."""
    port: Port = 8080
    """Port; 0 takes a free one."""


class GrpcSettings(Group):
    """Another one."""

    port: FixedPort = 8081
    """Port."""


class EngineSettings(Group):
    """Who is asked."""

    address: str = "127.0.0.1:8001"
    """host:port."""


class DeadlineSettings(Group):
    """How long."""

    v2_s: Seconds = 30.0
    """Seconds."""


class ImageSettings(Group):
    """Pictures."""

    threads: Annotated[int, Field(ge=1, le=64)] = 2
    """How many at once."""


class Settings(ProcessSettings):
    """A process's settings."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_", cli_prog_name="some-process")

    default_model: str = Field(default="m", min_length=1)
    """The model."""
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    engine: EngineSettings = EngineSettings()
    deadline: DeadlineSettings = DeadlineSettings()
    images: ImageSettings = ImageSettings()
    log: LogSettings = LogSettings()


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("TIDEGATE_"):
            monkeypatch.delenv(name)


def load(*arguments: str) -> Settings:
    return settings.load(Settings, list(arguments))


def refusal(*arguments: str) -> str:
    with pytest.raises(InvalidSettings) as refused:
        load(*arguments)
    return str(refused.value)


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HTTP__PORT", "1")
    monkeypatch.setenv("TIDEGATE_HTTP__HOST", "127.0.0.2")

    given = load("--http.port=2", "--deadline.v2_s", "4.5")

    assert (given.http.port, given.http.host, given.deadline.v2_s) == (2, "127.0.0.2", 4.5)
    assert (given.grpc.port, given.log.level) == (8081, "info")


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().http.port = 1
    with pytest.raises(ValueError, match="frozen"):
        load().default_model = "n"


def test_help_names_the_program_and_every_setting_with_what_it_means(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        load("--help")
    shown = " ".join(capsys.readouterr().out.split())

    assert left.value.code == 0
    assert "usage: some-process " in shown
    for text in ("--http.port int Port; 0 takes a free one.", "--default_model str The model."):
        assert text in shown


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        (
            "--http.port=web",
            "http.port: Input should be a valid integer, unable to parse string as an integer, "
            "got 'web'",
        ),
        ("--http.port=-1", "http.port: Input should be greater than or equal to 0, got '-1'"),
        ("--grpc.port=0", "grpc.port: Input should be greater than or equal to 1, got '0'"),
        (
            "--grpc.port=65536",
            "grpc.port: Input should be less than or equal to 65535, got '65536'",
        ),
        ("--deadline.v2_s=0", "deadline.v2_s: Input should be greater than 0, got '0'"),
        (
            "--deadline.v2_s=inf",
            "deadline.v2_s: Input should be less than or equal to 86400, got 'inf'",
        ),
        (
            "--deadline.v2_s=nan",
            "deadline.v2_s: Input should be less than or equal to 86400, got 'nan'",
        ),
        (
            "--log.level=INFO",
            "log.level: Input should be 'debug', 'info', 'warning' or 'error', got 'INFO'",
        ),
        ("--default_model=", "default_model: String should have at least 1 character, got ''"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(argument: str, sentence: str) -> None:
    assert refusal(argument) == sentence


def test_every_bad_value_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_DEADLINE__V2_S", "long")

    lines = refusal("--http.port=web", "--images.threads=1000").splitlines()

    assert sorted(line.partition(":")[0] for line in lines) == [
        *("deadline.v2_s", "http.port", "images.threads"),
    ]


@pytest.mark.parametrize("argument", ["--nonsense=1", "--http.por=1", "--http.port", "8080"])
def test_an_unknown_argument_ends_with_its_name(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        load(argument)

    assert left.value.code == 2
    assert argument in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "TIDEGATE_HTTP__PROT",
            "TIDEGATE_HTTP__PROT: no such setting; did you mean TIDEGATE_HTTP__PORT?",
        ),
        (
            "TIDEGATE_ENGINE__ADRESS",
            "TIDEGATE_ENGINE__ADRESS: no such setting; did you mean TIDEGATE_ENGINE__ADDRESS?",
        ),
        (
            "TIDEGATE_DEADLINES__V2_S",
            "TIDEGATE_DEADLINES__V2_S: no such setting; did you mean TIDEGATE_DEADLINE__V2_S?",
        ),
        (
            "TIDEGATE_DEFAULT__MODEL",
            "TIDEGATE_DEFAULT__MODEL: no such setting; did you mean TIDEGATE_DEFAULT_MODEL?",
        ),
        (
            "tidegate_http__prot",
            "tidegate_http__prot: no such setting; did you mean TIDEGATE_HTTP__PORT?",
        ),
        (
            "TIDEGATE_HTTP__PORT__X",
            "TIDEGATE_HTTP__PORT__X: no such setting; did you mean TIDEGATE_HTTP__PORT?",
        ),
        ("TIDEGATE_QQQ__", "TIDEGATE_QQQ__: no such setting"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused(
    name: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")

    assert refusal() == sentence


def test_variables_are_named_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HTTP__PROT", "1")
    monkeypatch.setenv("TIDEGATE_GRPC__PROT", "1")

    assert refusal().splitlines() == [
        "TIDEGATE_GRPC__PROT: no such setting; did you mean TIDEGATE_GRPC__PORT?",
        "TIDEGATE_HTTP__PROT: no such setting; did you mean TIDEGATE_HTTP__PORT?",
    ]


def test_what_kubernetes_adds_for_services_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of Services named tidegate and tidegate-http, in whose namespace the pod runs."""
    for service in ("TIDEGATE", "TIDEGATE_HTTP"):
        for name, text in {
            "SERVICE_HOST": "10.96.0.7",
            "SERVICE_PORT": "8080",
            "SERVICE_PORT_HTTP": "8080",
            "PORT": "tcp://10.96.0.7:8080",
            "PORT_8080_TCP": "tcp://10.96.0.7:8080",
            "PORT_8080_TCP_PROTO": "tcp",
            "PORT_8080_TCP_PORT": "8080",
            "PORT_8080_TCP_ADDR": "10.96.0.7",
        }.items():
            monkeypatch.setenv(f"{service}_{name}", text)

    assert load() == Settings()

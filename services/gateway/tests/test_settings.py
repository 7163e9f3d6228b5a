"""Settings: where they come from, what is allowed, and what is said of the rest."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidegate_gateway import settings
from tidegate_gateway.settings import Settings
from tidegate_process.settings import InvalidSettings


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("TIDEGATE_"):
            monkeypatch.delenv(name)


def fields(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its dotted name."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def value(of: Settings, name: str) -> Any:
    found: Any = of
    for part in name.split("."):
        found = getattr(found, part)
    return found


def variable(name: str) -> str:
    return "TIDEGATE_" + name.upper().replace(".", "__")


def refusal(*arguments: str) -> str:
    with pytest.raises(InvalidSettings) as refused:
        settings.load(list(arguments))
    return str(refused.value)


ALL = dict(fields())
# Another value than the default's for each setting, as text.
OTHER = {
    name: {
        "engine.address": "triton.default.svc:8001",
        "engine.protocol": "kserve-v2",
        "engine.model_configs": "/",
        "discovery.source": "address",
        "discovery.service": "engines",
        "health.error_ratio": "0.77",
        "health.most_ejected": "0.77",
        "attempts.most": "7",
        "attempts.hedge": "True",
        "attempts.budget_ratio": "0.77",
        "answers.engine_names": "True",
        "log.level": "debug",
        "images.threads": "3",
        "http.max_header_bytes": "2048",
        "http.compression_level": "7",
        "grpc.max_metadata_bytes": "2048",
        "grpc.compression": "gzip",
        "admission.max_bytes": "7777777",
    }.get(name, "127.0.0.1" if name.endswith("host") else "77")
    for name in ALL
}


# What a setting does not stand without.
WITH = {
    "routing.config_map": ["--routing.folder=/"],
    "discovery.service": ["--discovery.source=kubernetes"],
    "discovery.namespace": ["--discovery.source=kubernetes", "--discovery.service=engines"],
}


def test_the_defaults_are_allowed() -> None:
    given = settings.load([])

    assert (given.http.port, given.grpc.port, given.admin.port) == (8080, 8081, 8082)
    assert (given.deadline.predict_s, given.deadline.v2_s) == (3.0, 30.0)
    assert given.engine.max_message_bytes == 2**30
    assert given.engine.keepalive_s == 310.0


@pytest.mark.parametrize("name", ALL)
def test_each_setting_comes_from_an_argument(name: str) -> None:
    given = settings.load([f"--{name}={OTHER[name]}", *WITH.get(name, [])])

    assert str(value(given, name)).removesuffix(".0") == OTHER[name]


@pytest.mark.parametrize("name", ALL)
def test_each_setting_comes_from_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable(name), OTHER[name])

    given = settings.load(WITH.get(name, []))

    assert str(value(given, name)).removesuffix(".0") == OTHER[name]


def test_help_names_every_setting_with_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        settings.load(["--help"])
    shown = " ".join(capsys.readouterr().out.split())

    assert left.value.code == 0
    for name, field in ALL.items():
        assert field.description, name
        # Lines are broken anywhere, also after hyphens.
        meaning = "".join(field.description.split())
        assert f"--{name} " in shown, name
        assert meaning in "".join(shown.split()), name


@pytest.mark.parametrize("name", ALL)
def test_a_name_with_a_unit_says_it_in_words(name: str) -> None:
    words = (ALL[name].description or "").lower()

    assert "seconds" in words or not name.endswith("_s")
    assert "bytes" in words or not name.endswith("_bytes")


# What is not allowed


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        (
            "--http.port=web",
            "http.port: Input should be a valid integer, unable to parse string as an integer, "
            "got 'web'",
        ),
        ("--http.port=-1", "http.port: Input should be greater than or equal to 0, got '-1'"),
        (
            "--grpc.port=65536",
            "grpc.port: Input should be less than or equal to 65535, got '65536'",
        ),
        (
            "--http.max_body_bytes=0",
            "http.max_body_bytes: Input should be greater than or equal to 1, got '0'",
        ),
        (
            "--engine.max_message_bytes=2147483648",
            "engine.max_message_bytes: Input should be less than or equal to 2147483647, "
            "got '2147483648'",
        ),
        ("--deadline.v2_s=0", "deadline.v2_s: Input should be greater than 0, got '0'"),
        ("--deadline.max_s=-3", "deadline.max_s: Input should be greater than 0, got '-3'"),
        (
            "--deadline.max_s=inf",
            "deadline.max_s: Input should be less than or equal to 86400, got 'inf'",
        ),
        (
            "--deadline.max_s=nan",
            "deadline.max_s: Input should be less than or equal to 86400, got 'nan'",
        ),
        (
            "--deadline.predict_s=3s",
            "deadline.predict_s: Input should be a valid number, unable to parse string as a "
            "number, got '3s'",
        ),
        (
            "--images.threads=0",
            "images.threads: Input should be greater than or equal to 1, got '0'",
        ),
        (
            "--drain.delay_s=-1",
            "drain.delay_s: Input should be greater than or equal to 0, got '-1'",
        ),
        (
            "--engine.protocol=http",
            "engine.protocol: Input should be 'kserve-v2' or 'inference-service', got 'http'",
        ),
        (
            "--log.level=INFO",
            "log.level: Input should be 'debug', 'info', 'warning' or 'error', got 'INFO'",
        ),
        ("--default_model=", "default_model: String should have at least 1 character, got ''"),
        (
            "--discovery.interval_s=0.4",
            "discovery.interval_s: Input should be greater than or equal to 0.5, got '0.4'",
        ),
        (
            "--discovery.source=kubernetes",
            "discovery.service: expected the name of a Service, since discovery.source is "
            "kubernetes, got none",
        ),
        (
            "--discovery.service=engines",
            "discovery.source: expected kubernetes, since discovery.service or "
            "discovery.namespace is given, got address",
        ),
        (
            "--health.error_ratio=1.5",
            "health.error_ratio: Input should be less than or equal to 1, got '1.5'",
        ),
        (
            "--attempts.hedge=perhaps",
            "attempts.hedge: Input should be a valid boolean, unable to interpret input, "
            "got 'perhaps'",
        ),
        (
            "--routing.config_map=tidegate_routing",
            "routing.config_map: String should match pattern "
            "'^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$', got 'tidegate_routing'",
        ),
        (
            "--routing.config_map=routing",
            "routing.folder: expected a folder that exists, since routing.config_map is given, "
            "got none",
        ),
        (
            "--engine.protocol=inference-service",
            "engine.model_configs: expected a folder with <model>/config.pbtxt, since "
            "engine.protocol is inference-service, got none",
        ),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(argument: str, sentence: str) -> None:
    assert refusal(argument) == sentence


@pytest.mark.parametrize(
    "address",
    [
        "triton",
        "triton:",
        ":",
        "http://triton:8001",
        "triton:http",
        "tri ton:8001",
        "triton:123456",
    ],
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    assert refusal(f"--engine.address={address}").startswith("engine.address: ")


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8001", "[::1]:8001", "triton-0.triton.svc:1", "10.0.0.1:1,[::1]:1,a:1"]
)
def test_addresses_that_are(address: str) -> None:
    assert settings.load([f"--engine.address={address}"]).engine.address == address


@pytest.mark.parametrize("addresses", ["a:1,", ",a:1", "a:1, b:2", "a:1;b:2", "a:1,b"])
def test_several_addresses_have_a_comma_between_them_and_nothing_else(addresses: str) -> None:
    assert refusal(f"--engine.address={addresses}").startswith("engine.address: ")


@pytest.mark.parametrize("name", ["Engines", "engines_1", "1engines", "-engines", "a.b", "a" * 64])
def test_a_service_has_the_name_of_one(name: str) -> None:
    assert refusal("--discovery.source=kubernetes", f"--discovery.service={name}").startswith(
        "discovery.service: String should match pattern"
    )


def test_endpoint_slices_need_no_more_than_a_service() -> None:
    given = settings.load(["--discovery.source=kubernetes", "--discovery.service=tidegate-engine"])
    found = given.discovery
    assert (found.source, found.service, found.namespace, found.port_name) == (
        *("kubernetes", "tidegate-engine", "", "grpc"),
    )


def test_a_folder_has_to_be_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    assert refusal(f"--engine.model_configs={missing}") == (
        f"engine.model_configs: expected a folder that exists, got '{missing}'"
    )
    given = settings.load(
        [f"--engine.model_configs={tmp_path}", "--engine.protocol=inference-service"]
    )
    assert given.engine.model_configs == tmp_path


def test_a_table_comes_from_one_place(tmp_path: Path) -> None:
    config_map = ["--routing.config_map=routing", f"--routing.folder={tmp_path}"]

    assert settings.load(config_map).routing.folder == tmp_path
    assert refusal(*config_map, "--routing.table=table.json") == (
        "routing.table: expected none, since routing.config_map is given, got 'table.json'"
    )
    assert refusal(config_map[0], f"--routing.folder={tmp_path}/missing") == (
        "routing.folder: expected a folder that exists, since routing.config_map is given, "
        f"got '{tmp_path}/missing'"
    )


def test_a_variable_that_is_no_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HTTP__PROT", "1")
    monkeypatch.setenv("TIDEGATE_PORT_8080_TCP", "by Kubernetes")

    assert refusal() == "TIDEGATE_HTTP__PROT: no such setting; did you mean TIDEGATE_HTTP__PORT?"

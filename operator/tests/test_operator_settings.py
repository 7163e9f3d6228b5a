"""Settings: what is wrong is told by name before anything starts."""

import subprocess
import sys

import pytest

from tidegate_operator import settings
from tidegate_process.settings import InvalidSettings


def test_without_any_the_defaults_are_taken() -> None:
    given = settings.load([])

    assert (given.engines.loader_port, given.gateways.admin_port, given.liveness.port) == (
        8003,
        8082,
        8083,
    )


def test_the_command_line_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_OPERATOR_PACE__INTERVAL_S", "3")
    monkeypatch.setenv("TIDEGATE_OPERATOR_PACE__ASK_TIMEOUT_S", "4")

    given = settings.load(["--pace.interval_s=5"])

    assert (given.pace.interval_s, given.pace.ask_timeout_s) == (5, 4)


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("--pace.interval_s=0", "pace.interval_s: Input should be greater than 0"),
        ("--table.config_map=A_B", "table.config_map: String should match pattern"),
        ("--engines.selector=a in (b)", "engines.selector: String should match pattern"),
        ("--gateways.selector=a!=b", "gateways.selector: String should match pattern"),
        ("--lease.duration_s=10", "lease.duration_s: expected more than lease.renew_s and"),
    ],
)
def test_what_cannot_be_used_is_named(argument: str, why: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings.load([argument])
    assert why in str(caught.value)


def test_a_variable_that_is_no_setting_is_named_with_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEGATE_OPERATOR_PACE__INTERVALL_S", "3")
    monkeypatch.setenv("TIDEGATE_OPERATOR_PORT_8083_TCP", "by Kubernetes")

    with pytest.raises(InvalidSettings) as caught:
        settings.load([])
    assert str(caught.value) == (
        "TIDEGATE_OPERATOR_PACE__INTERVALL_S: no such setting; "
        "did you mean TIDEGATE_OPERATOR_PACE__INTERVAL_S?"
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "why"),
    [
        (["--lease.renew_s=0"], {}, "lease.renew_s: Input should be greater than 0"),
        ([], {"KUBECONFIG": "nowhere"}, "expected a pod's service account or a kubeconfig"),
    ],
)
def test_an_operator_that_cannot_start_says_why_in_a_line(
    arguments: list[str], environment: dict[str, str], why: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tidegate_operator", *arguments],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert ended.returncode == 1
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr

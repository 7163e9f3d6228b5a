"""Engines fail under steady traffic, and no client sees a failed request while one is well."""

import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_gateway.settings import AttemptSettings
from tidegate_traffic import Expectation, Fault, Report

from . import faults
from .conftest import Engines
from .steady import (
    DELAY_MS,
    IN_FLIGHT,
    RATES,
    SETTLED_S,
    answered,
    plan,
    prove,
    steady_traffic,
    wait_seconds,
    wait_until_answering,
)

pytestmark = pytest.mark.needs("engine")

# Seconds for which a fault lasts, where it does not end by itself.
HELD_S = 2.0
# Requests in flight that a fault must find on its victim; some four are to be expected.
LEAST_HIT = 2
# Milliseconds that `paced` takes where all engines become slow. Five times as long it has some 30
# requests in flight, which three engines can still carry.
OVERLOADED_MS = 150
# Seconds within which a new or returned engine must answer, and the slack of a busy machine.
RETURN_S = 2.0
SLACK_S = 1.0

Blows = Sequence[tuple[LocalEngine, faults.Fault]]


@pytest.fixture
def outlive(gateway: LocalGateway, engines: Engines, tmp_path: Path) -> Callable[..., Report]:
    """Has faults strike at one moment, keeps them for a while and until a condition is fulfilled,
    mends them, and proves that no request has failed and that each victim had requests in flight
    and answers again."""

    def strike(
        blows: Blows,
        held_s: float = HELD_S,
        delay_ms: int = DELAY_MS,
        until: Callable[[Report], bool] = lambda _: True,
    ) -> Report:
        with steady_traffic(plan(gateway, delay_ms), tmp_path, engines) as control:
            control.wait_in_flight(IN_FLIGHT * delay_ms // DELAY_MS)
            name = ", ".join(fault.name for _, fault in blows)
            with control.fault(name):
                for victim, fault in blows:
                    fault.strike(victim)
            wait_seconds(control, held_s)
            control.wait_for(until, "what the fault lasts for")
            for victim, fault in blows:
                fault.mend(victim)
            victims = [victim for victim, _ in blows]
            back_s = wait_until_answering(control, victims)
            report = control.stop()
        expected = [
            Fault(name, "engine", each.grpc_address, each.grpc_address, back_s, LEAST_HIT)
            for each in victims
        ]
        prove(
            report,
            Expectation(
                requests={route: int(rate * (SETTLED_S + held_s)) for route, rate in RATES.items()},
                versions={"paced": ["2"], "identity": ["1"]},
                engines=[engine.grpc_address for engine in engines],
                faults=expected,
            ),
        )
        return report

    return strike


def test_a_killed_engine_is_not_noticed(outlive: Callable[..., Report], engines: Engines) -> None:
    outlive([(engines[0], faults.KILLED)])


def test_an_engine_that_is_told_to_stop_is_not_noticed(
    outlive: Callable[..., Report], engines: Engines
) -> None:
    outlive([(engines[1], faults.TERMINATED)])


def test_an_engine_that_stalls_and_goes_on_is_not_noticed(
    outlive: Callable[..., Report], engines: Engines
) -> None:
    outlive([(engines[2], faults.STALLED)])


def test_an_engine_that_becomes_twenty_times_slower_is_not_noticed(
    outlive: Callable[..., Report], engines: Engines
) -> None:
    outlive([(engines[0], faults.SLOWED)])


def test_an_engine_that_is_restarted_is_not_noticed(
    outlive: Callable[..., Report], engines: Engines
) -> None:
    outlive([(engines[1], faults.KILLED)], held_s=0)


def test_a_dead_backend_process_is_not_noticed_and_the_engine_serves_its_other_model(
    outlive: Callable[..., Report], engines: Engines
) -> None:
    victim = engines[2]

    def serves_its_other_model(report: Report) -> bool:
        began_s = report.faults[0].began_s
        return victim.grpc_address in answered(report, "identity", since_s=began_s)

    report = outlive([(victim, faults.BACKEND_KILLED)], until=serves_its_other_model)
    died_s = report.faults[0].began_s
    dead = answered(report, "paced", since_s=died_s, before_s=died_s + HELD_S)
    assert dead.keys() == {engine.grpc_address for engine in engines[:2]}


def test_two_engines_of_three_that_fail_at_once_are_not_noticed(
    outlive: Callable[..., Report], engines: Engines
) -> None:
    outlive([(engines[0], faults.STALLED), (engines[1], faults.KILLED)])


def test_an_engine_that_stops_beside_one_with_a_dead_backend_process_is_not_noticed(
    outlive: Callable[..., Report], engines: Engines
) -> None:
    outlive([(engines[1], faults.TERMINATED), (engines[2], faults.BACKEND_KILLED)])


def test_a_load_that_slows_every_engine_down_fails_nothing_and_is_not_doubled(
    outlive: Callable[..., Report], gateway: LocalGateway, engines: Engines
) -> None:
    report = outlive(
        [(engine, faults.OVERLOADED) for engine in engines], held_s=4, delay_ms=OVERLOADED_MS
    )
    slowest_ms = max(report.routes[name].latency.max_ms for name in ("json", "grpc"))
    assert slowest_ms >= faults.OVERLOAD * OVERLOADED_MS, "no engine was slowed down"
    attempts = attempts_by_reason(gateway, "paced")
    further = sum(attempts.values()) - attempts["first"]
    print(f"attempts: {attempts}")
    # Ten seconds are what the budget is counted over: the burst is there anew in each.
    rules = AttemptSettings()
    bursts = math.ceil(report.elapsed_s / 10) * max(rules.budget_burst, report.peak_in_flight)
    assert further <= rules.budget_ratio * attempts["first"] + bursts


def test_without_any_engine_the_answer_is_503_at_once_and_the_first_one_back_is_used(
    gateway: LocalGateway, engines: Engines
) -> None:
    assert infer(gateway).status_code == 200
    for engine in engines:
        faults.KILLED.strike(engine)
    for engine in engines:
        engine.wait()
    began = time.monotonic()
    away = infer(gateway)
    assert time.monotonic() - began < SLACK_S
    assert (away.status_code, away.headers["retry-after"]) == (503, "1")
    assert httpx.get(f"{gateway.admin_url}/readyz").status_code == 200

    engines[1].start()
    began = time.monotonic()
    while infer(gateway).status_code == 503 and time.monotonic() - began < RETURN_S + SLACK_S:
        time.sleep(0.02)
    assert time.monotonic() - began < RETURN_S + SLACK_S
    assert infer(gateway).headers["tidegate-engine"] == engines[1].grpc_address


def test_an_engine_that_comes_up_gets_traffic_in_two_seconds(
    gateway_to: Callable[..., LocalGateway], engines: Engines, tmp_path: Path
) -> None:
    *old, new = engines
    new.kill()
    with steady_traffic(plan(gateway_to(engines)), tmp_path, old) as control:
        new.start()
        began_s = wait_until_answering(control, [new])
        report = control.stop()
    first = min(cell.second for cell in report.cells if cell.engine == new.grpc_address)
    print(f"the engine answered from second {first} on, and was up at {began_s:.1f} s")
    prove(
        report, Expectation(requests={"json": 20}, engines=[each.grpc_address for each in engines])
    )
    assert first < began_s + RETURN_S + SLACK_S


def attempts_by_reason(gateway: LocalGateway, model: str) -> dict[str, int]:
    """Attempts of `model` as the gateway counts them."""
    found: dict[str, int] = {}
    for line in httpx.get(f"{gateway.admin_url}/metrics").text.splitlines():
        if line.startswith("tidegate_gateway_attempts_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            if labels["model"] == model:
                count = int(float(line.rpartition(" ")[2]))
                found[labels["reason"]] = found.get(labels["reason"], 0) + count
    return found


def infer(gateway: LocalGateway) -> httpx.Response:
    one = {"name": "input", "datatype": "FP32", "shape": [1], "data": [1.0]}
    return httpx.post(
        f"{gateway.http_url}/v2/models/paced/infer",
        json={"inputs": [one]},
        headers={"tidegate-timeout": "3"},
        timeout=10,
    )

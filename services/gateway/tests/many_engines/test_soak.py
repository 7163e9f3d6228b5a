"""Faults at random under steady traffic: SOAK_S seconds of them (20), by the seed SOAK_SEED."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_traffic import Control, Expectation, Fault

from . import faults
from .conftest import Engines
from .steady import (
    RATES,
    SOAK_S,
    plan,
    prove,
    steady_traffic,
    wait_seconds,
    wait_until_answering,
    write_table,
)

pytestmark = pytest.mark.needs("engine")

SEED = int(os.environ.get("SOAK_SEED") or random.SystemRandom().getrandbits(32))

# How many of the three fail at once: one stays well.
VICTIMS = (1, 1, 2)
# Seconds that faults last, and between two of them.
HELD_S = (0.0, 4.0)
REST_S = (0.0, 4.0)


def test_no_request_fails_whatever_befalls_two_engines_of_three(
    gateway_to: Callable[..., LocalGateway], engines: Engines, tmp_path: Path
) -> None:
    say(f"{SOAK_S:g} s, SOAK_SEED={SEED}")
    table = tmp_path / "table.json"
    write_table(table, 1, {"1": 60, "2": 40})
    gateway = gateway_to(engines, f"--routing.table={table}")
    chance = random.Random(SEED)
    struck: list[Fault] = []
    with steady_traffic(plan(gateway), tmp_path, engines) as control:
        while control.in_flight().now_s < SOAK_S:
            struck += round_of_faults(control, engines, chance, len(struck))
            wait_seconds(control, chance.uniform(*REST_S))
        report = control.stop()
    prove(
        report,
        Expectation(
            requests={route: int(rate * SOAK_S) for route, rate in RATES.items()},
            versions={"paced": ["1", "2"], "identity": ["1"]},
            engines=[engine.grpc_address for engine in engines],
            faults=struck,
        ),
    )
    # One fault may meet an engine at rest; most do not.
    hit = sum(
        count
        for found in report.faults
        for engine, count in found.by_engine.items()
        if engine in found.name
    )
    assert hit >= len(struck), f"{len(struck)} faults found {hit} requests on their victims"


def round_of_faults(
    control: Control, engines: Engines, chance: random.Random, number: int
) -> list[Fault]:
    """One or two engines suffer something, and are well again."""
    victims = chance.sample(engines, chance.choice(VICTIMS))
    blows = [(victim, chance.choice(faults.EVERY)) for victim in victims]
    name = f"{number}: " + ", ".join(f"{fault.name} {e.grpc_address}" for e, fault in blows)
    with control.fault(name):
        for victim, fault in blows:
            fault.strike(victim)
    wait_seconds(control, chance.uniform(*HELD_S))
    for victim, fault in blows:
        fault.mend(victim)
    back_s = wait_until_answering(control, victims, pause_s=1)
    report = control.report()
    say(f"{report.elapsed_s:6.1f} s  {name}; {report.ok} ok, {report.failed} failed")
    return [expected(name, victim, back_s) for victim in victims]


def expected(name: str, victim: LocalEngine, back_s: float) -> Fault:
    address = victim.grpc_address
    return Fault(name, "engine", address, address, back_s, least_in_flight=0)


def say(line: str) -> None:
    print(line, flush=True)

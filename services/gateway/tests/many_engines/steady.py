"""Steady traffic through one gateway to several engines, and what it must prove."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway
from tidegate_traffic import Control, Expectation, LocalTraffic, Report, evidence
from tidegate_traffic.outcomes import Outcome

# Seconds that a client gives a request: the promise is for twice the model's 99th percentile.
DEADLINE_S = 3
# Milliseconds that `paced` takes, and requests a second: some 12 in flight, which one engine can
# carry, since it works on 16 at a time.
DELAY_MS = 300
RATES = {"json": 20.0, "grpc": 20.0, "echo": 10.0}
# What is in flight by then is on every engine.
IN_FLIGHT = 9
# Seconds of traffic before anything happens: the gateway has seen what is usual.
SETTLED_S = 1.5
# Seconds that the soak goes on; `make soak` has it go on for ten minutes.
SOAK_S = float(os.environ.get("SOAK_S") or 20)
# Seconds for what should take a moment.
PATIENCE_S = 30


def plan(gateway: LocalGateway, delay_ms: int = DELAY_MS) -> dict[str, Any]:
    """`paced` over both protocols, which keeps requests in flight, and `identity` at once."""
    every = {"timeout_s": 10, "headers": {"tidegate-timeout": str(DEADLINE_S)}}
    paced = {
        **every, "model": "paced", "input": "input", "output": "output",
        "constants": [{"name": "delay_ms", "datatype": "INT32", "values": [delay_ms]}],
    }  # fmt: skip
    echo = {**every, "model": "identity", "input": "INPUT_FP32", "output": "OUTPUT_FP32"}
    routes: dict[str, Mapping[str, Any]] = {
        "json": {**paced, "kind": "v2_json", "connections": 4},
        "grpc": {**paced, "kind": "v2_grpc", "connections": 4},
        "echo": {**echo, "kind": "v2_grpc"},
    }
    return {
        "http": gateway.http_url,
        "grpc": gateway.grpc_address,
        "routes": [{"name": name, "rate": RATES[name], **route} for name, route in routes.items()],
    }


@contextmanager
def steady_traffic(
    planned: Mapping[str, Any], directory: Path, engines: Sequence[LocalEngine]
) -> Iterator[Control]:
    """Traffic that flows through every one of `engines`."""
    names = {engine.grpc_address for engine in engines}
    with LocalTraffic(planned, directory) as traffic:
        traffic.control.wait_for(
            lambda report: report.elapsed_s > SETTLED_S and names <= set(answered(report)),
            "every engine has answered",
        )
        yield traffic.control


def prove(report: Report, expected: Expectation) -> None:
    """Print what came, and fail with what is missing."""
    print(evidence.summary(report))
    assert evidence.missing(report, expected) == []


def answered(
    report: Report, model: str = "paced", since_s: float = 0.0, before_s: float = float("inf")
) -> dict[str, int]:
    """Good answers of `model` by engine, to requests due in whole seconds of [since, before)."""
    counts: dict[str, int] = {}
    for cell in report.cells:
        due = since_s <= cell.second and cell.second + 1 <= before_s
        if cell.outcome is Outcome.OK and cell.model == model and due:
            counts[cell.engine] = counts.get(cell.engine, 0) + cell.count
    return counts


def wait_until_answering(
    control: Control, engines: Sequence[LocalEngine], *, pause_s: float = 0.2
) -> float:
    """Wait until each of `engines` answers `paced` to requests due after now; returns that now, in
    the run's seconds."""
    now_s = control.in_flight().now_s
    names = {engine.grpc_address for engine in engines}
    control.wait_for(
        lambda report: names <= set(answered(report, since_s=now_s)),
        f"answers of {', '.join(sorted(names))} to requests due after {now_s:.1f} s",
        pause_s=pause_s,
    )
    return now_s


def wait_seconds(control: Control, seconds: float) -> None:
    """Let the traffic go on for so long, by its own clock."""
    end_s = control.in_flight().now_s + seconds
    until = time.monotonic() + seconds + PATIENCE_S
    while (now_s := control.in_flight().now_s) < end_s:
        assert time.monotonic() < until, f"the traffic stands still at {now_s:.1f} s"
        time.sleep(0.1)


def write_table(path: Path, revision: int, weights: Mapping[str, int]) -> None:
    """A routing table with these weights of `paced`, at once in the place of the one before."""
    table = {
        "schema": 1,
        "revision": revision,
        "aliases": {"metronome": "paced"},
        "models": {
            "paced": {"stable": "1", "weights": weights},
            "identity": {"stable": "1"},
        },
    }
    new = path.with_suffix(".new")
    new.write_text(json.dumps(table))
    new.replace(path)

"""Steady traffic on the model `versioned`, whose answers say which version gave them.

For all tests of a module there is one run, since a run takes a while to begin and to end. Each
test has its part of it, in which no request may fail; at the end of the module the whole run must
be without failures, and every fault must have found requests in flight.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from rolls.release import NAMESPACE, RELEASE
from tidegate_traffic import evidence, tables
from tidegate_traffic.driver import Control
from tidegate_traffic.evidence import Expectation, Fault
from tidegate_traffic.outcomes import Outcome
from tidegate_traffic.report import Cell, Report

MODEL = "versioned"
# Requests that a part of a run has at least.
LEAST = 100
# Seconds between two looks at a report: that of a run of minutes is large.
PAUSE_S = 1.0

# The versions that may answer: those that are well, if only for a while. The others must be found
# out before they get a request.
_ALLOWED = ["1", "2", "3", "4", "18"]
_TENSORS: Mapping[str, Any] = {
    "model": MODEL,
    "input": "input",
    "output": "output",
    "version_output": "version",
    "versions": _ALLOWED,
    "headers": {"tidegate-timeout": "9"},
    "timeout_s": 12,
}
# Kept connections and ever new ones, over both protocols.
ROUTES: Mapping[str, Mapping[str, Any]] = {
    "json": {**_TENSORS, "kind": "v2_json", "rate": 10.0, "requests_per_connection": 5},
    "grpc": {**_TENSORS, "kind": "v2_grpc", "rate": 30.0, "connections": 4},
    # Twelve in flight at any moment, without any work for the engines; by so many connections, and
    # new ones, that no gateway is without.
    "slow": {
        **_TENSORS,
        "kind": "v2_grpc",
        "rate": 8.0,
        "connections": 12,
        "requests_per_connection": 10,
        "constants": [{"name": "delay_ms", "datatype": "INT32", "values": [1500]}],
    },
}


def plan(routes: Mapping[str, Mapping[str, Any]] = ROUTES, host: str = "") -> Mapping[str, Any]:
    """A plan of these routes, through the Service or to one gateway's address."""
    host = host or f"{RELEASE}-gateway.{NAMESPACE}"
    return {
        "http": f"http://{host}:8080",
        "grpc": f"{host}:8081",
        "routes": [{"name": name, **route} for name, route in routes.items()],
    }


def begin(control: Control) -> None:
    """Start it, and wait until it goes on."""
    control.start()
    control.wait_for(lambda report: report.ok > LEAST / 2, "it goes on")


@dataclass(frozen=True)
class Part:
    """A part of a run: what was due from `begin_s` on.

    Attributes:
        failed_before: requests that had failed by then.
    """

    control: Control
    begin_s: float
    failed_before: int

    def so_far(self) -> Report:
        """The report of this part alone, but for the figures of its routes."""
        return self.of(self.control.report())

    def of(self, report: Report) -> Report:
        """What of a report of the whole run belongs to this part."""
        return replace(
            report,
            cells=tuple(cell for cell in report.cells if cell.second >= self.begin_s),
            faults=tuple(fault for fault in report.faults if fault.began_s >= self.begin_s),
            failures=tuple(each for each in report.failures if each.due_s >= self.begin_s),
        )

    def answered_by(self, version: int) -> int:
        """The good answers of a version in it."""
        return sum(cell.count for cell in good(self.so_far()) if cell.version == str(version))

    def await_answers_of(self, version: int, engines: Collection[str]) -> None:
        """Wait until each of these engines has answered with a version, by a request that is due
        from now on, and no other version has answered one."""
        now_s = self.control.in_flight().now_s
        report = await_answers(self.control, "engine", engines)
        told = {cell.version for cell in good(report) if cell.second > now_s}
        assert told == {str(version)}


class Watch:
    """The run of a module.

    Attributes:
        faults: those that must have hit.
    """

    def __init__(self, control: Control) -> None:
        self.control = control
        self.faults: list[Fault] = []

    @contextmanager
    def unnoticed(self, least: int = LEAST) -> Iterator[Part]:
        """Within it no request may fail, and there must be so many; prints what came."""
        before = self.control.report()
        part = Part(self.control, before.elapsed_s, before.failed)
        yield part
        after = self.control.wait_for(
            lambda report: sum(cell.count for cell in good(part.of(report))) >= least,
            f"{least} good answers",
            pause_s=PAUSE_S,
        )
        self._judge(part, after)

    def _judge(self, part: Part, report: Report) -> None:
        found = part.of(report)
        print(f"{part.begin_s:.1f} s to {report.elapsed_s:.1f} s of the run:\n")
        print(tables.traffic(found))
        if found.faults:
            print(f"\n{tables.faults(found)}")
        if failed := report.failed - part.failed_before:
            pytest.fail(f"{failed} requests failed\n{tables.failures(found)}", pytrace=False)

    def end(self) -> None:
        """End the run, and fail unless it is the proof of what its tests claim."""
        report = self.control.stop()
        expected = Expectation(
            requests=dict.fromkeys(report.routes, LEAST),
            versions={MODEL: ["1"]},
            faults=self.faults,
        )
        if missing := evidence.missing(report, expected):
            print(evidence.summary(report))
            pytest.fail("\n".join(missing), pytrace=False)


def await_answers(
    control: Control, part: Literal["engine", "gateway"], names: Collection[str]
) -> Report:
    """Wait until each of these engines or gateways has answered a request due from now on; returns
    the report of then."""
    now_s = control.in_flight().now_s

    def answered(report: Report) -> set[str]:
        later = [cell for cell in good(report) if cell.second > now_s]
        return {cell.engine if part == "engine" else cell.gateway for cell in later}

    return control.wait_for(
        lambda report: set(names) <= answered(report),
        f"{', '.join(names)} have answered",
        pause_s=PAUSE_S,
    )


def good(report: Report) -> list[Cell]:
    """The cells of good answers."""
    return [cell for cell in report.cells if cell.outcome is Outcome.OK]

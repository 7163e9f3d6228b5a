"""Whether a report proves what a test claims. Pure.

No failure among no requests proves nothing, and neither does a fault that hit nobody: a test passes
only when the traffic and the fault are there to be seen in the report.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from tidegate_traffic import tables
from tidegate_traffic.outcomes import Outcome
from tidegate_traffic.report import Cell, FaultReport, Report

DOUBT = Fraction(1, 10**9)
"""With which probability a share that is as it should be is taken for another."""


@dataclass(frozen=True)
class Fault:
    """A fault that must have hit, and have been mended.

    Attributes:
        name: as it was announced to the generator.
        part: what the victim is.
        victim: its name as answers tell it.
        least_in_flight: requests that the fault must have found on the victim.
        replacement: the name of what took its place, as answers tell it; the same name when it came
            back under it.
        replaced_at_s: when the replacement was seen ready, in the run's seconds; None: it was not.
    """

    name: str
    part: Literal["engine", "gateway"]
    victim: str
    replacement: str = ""
    replaced_at_s: float | None = None
    least_in_flight: int = 5


@dataclass(frozen=True)
class Expectation:
    """What a report must show.

    Attributes:
        requests: route → how many must have been sent at least.
        allowed_failures: those that were not sent included.
        versions: model → versions that must each have given a good answer.
        engines, gateways: that must each have given a good answer.
        most_late_s: seconds that a request may be sent after it was due. A generator that is late
            by more did not keep its rate.
    """

    requests: Mapping[str, int]
    allowed_failures: int = 0
    versions: Mapping[str, Collection[str]] = field(default_factory=dict)
    engines: Collection[str] = ()
    gateways: Collection[str] = ()
    faults: Collection[Fault] = ()
    most_late_s: float = 5.0


def missing(report: Report, expected: Expectation) -> list[str]:
    """What the report lacks, one exact sentence each; empty when it is the proof."""
    good = [cell for cell in report.cells if cell.outcome is Outcome.OK]
    return [
        *_unfinished(report, expected),
        *_too_few(report, expected),
        *_failures(report, expected),
        *_silent_versions(good, expected),
        *_silent("engine", Counter(_weighted(good, "engine")), expected.engines),
        *_silent("gateway", Counter(_weighted(good, "gateway")), expected.gateways),
        *(
            sentence
            for fault in expected.faults
            for sentence in _unproven_fault(report, good, fault)
        ),
    ]


def answered(report: Report, model: str, begin_s: int, end_s: int) -> Mapping[str, int]:
    """The good answers by version to requests for a model that were due in [begin_s, end_s)."""
    came = Counter[str]()
    for cell in report.cells:
        if cell.model == model and cell.outcome is Outcome.OK and begin_s <= cell.second < end_s:
            came[cell.version] += cell.count
    return came


def binomial_interval(trials: int, percent: int, doubt: Fraction = DOUBT) -> tuple[int, int]:
    """Between which counts (both included) the successes lie of `trials` that each succeed with
    `percent` % probability, except with probability `doubt`, half of it on either side.

    Exact: tails are sums of whole numbers, the binomial terms times 100**trials.
    """
    return _quantile(trials, percent, doubt / 2), trials - _quantile(
        trials, 100 - percent, doubt / 2
    )


def _quantile(trials: int, percent: int, doubt: Fraction) -> int:
    """The largest count that is undercut with a probability of at most `doubt`."""
    if percent in (0, 100):
        return trials * percent // 100
    term, undercut, count = (100 - percent) ** trials, 0, 0
    most = 100**trials * doubt
    while undercut + term <= most:
        undercut += term
        term = term * (trials - count) * percent // ((count + 1) * (100 - percent))
        count += 1
    return count


def summary(report: Report) -> str:
    """The requests by route, version, engine and gateway, and what was in flight at each fault."""
    return tables.whole(report)


def _unfinished(report: Report, expected: Expectation) -> Iterator[str]:
    if report.state != "ended":
        yield (
            f"the run has not ended (it is {report.state}, {report.in_flight} requests are in "
            "flight): take the report that /stop gives"
        )
    late_s = report.lateness.max_ms / 1000
    if late_s > expected.most_late_s:
        yield (
            f"a request was sent {late_s:.1f} s after it was due, expected at most "
            f"{expected.most_late_s:g} s: the generator itself was held up"
        )


def _too_few(report: Report, expected: Expectation) -> Iterator[str]:
    if not any(expected.requests.values()):
        yield "no requests are expected: say how many each route must have sent"
    not_sent = Counter[str]()
    for cell in report.cells:
        if cell.outcome is Outcome.NOT_SENT:
            not_sent[cell.route] += cell.count
    for name, least in expected.requests.items():
        route = report.routes.get(name)
        sent = route.scheduled - not_sent[name] if route else 0
        if sent < least:
            yield f"route {name!r}: expected at least {least} requests to be sent, got {sent}"


def _failures(report: Report, expected: Expectation) -> Iterator[str]:
    if report.failed <= expected.allowed_failures:
        return
    sorts = Counter[str]()
    for cell in report.cells:
        if cell.outcome is not Outcome.OK:
            sorts[f"{cell.outcome} {cell.detail}".strip() + f" on route {cell.route!r}"] += (
                cell.count
            )
    listed = ", ".join(f"{count} × {sort}" for sort, count in sorts.most_common())
    first = min(report.failures, key=lambda failure: failure.due_s, default=None)
    example = (
        f"; the first was due at {first.due_s:g} s (request {first.request_id}): {first.sentence}"
        if first
        else ""
    )
    yield (
        f"expected at most {expected.allowed_failures} failed requests, got {report.failed}: "
        f"{listed}{example}"
    )


def _silent_versions(good: list[Cell], expected: Expectation) -> Iterator[str]:
    for model, versions in expected.versions.items():
        came = Counter[str]()
        for cell in good:
            if cell.model == model:
                came[cell.version] += cell.count
        yield from _silent(f"model {model!r} version", came, versions)


def _silent(what: str, came: Mapping[str, int], wanted: Collection[str]) -> Iterator[str]:
    for name in wanted:
        if not came.get(name):
            yield f"{what} {name!r}: expected good answers, got none{_others(came)}"


def _others(came: Mapping[str, int]) -> str:
    named = [f"{name!r} {count}" for name, count in sorted(came.items()) if name and count]
    return f" (there are: {', '.join(named)})" if named else " (no answer tells it)"


def _weighted(cells: list[Cell], part: Literal["engine", "gateway"]) -> Mapping[str, int]:
    came = Counter[str]()
    for cell in cells:
        came[_named(cell, part)] += cell.count
    return came


def _named(cell: Cell, part: Literal["engine", "gateway"]) -> str:
    return cell.engine if part == "engine" else cell.gateway


def _unproven_fault(report: Report, good: list[Cell], fault: Fault) -> Iterator[str]:
    found = next((each for each in report.faults if each.name == fault.name), None)
    if found is None:
        yield f"fault {fault.name!r}: its begin was not announced to the generator"
        return
    if found.ended_s is None:
        yield f"fault {fault.name!r}: its end was not announced to the generator"
    if found.began_s >= report.sending_s:
        yield (
            f"fault {fault.name!r}: it began at {found.began_s:g} s, after the last request was "
            f"due ({report.sending_s:g} s)"
        )
    yield from _too_few_in_flight(found, fault)
    yield from _not_replaced(report, good, fault)


def _too_few_in_flight(found: FaultReport, fault: Fault) -> Iterator[str]:
    on = found.by_engine if fault.part == "engine" else found.by_gateway
    if on.get(fault.victim, 0) < fault.least_in_flight:
        yield (
            f"fault {fault.name!r}: expected at least {fault.least_in_flight} requests in flight "
            f"on {fault.part} {fault.victim!r}, got {on.get(fault.victim, 0)} of "
            f"{found.in_flight}{_others(on)}"
        )


def _not_replaced(report: Report, good: list[Cell], fault: Fault) -> Iterator[str]:
    since = fault.replaced_at_s
    if since is None:
        yield f"fault {fault.name!r}: {fault.part} {fault.victim!r} was not replaced"
        return
    answered = any(
        _named(cell, fault.part) == fault.replacement and cell.second > since for cell in good
    )
    if not answered:
        yield (
            f"fault {fault.name!r}: {fault.part} {fault.replacement!r} took the place of "
            f"{fault.victim!r} at {since:g} s, and gave no good answer to a request due after the "
            f"second it came in (the last was due by {report.sending_s:g} s)"
        )

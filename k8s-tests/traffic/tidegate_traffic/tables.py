"""Reports for people."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tidegate_traffic.outcomes import Outcome
from tidegate_traffic.report import Report

_UNTOLD = "-"


def whole(report: Report) -> str:
    """All that is to be told of a run."""
    parts = [
        f"run {report.run}: {report.state}, {report.sending_s:g} s of requests, {report.ok} ok, "
        f"{report.failed} failed, at most {report.peak_in_flight} in flight, "
        f"sent at most {report.lateness.max_ms:g} ms late",
        routes(report),
        traffic(report),
    ]
    if report.faults:
        parts.append(faults(report))
    if report.failed:
        parts.append(failures(report))
    return "\n\n".join(parts)


def routes(report: Report) -> str:
    """A line a route, with its latencies in milliseconds from the time each request was due."""
    return _table(
        ("route", "rate", "due", "ok", "failed", "p50", "p90", "p99", "max ms"),
        (
            (
                name,
                f"{route.rate:g}/s",
                route.scheduled,
                route.ok,
                route.failed,
                route.latency.p50_ms,
                route.latency.p90_ms,
                route.latency.p99_ms,
                route.latency.max_ms,
            )
            for name, route in report.routes.items()
        ),
    )


def traffic(report: Report) -> str:
    """The requests by route, version, engine and gateway."""
    good: Counter[tuple[str, str, str, str, str]] = Counter()
    bad: Counter[tuple[str, str, str, str, str]] = Counter()
    for cell in report.cells:
        key = (cell.route, cell.model, cell.version, cell.engine, cell.gateway)
        (good if cell.outcome is Outcome.OK else bad)[key] += cell.count
    return _table(
        ("route", "model", "version", "engine", "gateway", "ok", "failed"),
        ((*key, good[key], bad[key]) for key in sorted(good | bad)),
    )


def faults(report: Report) -> str:
    """A line a fault, with what was in flight while it was done."""
    return _table(
        ("fault", "from s", "to s", "in flight", "by engine", "by gateway", "outcomes"),
        (
            (
                fault.name,
                fault.began_s,
                _UNTOLD if fault.ended_s is None else fault.ended_s,
                fault.in_flight,
                *(
                    ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
                    for counts in (fault.by_engine, fault.by_gateway, fault.by_outcome)
                ),
            )
            for fault in report.faults
        ),
    )


def failures(report: Report) -> str:
    """Examples of failures."""
    return _table(
        ("due s", "route", "outcome", "detail", "request id", "what came"),
        (
            (f.due_s, f.route, str(f.outcome), f.detail, f.request_id, f.sentence)
            for f in report.failures
        ),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [[str(cell) or _UNTOLD for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )

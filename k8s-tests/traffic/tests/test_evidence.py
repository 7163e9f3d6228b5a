import dataclasses
import json
from collections.abc import Iterable
from fractions import Fraction
from math import comb
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_traffic.evidence import (
    Expectation,
    Fault,
    answered,
    binomial_interval,
    missing,
    summary,
)
from tidegate_traffic.histogram import Histogram
from tidegate_traffic.ledger import Ledger, Subject
from tidegate_traffic.outcomes import Answer, Outcome
from tidegate_traffic.report import Report

ROUTE = "tensors"
FAULT = Fault(
    "kill", part="gateway", victim="old", replacement="new", replaced_at_s=5.5, least_in_flight=5
)
EXPECTED = Expectation(
    requests={ROUTE: 90},
    versions={"identity": ["1"]},
    engines=["engine-0"],
    gateways=["old", "new"],
    faults=[FAULT],
)


def run(
    requests: int = 100, in_flight: int = 5, *, failing: int = 0, replaced: bool = True
) -> Report:
    """Ten requests a second for 10 s; at 5 s the gateway `old` gives way to `new`, with `in_flight`
    requests on it; the last `failing` requests fail."""
    ledger = Ledger([Subject(ROUTE, "v2_grpc", "identity", 10.0)], "run")
    for number in range(requests):
        due_s = number / 10
        gateway = "new" if due_s >= 6 and replaced else "old"
        answer = Answer(Outcome.OK, version="1", engines=("engine-0",), gateway=gateway)
        if number >= requests - failing:
            answer = Answer(Outcome.STATUS, "503", "Inference server offline")
        ledger.sent(number, ROUTE, due_s, due_s)
        if number == 50:
            for extra in range(in_flight):
                ledger.sent(1000 + extra, ROUTE, due_s, due_s)
            ledger.begin_fault("kill", due_s)
        ledger.ended(number, answer, due_s + 0.01)
        if number == 50:
            ledger.end_fault("kill", due_s + 0.02)
            for extra in range(in_flight):
                ledger.ended(1000 + extra, answer, due_s + 0.1)
    return Report(
        run="run",
        state="ended",
        started_at="2026-11-30T00:00:00.000+00:00",
        elapsed_s=10.0,
        sending_s=10.0,
        lateness=ledger.lateness(),
        max_in_flight=1000,
        peak_in_flight=ledger.peak_in_flight,
        routes=ledger.routes(),
        cells=ledger.cells(),
        faults=ledger.faults(),
        failures=ledger.failures(),
    )


def test_a_whole_proof() -> None:
    assert missing(run(), EXPECTED) == []


def changed(**members: Any) -> Report:
    return dataclasses.replace(run(), **members)


def expecting(**members: Any) -> Expectation:
    return dataclasses.replace(EXPECTED, **members)


def mended(**members: Any) -> Expectation:
    return expecting(faults=[dataclasses.replace(FAULT, **members)])


LATE = Histogram()
LATE.add(7.0)


@pytest.mark.parametrize(
    ("report", "expected", "sentence"),
    [
        (
            changed(state="sending"),
            EXPECTED,
            "the run has not ended (it is sending, 0 requests are in flight): take the report "
            "that /stop gives",
        ),
        (
            changed(lateness=LATE.latency()),
            EXPECTED,
            "a request was sent 7.0 s after it was due, expected at most 5 s: the generator "
            "itself was held up",
        ),
        (
            run(),
            expecting(requests={ROUTE: 200}),
            "route 'tensors': expected at least 200 requests to be sent, got 105",
        ),
        (
            run(),
            expecting(requests={"photos": 1}),
            "route 'photos': expected at least 1 requests to be sent, got 0",
        ),
        (
            run(),
            expecting(requests={}),
            "no requests are expected: say how many each route must have sent",
        ),
        (
            run(failing=2),
            EXPECTED,
            "expected at most 0 failed requests, got 2: 2 × status 503 on route 'tensors'; the "
            "first was due at 9.8 s (request run-98): Inference server offline",
        ),
        (
            run(),
            expecting(versions={"identity": ["1", "2"]}),
            "model 'identity' version '2': expected good answers, got none (there are: '1' 105)",
        ),
        (
            run(),
            expecting(engines=["engine-0", "engine-1"]),
            "engine 'engine-1': expected good answers, got none (there are: 'engine-0' 105)",
        ),
        (
            run(replaced=False),
            expecting(faults=[]),
            "gateway 'new': expected good answers, got none (there are: 'old' 105)",
        ),
        (
            changed(faults=()),
            EXPECTED,
            "fault 'kill': its begin was not announced to the generator",
        ),
        (
            changed(faults=(dataclasses.replace(run().faults[0], ended_s=None),)),
            EXPECTED,
            "fault 'kill': its end was not announced to the generator",
        ),
        (
            changed(sending_s=4.0),
            EXPECTED,
            "fault 'kill': it began at 5 s, after the last request was due (4 s)",
        ),
        (
            run(in_flight=4),
            EXPECTED,
            "fault 'kill': expected at least 5 requests in flight on gateway 'old', got 4 of 4 "
            "(there are: 'old' 4)",
        ),
        (
            run(),
            mended(replaced_at_s=None),
            "fault 'kill': gateway 'old' was not replaced",
        ),
        (
            run(),
            mended(replaced_at_s=9.5),
            "fault 'kill': gateway 'new' took the place of 'old' at 9.5 s, and gave no good "
            "answer to a request due after the second it came in (the last was due by 10 s)",
        ),
    ],
)
def test_what_is_missing(report: Report, expected: Expectation, sentence: str) -> None:
    assert missing(report, expected) == [sentence]


def test_answers_that_tell_no_engine_prove_none() -> None:
    ledger = Ledger([Subject(ROUTE, "v2_grpc", "identity", 10.0)], "run")
    ledger.sent(0, ROUTE, 0.0, 0.0)
    ledger.ended(0, Answer(Outcome.OK, version="1"), 0.1)
    report = changed(cells=ledger.cells())
    assert "engine 'engine-0': expected good answers, got none (no answer tells it)" in missing(
        report, EXPECTED
    )


def test_requests_that_were_not_sent_are_no_traffic() -> None:
    ledger = Ledger([Subject(ROUTE, "v2_grpc", "identity", 10.0)], "run")
    ledger.not_sent(0, ROUTE, 0.0, "1 requests were in flight (max_in_flight)")
    report = changed(routes=ledger.routes(), cells=ledger.cells(), failures=ledger.failures())
    assert missing(report, Expectation(requests={ROUTE: 1}, allowed_failures=1)) == [
        "route 'tensors': expected at least 1 requests to be sent, got 0"
    ]


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=100), st.integers(min_value=0, max_value=100))
def test_failures_up_to_the_allowed_ones_pass(failing: int, allowed: int) -> None:
    expected = Expectation(requests={ROUTE: 1}, allowed_failures=allowed)
    report = run(failing=failing)
    # From the middle on, those in flight at the fault fail, too.
    assert report.failed == failing + (5 if failing >= 50 else 0)
    assert bool(missing(report, expected)) == (report.failed > allowed)


def test_answers_are_counted_by_version_in_a_part_of_the_run() -> None:
    assert answered(run(failing=2), "identity", 6, 10) == {"1": 38}
    assert answered(run(), "slow", 0, 10) == {}


@pytest.mark.parametrize(
    ("trials", "percent", "interval"),
    [
        # Of 40 coins none or one shows heads in 41 of 2**40 cases, which is less than one in two
        # billion; at most two do in 821. Of 20 coins even none is not so rare.
        (20, 50, (0, 20)),
        (40, 50, (2, 38)),
        (2000, 0, (0, 0)),
        (2000, 100, (2000, 2000)),
    ],
)
def test_the_binomial_interval(trials: int, percent: int, interval: tuple[int, int]) -> None:
    assert binomial_interval(trials, percent) == interval


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 300), st.integers(1, 99), st.integers(2, 9))
def test_the_binomial_interval_leaves_out_as_much_as_it_may_and_no_more(
    trials: int, percent: int, exponent: int
) -> None:
    doubt = Fraction(1, 10**exponent)
    low, high = binomial_interval(trials, percent, doubt)
    p = Fraction(percent, 100)

    def probability(counts: Iterable[int]) -> Fraction:
        return sum((comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in counts), Fraction(0))

    assert probability(range(low)) <= doubt / 2 < probability(range(low + 1))
    assert probability(range(high + 1, trials + 1)) <= doubt / 2
    assert doubt / 2 < probability(range(high, trials + 1))


def test_a_report_is_the_same_after_json() -> None:
    report = run(failing=2)
    assert Report.from_document(json.loads(report.to_json())) == report


def test_a_report_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a report of schema 1, got 2"):
        Report.from_document(run().to_document() | {"schema": 2})


def test_the_summary_tells_who_got_what() -> None:
    lines = [line.split() for line in summary(run(failing=2)).splitlines()]
    assert [ROUTE, "identity", "1", "engine-0", "old", "65", "0"] in lines
    assert [ROUTE, "identity", "1", "engine-0", "new", "38", "0"] in lines
    assert [ROUTE, "identity", "-", "-", "-", "0", "2"] in lines

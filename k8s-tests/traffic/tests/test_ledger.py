import pytest

from tidegate_traffic.errors import TrafficError
from tidegate_traffic.ledger import Ledger, Subject
from tidegate_traffic.outcomes import Answer, Outcome

ROUTE = "tensors"


@pytest.fixture
def ledger() -> Ledger:
    return Ledger([Subject(ROUTE, "v2_grpc", "identity", 10.0)], "run")


def ok(*engines: str, gateway: str = "") -> Answer:
    return Answer(Outcome.OK, version="1", engines=engines, gateway=gateway)


def test_latency_counts_from_the_time_a_request_was_due(ledger: Ledger) -> None:
    ledger.sent(0, ROUTE, due_s=1.0, now_s=3.0)
    ledger.ended(0, ok(), now_s=3.1)
    assert ledger.routes()[ROUTE].latency.max_ms == 2100
    assert ledger.lateness().max_ms == 2000
    (cell,) = ledger.cells()
    assert (cell.second, cell.count, cell.max_latency_ms) == (1, 1, 2100)


def test_what_was_not_sent_is_a_failure(ledger: Ledger) -> None:
    ledger.not_sent(0, ROUTE, 0.0, "1000 requests were in flight")
    route = ledger.routes()[ROUTE]
    assert (route.scheduled, route.failed, route.in_flight) == (1, 1, 0)
    assert ledger.failures()[0].outcome is Outcome.NOT_SENT


def test_a_fault_counts_what_it_found_in_flight(ledger: Ledger) -> None:
    for number in (*range(4), 5, 6):
        ledger.sent(number, ROUTE, 0.0, 0.0)
    ledger.ended(0, ok("a"), 0.5)  # before it
    ledger.begin_fault("kill", 1.0)
    ledger.ended(1, ok("a"), 1.1)  # during it
    ledger.ended(5, Answer(Outcome.CONNECTION, "reset"), 1.1)
    ledger.ended(6, ok("a", "b"), 1.1)
    ledger.sent(4, ROUTE, 1.1, 1.1)
    ledger.end_fault("kill", 1.2)
    ledger.ended(2, ok("a", "b", gateway="g"), 1.3)  # tried on a, answered by b
    ledger.ended(4, ok("a"), 1.4)  # began during it
    (fault,) = ledger.faults()
    assert (fault.began_s, fault.ended_s, fault.in_flight, fault.pending) == (1.0, 1.2, 4, 1)
    assert fault.by_engine == {"a": 2, "b": 2}
    assert fault.by_gateway == {"g": 1}
    assert fault.by_outcome == {"connection": 1, "ok": 2}


def test_a_fault_has_a_name_of_its_own_and_one_end(ledger: Ledger) -> None:
    with pytest.raises(TrafficError, match="not under way"):
        ledger.end_fault("kill", 0.0)
    ledger.begin_fault("kill", 0.0)
    with pytest.raises(TrafficError, match="announced before"):
        ledger.begin_fault("kill", 0.0)
    ledger.end_fault("kill", 0.1)
    with pytest.raises(TrafficError, match="not under way"):
        ledger.end_fault("kill", 0.2)


def test_examples_of_a_storm_are_few(ledger: Ledger) -> None:
    for number in range(100):
        ledger.sent(number, ROUTE, 0.0, 0.0)
        ledger.ended(number, Answer(Outcome.STATUS, "503", "Inference server offline"), 0.1)
    assert ledger.routes()[ROUTE].failed == 100
    assert [failure.request_id for failure in ledger.failures()] == [f"run-{n}" for n in range(5)]


def test_an_interval_holds_what_ended_since_the_last(ledger: Ledger) -> None:
    ledger.sent(0, ROUTE, 0.0, 0.0)
    ledger.ended(0, Answer(Outcome.STATUS, "503"), 0.1)
    first, second = ledger.interval(), ledger.interval()
    assert (first.latency.count, first.failures) == (1, {"status 503": 1})
    assert (second.latency.count, second.failures) == (0, {})

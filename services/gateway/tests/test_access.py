"""The record of a request: its id, its line in the log, its metrics."""

import logging
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tidegate_gateway.access import recorded
from tidegate_gateway.errors import EngineFailed, InvalidInput
from tidegate_gateway.logs import REQUEST_ID
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.settings import AnswerSettings

OWN = re.compile(r"[0-9a-f]{32}")
SILENT = AnswerSettings()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "tidegate_gateway.access")
    return caplog


def samples(metrics: Metrics, name: str) -> list[tuple[dict[str, str], float]]:
    """Those of that name, as Prometheus would read them."""
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
        if sample.name == name
    ]


def fields(record: logging.LogRecord) -> dict[str, object]:
    """What was logged beyond what every record has."""
    plain = vars(logging.makeLogRecord({})).keys() | {"message", "duration_ms"}
    return {key: value for key, value in vars(record).items() if key not in plain}


# Ids


@pytest.mark.parametrize(
    "sent", ["a", "42", "0f8fad5b-d9cb-469f-a165-70867728950e", "!~", "x" * 128]
)
def test_a_safe_id_of_the_client_is_kept(sent: str, metrics: Metrics) -> None:
    with recorded("http", sent, metrics, SILENT) as access:
        assert access.request_id == sent
        assert REQUEST_ID.get() == sent
    assert REQUEST_ID.get() == ""


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        " ",
        "two words",
        "x" * 129,
        "a\r\nset-cookie: b=c",
        "a\n",
        "\na",
        "a\x00",
        "a\x7f",
        "\x1b[31m",
        "é",
        "\u2028",
        "\udcff",
    ],
    ids=repr,
)
def test_any_other_id_is_replaced(sent: str | None, metrics: Metrics) -> None:
    with recorded("http", sent, metrics, SILENT) as access:
        assert OWN.fullmatch(access.request_id)
        assert REQUEST_ID.get() == access.request_id


def test_two_requests_have_two_ids(metrics: Metrics) -> None:
    with (
        recorded("http", None, metrics, SILENT) as first,
        recorded("grpc", None, metrics, SILENT) as second,
    ):
        assert first.request_id != second.request_id
        assert REQUEST_ID.get() == second.request_id


def test_answers_tell_their_way_only_when_they_are_to(metrics: Metrics) -> None:
    telling = AnswerSettings(gateway_name="gateway-1", engine_names=True)
    with (
        recorded("http", "a", metrics, SILENT) as silent,
        recorded("http", "b", metrics, telling) as told,
    ):
        for access in (silent, told):
            access.status = "200"
            access.engines += ["engine-0", "engine-2"]

    assert silent.headers() == [("x-request-id", "a")]
    assert told.headers() == [
        ("x-request-id", "b"),
        ("tidegate-gateway", "gateway-1"),
        ("tidegate-engine", "engine-0,engine-2"),
    ]


@settings(max_examples=70, deadline=None, database=None)
@given(st.text(max_size=140))
def test_no_id_can_write_into_headers_or_logs(sent: str) -> None:
    with recorded("http", sent, SHARED, SILENT) as access:
        assert re.fullmatch(r"[\x21-\x7e]{1,128}", access.request_id)


SHARED = Metrics()


# Log lines


def test_an_answer_is_a_line(metrics: Metrics, log: pytest.LogCaptureFixture) -> None:
    with recorded("http", None, metrics, SILENT) as access:
        access.route, access.status = "/v2/models/{model}/infer", "200"
        access.model, access.version = "m", "3"

    (record,) = log.records
    assert (record.getMessage(), record.levelname) == ("answered", "INFO")
    assert fields(record) == {
        "protocol": "http",
        "route": "/v2/models/{model}/infer",
        "status": "200",
        "model": "m",
        "model_version": "3",
    }
    assert 0 <= vars(record)["duration_ms"] < 20_000


def test_a_refusal_says_why(metrics: Metrics, log: pytest.LogCaptureFixture) -> None:
    with recorded("grpc", None, metrics, SILENT) as access:
        access.route, access.status = "ModelInfer", "INVALID_ARGUMENT"
        access.error = InvalidInput("input 'x': wrong")

    (record,) = log.records
    assert record.getMessage() == "refused"
    assert fields(record) == {
        "protocol": "grpc",
        "route": "ModelInfer",
        "status": "INVALID_ARGUMENT",
        "error": "input 'x': wrong",
        "error_type": "InvalidInput",
    }


def test_what_the_engine_said_is_in_the_log_alone(
    metrics: Metrics, log: pytest.LogCaptureFixture
) -> None:
    with recorded("http", None, metrics, SILENT) as access:
        access.error = EngineFailed("model 'm' failed in the engine", detail="/models/m: no")

    assert fields(log.records[0])["detail"] == "/models/m: no"
    assert fields(log.records[0])["error"] == "model 'm' failed in the engine"


def test_a_request_that_breaks_off_is_recorded_as_well(
    metrics: Metrics, log: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt), recorded("http", "abc", metrics, SILENT) as access:
        access.status = "499"
        raise KeyboardInterrupt

    assert fields(log.records[0])["status"] == "499"
    assert REQUEST_ID.get() == ""
    assert samples(metrics, "tidegate_gateway_requests_in_flight") == [({"protocol": "http"}, 0.0)]


# Metrics


def test_an_answer_is_counted_and_timed(metrics: Metrics) -> None:
    for status in ("200", "200", "400"):
        with recorded("http", None, metrics, SILENT) as access:
            access.route, access.model, access.status = "/predict", "m", status

    labels = {"protocol": "http", "route": "/predict", "model": "m"}
    assert samples(metrics, "tidegate_gateway_requests_total") == [
        ({**labels, "status": "200"}, 2.0),
        ({**labels, "status": "400"}, 1.0),
    ]
    assert samples(metrics, "tidegate_gateway_request_duration_seconds_count") == [(labels, 3.0)]
    ((_, seconds),) = samples(metrics, "tidegate_gateway_request_duration_seconds_sum")
    assert 0 <= seconds < 20


def test_a_model_that_no_engine_has_is_no_label(metrics: Metrics) -> None:
    for _ in range(3):
        with recorded("grpc", None, metrics, SILENT) as access:
            access.route, access.status = "ModelInfer", "NOT_FOUND"
    with recorded("http", None, metrics, SILENT) as access:
        access.status = "404"

    assert samples(metrics, "tidegate_gateway_requests_total") == [
        (
            {
                "protocol": "grpc",
                "route": "ModelInfer",
                "model": "_unknown",
                "status": "NOT_FOUND",
            },
            3.0,
        ),
        (
            {"protocol": "http", "route": "_unknown", "model": "_unknown", "status": "404"},
            1.0,
        ),
    ]


def test_a_name_with_odd_characters_is_a_label_like_any_other(metrics: Metrics) -> None:
    name = 'a"b\\c\nd é'
    with recorded("http", None, metrics, SILENT) as access:
        access.model = name

    ((labels, _),) = samples(metrics, "tidegate_gateway_requests_total")
    assert labels["model"] == name


def test_requests_in_flight_are_counted(metrics: Metrics) -> None:
    with (
        recorded("http", None, metrics, SILENT),
        recorded("http", None, metrics, SILENT),
        recorded("grpc", None, metrics, SILENT),
    ):
        assert samples(metrics, "tidegate_gateway_requests_in_flight") == [
            ({"protocol": "http"}, 2.0),
            ({"protocol": "grpc"}, 1.0),
        ]
    assert all(value == 0 for _, value in samples(metrics, "tidegate_gateway_requests_in_flight"))

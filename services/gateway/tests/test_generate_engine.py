"""The generate extension on a real Triton: one answer, any number of them, and what ends them."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway

from .conftest import GatewayFactory
from .test_leaving_clients import in_flight, over_http

pytestmark = pytest.mark.needs("engine")

Eventually = Callable[[Callable[[], bool], str], None]

STREAM = "/v2/models/text_stream/generate_stream"
FAILED = {"error": "model 'text_stream' failed in the engine"}
NOT_UTF_8 = {
    "error": "the engine's output 'text_output' is not UTF-8, which JSON cannot carry; ask for it "
    "as binary data"
}
# A minute of answers: more than any test waits for.
LONG = {"text_input": "word " * 600, "delay_ms": 100}


def post(
    client: httpx.Client, model: str, document: object, kind: str = "generate"
) -> httpx.Response:
    return client.post(f"/v2/models/{model}/{kind}", json=document)


def events(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *parts, rest = answer.text.split("\n\n")
    assert rest == ""
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def texts(found: list[Any]) -> list[str]:
    return [event["text_output"] for event in found]


@contextmanager
def streaming(gateway: LocalGateway, document: object) -> Iterator[Iterator[Any]]:
    """The events of a stream, as they come."""
    with httpx.stream("POST", gateway.http_url + STREAM, json=document, timeout=60) as answer:
        assert answer.status_code == 200
        yield (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line)


# As Triton does it

SAME: list[tuple[str, dict[str, Any]]] = [
    ("slow", {"input": 5}),
    ("slow", {"input": [5, 6]}),
    ("slow", {"input": [[5]]}),
    ("slow", {"input": [[1], [2]]}),
    ("slow", {"input": 5, "id": "7", "x": 1, "y": 0.5, "parameters": {"p": 2, "delay_ms": 1}}),
    (
        "identity",
        {"INPUT_BYTES": "hey", "INPUT_FP32": 1.5, "INPUT_INT8": [1, 2], "INPUT_BOOL": True},
    ),
    ("identity", {"INPUT_BYTES": ["ü", "\0", "data: \n\n"]}),
    ("identity", {"INPUT_FP32": []}),
    ("batching", {"input": 1.0}),
    ("batching", {"input": [1, 2, 3]}),
    ("repeat", {"count": 1}),
    ("text_stream", {"text_input": "word", "id": "7"}),
]


@pytest.mark.parametrize(("model", "document"), SAME)
def test_what_triton_generates_is_what_we_generate(
    client: httpx.Client, engine: LocalEngine, model: str, document: dict[str, Any]
) -> None:
    with httpx.Client(base_url=f"http://{engine.http_address}", timeout=60) as triton:
        ours, theirs = (post(each, model, document) for each in (client, triton))
        assert (ours.status_code, ours.json()) == (200, theirs.json())
        ours, theirs = (post(each, model, document, "generate_stream") for each in (client, triton))
        assert events(ours) == events(theirs) == [post(client, model, document).json()]


@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_any_number_of_answers_are_events(
    client: httpx.Client, engine: LocalEngine, count: int
) -> None:
    document = {"text_input": "word " * count}
    ours = events(client.post(STREAM, json=document))
    assert ours == events(httpx.post(f"http://{engine.http_address}{STREAM}", json=document))
    assert len(ours) == count


def test_a_stream_is_neither_kept_nor_compressed(client: httpx.Client) -> None:
    answer = client.post(
        STREAM, json={"text_input": "word " * 200}, headers={"Accept-Encoding": "gzip"}
    )
    assert len(answer.content) > 10_000
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert not {"content-encoding", "content-length"} & answer.headers.keys()


def test_an_answer_is_sent_before_the_next_one_is_there(gateway: LocalGateway) -> None:
    with streaming(gateway, {"text_input": "one two", "delay_ms": 2000}) as answers:
        assert next(answers)["text_output"] == "one"
        assert in_flight(gateway) == 1
        assert texts(list(answers)) == [" two"]


# What fails


@pytest.mark.parametrize(("text", "got"), [(" ", "none"), ("three short words", "several")])
def test_generate_is_for_one_answer(client: httpx.Client, text: str, got: str) -> None:
    answer = post(client, "text_stream", {"text_input": text})
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": f"model 'text_stream': expected one answer, got {got}; ask with generate_stream"},
    )


def test_who_gets_an_answer_too_many_waits_for_no_others(client: httpx.Client) -> None:
    """Nor does the next one: the model works on one request at a time."""
    for _ in range(2):
        answer = client.post(
            "/v2/models/text_stream/generate", json=LONG, headers={"tidegate-timeout": "20"}
        )
        assert (answer.status_code, "got several" in answer.text) == (400, True)


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("model", "document", "status", "sentence"),
    [
        ("nobody", {}, 404, "no engine has model 'nobody'"),
        ("slow", {}, 400, "model 'slow': input 'input' (FP32 [-1]) is missing"),
        ("slow", {"input": "x"}, 400, "input 'input': expected a number for FP32 at element 0, "
         "got a string"),
        ("slow", {"input": 1, "timeout": "soon"}, 400, "model 'slow': parameter 'timeout': "
         "expected a whole number of 64 bits, got 'soon'"),
        ("text_stream", {"text_input": ["a", "b"]}, 400, "input 'text_input': expected elements "
         "for shape [1], got 2"),
        ("raising", {"input": 1}, 500, "model 'raising' failed in the engine"),
        ("text_stream", {"text_input": "a b", "fail_after": 0}, 500, FAILED["error"]),
        ("text_stream", {"text_input": "ü", "token_bytes": 1}, 500, NOT_UTF_8["error"]),
        ("slow", [], 400, "the body: expected a JSON object, got a list"),
    ],
)  # fmt: skip
def test_what_fails_before_the_first_answer_has_a_status(  # noqa: PLR0917
    client: httpx.Client, kind: str, model: str, document: object, status: int, sentence: str
) -> None:
    answer = post(client, model, document, kind)
    assert (answer.status_code, answer.json()) == (status, {"error": sentence})


def test_one_answer_and_a_failure_are_a_failure(client: httpx.Client) -> None:
    answer = post(client, "text_stream", {"text_input": "a b", "fail_after": 1})
    assert (answer.status_code, answer.json()) == (500, FAILED)


@pytest.mark.parametrize(
    ("document", "told", "error"),
    [
        ({"text_input": "a b c d", "fail_after": 2}, ["a", " b"], FAILED),
        ({"text_input": "aü", "token_bytes": 2, "id": "7"}, [], NOT_UTF_8),
        ({"text_input": "abü", "token_bytes": 1}, ["a", "b"], NOT_UTF_8),
    ],
)
def test_what_fails_later_is_an_event_and_the_end(
    gateway: LocalGateway, document: object, told: list[str], error: dict[str, str]
) -> None:
    identified = {"x-request-id": f"later-{len(told)}-{len(error['error'])}"}
    answer = httpx.post(gateway.http_url + STREAM, json=document, headers=identified, timeout=60)
    if not told:
        assert (answer.status_code, answer.json()) == (500, error)
    else:
        *given, last = events(answer)
        assert (texts(given), last) == (told, error)
    (record,) = [
        each
        for each in gateway.log_records()
        if each.get("request_id") == identified["x-request-id"] and each["message"] == "refused"
    ]
    assert record["status"] == ("200" if told else "500")
    assert record["error"] == error["error"]
    assert (record["model"], record["model_version"]) == ("text_stream", "1")


def test_a_version_may_be_named(client: httpx.Client) -> None:
    answer = client.post("/v2/models/slow/versions/1/generate", json={"input": 1})
    assert (answer.status_code, answer.json()["model_version"]) == (200, "1")
    answer = client.post("/v2/models/slow/versions/9/generate_stream", json={"input": 1})
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": "no engine has model 'slow' in version 9"},
    )


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({"tidegate-timeout": "soon"}, "tidegate-timeout: expected decimal seconds above 0, such "
         "as 2.5, got 'soon'"),
        ({"tidegate-priority": "urgent"}, "tidegate-priority: expected high, normal or low, got "
         "'urgent'"),
        ({"tidegate-sticky-key": "x" * 257}, "tidegate-sticky-key: expected 1 to 256 characters, "
         "got 257"),
    ],
)  # fmt: skip
def test_headers_mean_what_they_mean_elsewhere(
    client: httpx.Client, kind: str, headers: dict[str, str], sentence: str
) -> None:
    answer = client.post(f"/v2/models/slow/{kind}", json={"input": 1}, headers=headers)
    assert (answer.status_code, answer.json()) == (400, {"error": sentence})


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
def test_a_body_has_its_limit(engine: LocalEngine, new_gateway: GatewayFactory, kind: str) -> None:
    gateway = new_gateway(engine.grpc_address, "--http.max_body_bytes=1024")
    url = f"{gateway.http_url}/v2/models/text_stream/{kind}"
    answer = httpx.post(url, json={"text_input": "x" * 2000}, timeout=60)
    assert (answer.status_code, answer.json()) == (
        413,
        {"error": "the body: expected at most 1024 bytes (http.max_body_bytes), got more"},
    )


# Time


def test_a_stream_that_takes_too_long_ends_with_an_event(client: httpx.Client) -> None:
    answer = client.post(STREAM, json=LONG, headers={"tidegate-timeout": "2.5"})
    *given, last = events(answer)
    assert 0 < len(given) < 40
    assert last == {"error": "no answer within the deadline of 2.5 s"}


def test_each_kind_of_answer_has_its_own_time(
    engine: LocalEngine, new_gateway: GatewayFactory
) -> None:
    gateway = new_gateway(engine.grpc_address, "--deadline.v2_s=1")
    with httpx.Client(base_url=gateway.http_url, timeout=60) as client:
        # Long in all, as the answers go on.
        words = {"text_input": "a b c d e f", "delay_ms": 400}
        assert len(events(client.post(STREAM, json=words))) == 6
        # But one answer comes as soon as with `infer`, unless the client is patient.
        late = {"input": 1, "delay_ms": 2000}
        for kind in ("generate", "generate_stream"):
            answer = post(client, "slow", late, kind)
            assert answer.status_code == 504
            assert answer.json() == {"error": "no answer within the deadline of 1 s"}
            patient = client.post(
                f"/v2/models/slow/{kind}", json=late, headers={"tidegate-timeout": "30"}
            )
            assert (patient.status_code, "1.0" in patient.text) == (200, True)


# Places, slow readers, and who leaves


def test_a_stream_has_its_place_until_its_end(
    engine: LocalEngine, new_gateway: GatewayFactory, eventually: Eventually
) -> None:
    limits = ("--admission.max_in_flight=1", "--admission.max_waiting=0")
    gateway = new_gateway(engine.grpc_address, *limits)
    word = {"text_input": "word"}
    with streaming(gateway, LONG) as answers:
        assert next(answers)["text_output"] == "word"
        refused = httpx.post(gateway.http_url + STREAM, json=word, timeout=60)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    eventually(
        lambda: httpx.post(gateway.http_url + STREAM, json=word, timeout=60).status_code == 200,
        "the place is free",
    )


def test_a_slow_reader_is_waited_for(
    gateway: LocalGateway, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more is told than all buffers on the way hold, so that the gateway must stop to read."""
    size = 20_000_000
    document = {"text_input": "x" * size, "token_bytes": 50_000}
    with over_http(gateway, STREAM, document) as connection:
        eventually(lambda: in_flight(gateway) == 1, "the model answers")
        quiet_until = time.monotonic() + 2
        while time.monotonic() < quiet_until:
            assert in_flight(gateway) == 1
            time.sleep(0.1)
        received = _received(connection)
    assert received.count(b"data: {") == 400
    assert received.count(b"x") > size
    assert received.endswith(b"0\r\n\r\n")
    eventually(lambda: in_flight(gateway) == 0, "all has been told")


def _received(connection: socket.socket) -> bytes:
    pieces: list[bytes] = []
    while not (pieces and pieces[-1].endswith(b"0\r\n\r\n")):
        piece = connection.recv(1 << 20)
        assert piece
        pieces.append(piece)
    return b"".join(pieces)


def test_who_leaves_between_two_answers_ends_the_call_to_the_engine(
    engine: LocalEngine, new_gateway: GatewayFactory, eventually: Eventually
) -> None:
    gateway = new_gateway(engine.grpc_address)
    with streaming(gateway, {"text_input": "a b c", "delay_ms": 8000}) as answers:
        assert next(answers)["text_output"] == "a"
        left = time.monotonic()
    # A second is promised; another one is what a slow machine may take to notice.
    while in_flight(gateway):
        assert time.monotonic() - left < 2
        time.sleep(0.02)
    # The model has heard of it, too: it works on one request at a time.
    with streaming(gateway, {"text_input": "next"}) as answers:
        assert texts(list(answers)) == ["next"]
    assert time.monotonic() - left < 7
    eventually(lambda: "499" in _statuses(gateway), "it is in the log")
    assert [record for record in gateway.log_records() if "exception" in record] == []


def _statuses(gateway: LocalGateway) -> list[str]:
    return [str(record.get("status")) for record in gateway.log_records()]


def test_an_engine_that_dies_ends_its_streams_with_an_event(new_gateway: GatewayFactory) -> None:
    with LocalEngine(("text_stream",)) as dying:
        gateway = new_gateway(dying.grpc_address)
        with streaming(gateway, LONG) as answers:
            assert next(answers)["text_output"] == "word"
            dying.kill()
            *_, last = answers
    assert last.keys() == {"error"}
    assert "no engine" in last["error"] or "engine" in last["error"]

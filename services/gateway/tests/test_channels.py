"""What the failures of a call to an engine mean, and that none of its insides reach a client."""

import time

import grpc
import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway import errors
from tidegate_gateway.channels import translate, translated
from tidegate_gateway.deadline import Deadline

Code = grpc.StatusCode

OFFLINE = "no engine can be reached; try again later"
LATE = "no answer within the deadline of 3 s"
UNKNOWN_ID = "[request id: <id_unknown>] "


def translation(code: Code, text: str, model: str = "m") -> errors.RequestError:
    return translate(code, text, model, Deadline(at=time.monotonic(), given=3.0))


@pytest.mark.parametrize(
    ("code", "text", "kind", "message"),
    [
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.DeadlineExceeded, LATE),
        (
            Code.UNAVAILABLE,
            UNKNOWN_ID + "Request timeout expired",
            errors.DeadlineExceeded,
            LATE,
        ),
        (
            Code.UNAVAILABLE,
            UNKNOWN_ID + "Exceeds maximum queue size",
            errors.Overloaded,
            "the queue of model 'm' is full; try again later",
        ),
        (
            Code.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:8001: "
            "Failed to connect to remote host: connect: Connection refused (111)",
            errors.EngineUnavailable,
            OFFLINE,
        ),
        (
            Code.UNAVAILABLE,
            "Request for unknown model: 'm' version 1 is not at ready state",
            errors.VersionUnready,
            OFFLINE,
        ),
        (Code.UNAVAILABLE, "Socket closed", errors.EngineUnavailable, OFFLINE),
        (Code.UNAVAILABLE, "", errors.EngineUnavailable, OFFLINE),
        (Code.CANCELLED, "CANCELLED", errors.EngineUnavailable, OFFLINE),
        (
            Code.NOT_FOUND,
            "Request for unknown model: 'm' has no available versions",
            errors.VersionUnready,
            OFFLINE,
        ),
        (
            Code.NOT_FOUND,
            "Request for unknown model: 'm' is not found",
            errors.ModelNotFound,
            "no engine has model 'm'",
        ),
        (
            Code.NOT_FOUND,
            "Request for unknown model: 'm' version 9 is not found",
            errors.ModelNotFound,
            "no engine has model 'm' in version 9",
        ),
        (Code.NOT_FOUND, "", errors.ModelNotFound, "no engine has model 'm'"),
        (
            Code.INVALID_ARGUMENT,
            UNKNOWN_ID + "inference request batch-size must be <= 8 for 'm'",
            errors.InvalidInput,
            "inference request batch-size must be <= 8 for 'm'",
        ),
        (
            Code.INVALID_ARGUMENT,
            "[request id: 42] unexpected shape for input 'INPUT' for model 'm'. Expected [16], "
            "got [8]. ",
            errors.InvalidInput,
            "unexpected shape for input 'INPUT' for model 'm'. Expected [16], got [8]. ",
        ),
        (
            Code.INVALID_ARGUMENT,
            "unable to read /models/m/1/model.onnx",
            errors.InvalidInput,
            "the engine refused the request for 'm'",
        ),
        (
            Code.INVALID_ARGUMENT,
            "not this\nTraceback (most recent call last):\n  here",
            errors.InvalidInput,
            "the engine refused the request for 'm'",
        ),
        (
            Code.INVALID_ARGUMENT,
            "first line\nsecond line",
            errors.InvalidInput,
            "first line",
        ),
        (
            Code.INVALID_ARGUMENT,
            "",
            errors.InvalidInput,
            "the engine refused the request for 'm'",
        ),
        (
            Code.UNIMPLEMENTED,
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
            errors.InvalidInput,
            "model 'm' cannot be asked in this way: ModelInfer RPC doesn't support models with "
            "decoupled transaction policy",
        ),
        (
            Code.UNIMPLEMENTED,
            "",
            errors.InvalidInput,
            "model 'm' cannot be asked in this way: not offered",
        ),
        (
            Code.RESOURCE_EXHAUSTED,
            "CLIENT: Received message larger than max (2097152 vs. 1048576)",
            errors.PayloadTooLarge,
            "a message to or from model 'm' is larger than the engine or "
            "engine.max_message_bytes allows",
        ),
        (
            Code.INTERNAL,
            "Failed to process the request(s) for model instance 'raising_0_0', message: "
            "ValueError: no\n\nAt:\n  /models/raising/1/model.py(12): execute\n",
            errors.EngineFailed,
            "model 'm' failed in the engine",
        ),
        (
            Code.INTERNAL,
            "Stub process 'm_0_0' is not healthy.",
            errors.BackendDead,
            "model 'm' failed in the engine",
        ),
    ],
)
def test_what_an_engine_says_and_what_it_means(
    code: Code, text: str, kind: type[errors.RequestError], message: str
) -> None:
    error = translation(code, text)

    assert type(error) is kind
    assert error.message == message


@pytest.mark.parametrize(
    "code",
    [
        Code.UNKNOWN,
        Code.INTERNAL,
        Code.DATA_LOSS,
        Code.ABORTED,
        Code.ALREADY_EXISTS,
        Code.FAILED_PRECONDITION,
        Code.PERMISSION_DENIED,
        Code.UNAUTHENTICATED,
    ],
)
def test_anything_else_is_the_engines_failure(code: Code) -> None:
    error = translation(code, "words")

    assert type(error) is errors.EngineFailed
    assert error.message == "model 'm' failed in the engine"
    assert error.detail == f"{code.name}: words"


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.DEADLINE_EXCEEDED])
def test_the_log_gets_the_engines_own_words(code: Code) -> None:
    assert (
        "[request id: 7] /a/b: words\nmore"
        in translation(code, "[request id: 7] /a/b: words\nmore").detail
    )


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Code.NOT_FOUND, "Request for unknown model: 'request timeout expired' is not found"),
        (Code.NOT_FOUND, "Request for unknown model: 'exceeds maximum queue size' is not found"),
        (Code.INTERNAL, "request timeout expired"),
        (Code.INTERNAL, "exceeds maximum queue size"),
    ],
)
def test_the_words_of_a_full_queue_mean_it_only_with_its_code(code: Code, text: str) -> None:
    expected = errors.ModelNotFound if code is Code.NOT_FOUND else errors.EngineFailed

    assert type(translation(code, text)) is expected


# What must not reach a client

PARTS = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)
# Separate from what is around it, so that it is a path or an address and no part of a word.
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
RELATIVE_PATHS = st.lists(PARTS, min_size=2, max_size=4).map("/".join)
WINDOWS_PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "C:\\" + "\\".join(parts))
IPV4 = st.ip_addresses(v=4).map(str)
IPV6 = st.ip_addresses(v=6).map(str).filter(lambda address: "::" in address)
PORTS = st.integers(1, 65535)
ADDRESSES = st.one_of(
    IPV4,
    IPV6,
    st.builds("{}:{}".format, IPV4, PORTS),
    st.builds("[{}]:{}".format, IPV6, PORTS),
    st.builds("{}:{}".format, PARTS, PORTS),
    st.builds("ipv4:{}:{}".format, IPV4, PORTS),
)
PLACES = [
    "Traceback (most recent call last):",
    'File "model.py", line 12, in execute',
    "model.py(12): execute",
    "execute at line 12",
    "infer_handler.cc:678",
    "libtriton_python.so",
    "triton::core::InferenceRequest",
]
INSIDES = st.one_of(PATHS, RELATIVE_PATHS, WINDOWS_PATHS, ADDRESSES, st.sampled_from(PLACES))

# Those with which the engine's own words reach the client.
QUOTED = [Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.UNIMPLEMENTED]


@settings(max_examples=250, deadline=None, database=None)
@given(
    code=st.sampled_from(QUOTED),
    before=st.sampled_from(
        ["", "x ", "unable to open '", UNKNOWN_ID, "first\n", "at: (", "a=", "é "]
    ),
    insides=INSIDES,
    after=st.sampled_from(["", " x", "'", ")", "\nlast", ", which", ": no"]),
)
def test_the_insides_of_an_engine_stay_inside(
    code: Code, before: str, insides: str, after: str
) -> None:
    error = translation(code, before + insides + after, model="the model")

    assert insides not in error.message


@pytest.mark.parametrize("code", QUOTED)
@pytest.mark.parametrize("place", PLACES)
def test_a_place_in_a_program_stays_inside(code: Code, place: str) -> None:
    assert place not in translation(code, f"it failed: {place}").message


@pytest.mark.parametrize("code", [code for code in Code if code not in QUOTED])
def test_other_words_of_the_engine_are_never_quoted(code: Code) -> None:
    assert "words" not in translation(code, "words").message


@settings(max_examples=100, deadline=None, database=None)
@given(st.sampled_from(Code), st.text(), st.text(max_size=20))
def test_whatever_an_engine_says_is_a_sentence_of_one_line(
    code: Code, text: str, model: str
) -> None:
    error = translation(code, text, model)

    assert error.message
    assert "\n" not in error.message


def test_a_long_text_is_cut() -> None:
    assert len(translation(Code.INVALID_ARGUMENT, "x" * 10_000).message) == 1001


def test_a_request_id_of_the_client_is_not_taken_for_the_engines_words() -> None:
    error = translation(Code.INVALID_ARGUMENT, "[request id: /a/b/c] wrong")

    assert error.message in {"wrong", "the engine refused the request for 'm'"}


# Around a call


async def test_a_failed_call_is_translated() -> None:
    empty = grpc.aio.Metadata()
    failure = grpc.aio.AioRpcError(Code.NOT_FOUND, empty, empty, details=None)

    with pytest.raises(errors.ModelNotFound) as caught, translated("m", Deadline.after(3)):
        raise failure

    assert caught.value.message == "no engine has model 'm'"
    assert caught.value.__suppress_context__


def test_other_failures_are_left_alone() -> None:
    with pytest.raises(ZeroDivisionError), translated("m", Deadline.after(3)):
        raise ZeroDivisionError

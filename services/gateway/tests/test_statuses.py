"""The table of the domain's errors against those of the two protocols."""

from collections.abc import Iterator

import grpc
import pytest

from tidegate_gateway import errors, statuses


def kinds(base: type[errors.RequestError] = errors.RequestError) -> Iterator[
    type[errors.RequestError]
]:  # fmt: skip
    """Every error that is raised as such: those below the three that only sort them."""
    for kind in base.__subclasses__():
        if kind not in {errors.ClientError, errors.ServingError}:
            yield kind
        yield from kinds(kind)


@pytest.mark.parametrize(
    ("kind", "http", "code"),
    [
        (errors.InvalidInput, 400, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.ModelNotFound, 404, grpc.StatusCode.NOT_FOUND),
        (errors.PayloadTooLarge, 413, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.UnsupportedMedia, 415, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.NotOffered, 501, grpc.StatusCode.UNIMPLEMENTED),
        (errors.Overloaded, 429, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.EngineFailed, 500, grpc.StatusCode.INTERNAL),
        (errors.BackendDead, 500, grpc.StatusCode.INTERNAL),
        (errors.EngineUnavailable, 503, grpc.StatusCode.UNAVAILABLE),
        (errors.VersionUnready, 503, grpc.StatusCode.UNAVAILABLE),
        (errors.DeadlineExceeded, 504, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_each_error_has_its_status(
    kind: type[errors.RequestError], http: int, code: grpc.StatusCode
) -> None:
    assert statuses.http_status(kind("…")) == http
    assert statuses.grpc_code(kind("…")) is code


@pytest.mark.parametrize("kind", list(kinds()))
def test_no_error_is_without_a_status(kind: type[errors.RequestError]) -> None:
    # HTTP has 501 for what is not offered, and 429 for what may be fine; both are the other way
    # round in the tree, which goes by whether sending it again may help.
    exceptions = {errors.NotOffered, errors.Overloaded}
    fault = issubclass(kind, errors.ClientError)

    assert (statuses.http_status(kind("…")) < 500) == (fault != (kind in exceptions))
    assert statuses.grpc_code(kind("…")) not in {grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN}


@pytest.mark.parametrize("kind", list(kinds()))
def test_retry_after_is_said_where_trying_again_may_help(
    kind: type[errors.RequestError],
) -> None:
    helps = issubclass(kind, errors.Overloaded | errors.EngineUnavailable)

    assert statuses.http_headers(kind("…")) == ({"Retry-After": "1"} if helps else {})


def test_a_long_message_is_cut_and_its_detail_is_not() -> None:
    error = errors.InvalidInput("x" * 5000, detail="y" * 5000)

    assert error.message == str(error) == "x" * 1000 + "…"
    assert error.detail == "y" * 5000
    assert errors.InvalidInput("x" * 1000).message == "x" * 1000

"""The one table that turns the domain's errors into HTTP statuses and gRPC codes."""

import grpc

from tidegate_gateway import errors

_STATUSES: dict[type[errors.RequestError], tuple[int, grpc.StatusCode]] = {
    errors.InvalidInput: (400, grpc.StatusCode.INVALID_ARGUMENT),
    errors.ModelNotFound: (404, grpc.StatusCode.NOT_FOUND),
    errors.PayloadTooLarge: (413, grpc.StatusCode.RESOURCE_EXHAUSTED),
    errors.UnsupportedMedia: (415, grpc.StatusCode.INVALID_ARGUMENT),
    errors.NotOffered: (501, grpc.StatusCode.UNIMPLEMENTED),
    errors.Overloaded: (429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    errors.EngineFailed: (500, grpc.StatusCode.INTERNAL),
    errors.BackendDead: (500, grpc.StatusCode.INTERNAL),
    errors.EngineUnavailable: (503, grpc.StatusCode.UNAVAILABLE),
    errors.VersionUnready: (503, grpc.StatusCode.UNAVAILABLE),
    errors.DeadlineExceeded: (504, grpc.StatusCode.DEADLINE_EXCEEDED),
}

# Seconds. Engines come back, and full queues empty, within seconds rather than minutes; a client
# that waits longer than it must loses more than one that asks once too often.
RETRY_AFTER_S = 1


def http_status(error: errors.RequestError) -> int:
    """The HTTP status for `error`."""
    return _STATUSES[type(error)][0]


def grpc_code(error: errors.RequestError) -> grpc.StatusCode:
    """The gRPC status code for `error`."""
    return _STATUSES[type(error)][1]


def http_headers(error: errors.RequestError) -> dict[str, str]:
    """Headers that go with `error`: Retry-After, in seconds, where trying again may help."""
    if isinstance(error, errors.Overloaded | errors.EngineUnavailable):
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {}

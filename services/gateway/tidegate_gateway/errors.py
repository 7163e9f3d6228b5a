"""Everything that can go wrong with a request, in the domain's words.

No status codes here: `statuses` has the one table that turns these into HTTP and gRPC.

    RequestError
    ├── ClientError               the request is at fault; sending it again will not help
    │   ├── InvalidInput          names, datatypes, shapes, lengths, framing, values
    │   ├── ModelNotFound         no such model, or no such version of it
    │   ├── PayloadTooLarge       more bytes or pixels than a named setting allows
    │   ├── UnsupportedMedia      a body or file of a kind that is not understood
    │   └── NotOffered            a part of a protocol that Tidegate leaves out
    └── ServingError              the request may be fine
        ├── Overloaded            refused at once, since a bounded queue is full
        ├── EngineFailed          the engine answered with a failure of its own
        │   └── BackendDead       the process that runs the model in it has ended
        ├── EngineUnavailable     no engine could be reached
        │   └── VersionUnready    the engine does not serve that version now: it starts or stops
        └── DeadlineExceeded      the answer did not come in the time that the client gave

The message of each goes to the client as it stands, so it never holds a traceback, a file path or
an engine's address. What the engine said in full belongs in `detail`, which is only logged.
"""

# Characters. Messages quote what the client sent, which may be megabytes, and gRPC clients by
# default take no status longer than 8 KiB.
_LONGEST_MESSAGE = 1000


class RequestError(Exception):
    """A request that cannot be answered.

    Args:
        message: one sentence for the client: what was expected and what came.
        detail: what is known beyond that; for the log alone.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[:_LONGEST_MESSAGE]}…"
        super().__init__(message)
        self.message = message
        self.detail = detail


class ClientError(RequestError):
    """The request is at fault."""


class InvalidInput(ClientError):
    """Names, datatypes, shapes, lengths, framing or values that do not fit."""


class ModelNotFound(ClientError):
    """No such model, or no such version of it."""


class PayloadTooLarge(ClientError):
    """More bytes or pixels than a named setting allows."""


class UnsupportedMedia(ClientError):
    """A body or file of a kind that is not understood."""


class NotOffered(ClientError):
    """A part of a protocol that Tidegate leaves out."""


class ServingError(RequestError):
    """The request may be fine, but it was not served."""


class Overloaded(ServingError):
    """Refused at once, since a bounded queue is full; trying again after a pause may help."""


class EngineFailed(ServingError):
    """The engine answered with a failure of its own."""


class BackendDead(EngineFailed):
    """The process that runs the model in that engine has ended; other engines may be well."""


class EngineUnavailable(ServingError):
    """No engine could be reached, or the connection to it broke."""


class VersionUnready(EngineUnavailable):
    """The engine was reached and does not serve that version now: it starts or stops."""


class DeadlineExceeded(ServingError):
    """The answer did not come in the time that the client gave."""

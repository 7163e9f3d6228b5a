"""What becomes of the requests of clients: their attempts at engines, and their ends."""

from collections.abc import Mapping

from .engines import Engine
from .gateways import Request, usable
from .repository import MODEL
from .rules import Violation


def land(request: Request, engines: Mapping[str, Engine]) -> None:
    """An attempt comes to an engine, and to the next one where that one does not have it."""
    if request.engine is not None:
        return
    for version in filter(None, (request.version, request.fallback)):
        tried = sorted(usable(engines), key=lambda e: not request.gateway.serves(e, version))
        for engine in tried:
            if engine.has(version):
                _landed(request, engine, version)
                return
    if any(_is_well(engine, request) for engine in engines.values()):
        raise Violation(
            f"a request of revision {request.revision} for version {request.version} finds "
            "no engine that has it"
        )
    request.gateway.end(request)


def _landed(request: Request, engine: Engine, version: str) -> None:
    if version != request.version:
        request.version, request.fallback = version, ""
    request.engine = engine
    engine.requests[version] = engine.requests.get(version, 0) + 1


def _is_well(engine: Engine, request: Request) -> bool:
    """Whether it could answer, by what its loader says. A new engine gets requests as soon as
    it has what they are sent to now, and has what an old one came in for a little later."""
    book = engine.book
    if book is None or not engine.is_ready or book.unready():
        return False
    versions = book.report()["models"].get(MODEL, {"versions": {}})["versions"]
    return (
        book.boot == engine.boot != 0
        and book.revision >= request.revision
        and all(each["proven"] or each["failed"] for each in versions.values())
    )


def finish(request: Request, engines: Mapping[str, Engine]) -> None:
    """A request is answered well."""
    if request.engine is None:
        land(request, engines)
    if request in request.gateway.requests:
        request.gateway.end(request)


def fall_back(request: Request) -> None:
    """The candidate fails at a request, which is tried on the stable version."""
    if request.fallback and request.engine is not None:
        request.version, request.fallback, request.engine = request.fallback, "", None
        request.gateway.world.invariants.check_sent(request)

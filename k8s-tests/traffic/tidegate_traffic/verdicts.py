"""Judgements that HTTP and gRPC answers share. Pure."""

from tidegate_traffic.outcomes import Answer, Origin, Outcome
from tidegate_traffic.plan import Route


def ok(came_from: Origin, version: str = "") -> Answer:
    """The answer is what it should be."""
    return Answer(Outcome.OK, version=version, engines=came_from.engines, gateway=came_from.gateway)


def wrong(detail: str, sentence: str, came_from: Origin, version: str = "") -> Answer:
    """The answer looks well and is not what it should be."""
    return Answer(Outcome.WRONG, detail, sentence, version, came_from.engines, came_from.gateway)


def unlike_model(route: Route, model: object, version: object, came_from: Origin) -> Answer | None:
    """The verdict when another model, or a version that `route` does not allow, has answered."""
    if model != route.model:
        return wrong("model", f"expected model {route.model!r}, got {model!r}", came_from)
    if not isinstance(version, str):
        return wrong("form", f"expected a version as a string, got {version!r}", came_from)
    if route.versions and version not in route.versions:
        allowed = ", ".join(sorted(route.versions))
        return wrong(
            "version", f"expected a version out of {allowed}, got {version!r}", came_from, version
        )
    return None


def told_otherwise(version: str, told: object) -> str:
    """The sentence for an answer that is named after one version and has another's content."""
    return f"the answer is said to be of version {version}, its content says {told}"


def refused(status: str, sentence: str, came_from: Origin) -> Answer:
    """The answer is an error: an HTTP status or a gRPC code."""
    return Answer(
        Outcome.STATUS,
        status,
        sentence,
        engines=came_from.engines,
        gateway=came_from.gateway,
    )

"""What to send: a JSON document, read into frozen types.

{"http": "http://gateway:8080", "grpc": "gateway:8081", "duration_s": 30,
 "routes": [
   {"name": "photos", "kind": "photo", "model": "image_classifier", "rate": 5,
    "versions": ["1"], "photos": [{"file": "coffee.png", "label": "espresso"}]},
   {"name": "tensors", "kind": "v2_grpc", "model": "identity", "rate": 50,
    "input": "INPUT_FP32", "output": "OUTPUT_FP32", "requests_per_connection": 50}]}
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from tidegate_traffic.errors import PlanError
from tidegate_traffic.payloads import DATATYPES, Constant, Echo

_T = TypeVar("_T")


class Kind(StrEnum):
    """The kind of a route: what is sent and over which protocol."""

    PHOTO = "photo"  # POST /predict with a file
    V2_JSON = "v2_json"  # KServe v2 over HTTP, tensors in JSON
    V2_GRPC = "v2_grpc"  # KServe v2 ModelInfer, raw contents
    INFERENCE_SERVICE = "inference_service"  # inference.InferenceService/ModelInfer


OVER_HTTP = frozenset({Kind.PHOTO, Kind.V2_JSON})


@dataclass(frozen=True)
class Photo:
    """An image file, and what its best class must be: by label, by index, or by both.

    Attributes:
        scores: version → the score that it gives the best class. Two versions of a model agree on
            the class, as a rule, and differ in the score; a version that is not here may give any.
    """

    name: str
    content: bytes = field(repr=False)
    label: str | None
    index: int | None
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """One stream of requests.

    Attributes:
        rate: requests a second.
        timeout_s: seconds that the client waits for an answer, from the sending.
        versions: the model versions that may answer; empty: any.
        connections: how many connections are used in turn.
        requests_per_connection: see `Connections`; 0 keeps connections.
        headers: HTTP headers, or gRPC metadata, of every request.
        photos: of kind PHOTO only: sent in turn.
        upload_s: of kind PHOTO only: seconds that the upload takes. A slow upload keeps a request
            in flight at the gateway without any work for an engine.
        echo: what the other kinds send and expect back; None for PHOTO.
    """

    name: str
    kind: Kind
    model: str
    rate: float
    timeout_s: float
    versions: frozenset[str]
    connections: int
    requests_per_connection: int
    headers: Mapping[str, str]
    photos: tuple[Photo, ...]
    upload_s: float
    echo: Echo | None


@dataclass(frozen=True)
class Plan:
    """A run.

    Attributes:
        http: base URL of the HTTP routes.
        grpc: host:port of the gRPC routes.
        duration_s: seconds that requests are due in; infinite: until told to stop.
        max_in_flight: requests; what is due beyond it is not sent and counted as a failure.
    """

    http: str
    grpc: str
    duration_s: float
    max_in_flight: int
    routes: tuple[Route, ...]


def read(path: Path, overrides: Mapping[str, Any]) -> Plan:
    """The plan in the JSON file `path`; files that it names are looked for beside it.

    Args:
        overrides: members that win over the document's.

    Raises:
        PlanError: it cannot be read, or is no plan.
    """
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PlanError(f"the plan {path}: expected a JSON file, got: {error}") from None
    if not isinstance(document, dict):
        raise PlanError(f"the plan {path}: expected a JSON object, got {document!r:.80}")
    return parse({**document, **overrides}, path.parent)


def parse(document: Mapping[str, Any], directory: Path) -> Plan:
    """The plan in `document`; files that it names are looked for in `directory`.

    Raises:
        PlanError: it is none.
    """
    members = _Members("the plan", document)
    http = members.take("http", str, "").rstrip("/")
    grpc = members.take("grpc", str, "")
    duration_s = members.number("duration_s", math.inf, above=0)
    max_in_flight = members.whole("max_in_flight", 1000, least=1)
    documents = members.take("routes", list)
    members.end()
    routes = tuple(_route(item, directory) for item in documents)
    if not routes:
        raise PlanError("the plan: expected at least one route, got none")
    _check_names(routes)
    for route in routes:
        target, value = ("http", http) if route.kind in OVER_HTTP else ("grpc", grpc)
        if not value:
            raise PlanError(f"the plan: route {route.name!r} needs the member {target!r}")
    return Plan(http, grpc, duration_s, max_in_flight, routes)


def _check_names(routes: tuple[Route, ...]) -> None:
    names = [route.name for route in routes]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"the plan: two routes are named {name!r}")


def _route(document: object, directory: Path) -> Route:
    if not isinstance(document, dict):
        raise PlanError(f"the plan: expected routes as objects, got {document!r:.80}")
    members = _Members(f"route {document.get('name')!r}", document)
    kind = Kind(members.one_of("kind", [kind.value for kind in Kind], None))
    route = Route(
        name=members.take("name", str),
        kind=kind,
        model=members.take("model", str),
        rate=members.number("rate", None, above=0),
        timeout_s=members.number("timeout_s", 10.0, above=0),
        versions=frozenset(members.strings("versions")),
        connections=members.whole("connections", 1, least=1),
        requests_per_connection=members.whole("requests_per_connection", 0, least=0),
        headers=members.string_map("headers"),
        photos=_photos(members, directory) if kind is Kind.PHOTO else (),
        upload_s=members.number("upload_s", 0.0, least=0) if kind is Kind.PHOTO else 0.0,
        echo=None if kind is Kind.PHOTO else _echo(members, kind),
    )
    members.end()
    if route.versions and kind is Kind.INFERENCE_SERVICE:
        raise PlanError(
            f"route {route.name!r}: member 'versions': answers of kind {kind.value!r} do not tell "
            "the version; take the member away"
        )
    return route


def _photos(members: "_Members", directory: Path) -> tuple[Photo, ...]:
    photos = tuple(_photo(members.of, item, directory) for item in members.take("photos", list))
    if not photos:
        raise PlanError(f"{members.of}: member 'photos': expected at least one, got none")
    return photos


def _photo(of: str, document: object, directory: Path) -> Photo:
    if not isinstance(document, dict):
        raise PlanError(f"{of}: expected photos as objects, got {document!r:.80}")
    members = _Members(f"{of}: photo {document.get('file')!r}", document)
    name = members.take("file", str)
    label = members.take("label", str) if "label" in document else None
    index = members.whole("index", 0, least=0) if "index" in document else None
    scores = members.number_map("scores")
    members.end()
    if label is None and index is None:
        raise PlanError(f"{members.of}: expected the member 'label' or 'index', got neither")
    try:
        content = (directory / name).read_bytes()
    except OSError as error:
        raise PlanError(f"{members.of}: it cannot be read: {error}") from None
    return Photo(name, content, label, index, scores)


def _echo(members: "_Members", kind: Kind) -> Echo:
    # An answer of the other kind does not say which version gave it: there is nothing to compare.
    tells = kind is not Kind.INFERENCE_SERVICE
    return Echo(
        input=members.take("input", str),
        output=members.take("output", str),
        datatype=members.one_of("datatype", DATATYPES, "FP32"),
        elements=members.whole("elements", 16, least=1),
        constants=tuple(
            _constant(members.of, item) for item in members.take("constants", list, [])
        ),
        version_output=members.take("version_output", str, "") if tells else "",
    )


def _constant(of: str, document: object) -> Constant:
    if not isinstance(document, dict):
        raise PlanError(f"{of}: expected constants as objects, got {document!r:.80}")
    members = _Members(f"{of}: constant {document.get('name')!r}", document)
    constant = Constant(
        name=members.take("name", str),
        datatype=members.one_of("datatype", DATATYPES, None),
        values=tuple(members.take("values", list)),
    )
    members.end()
    try:
        constant.content()
    except ValueError:
        raise PlanError(
            f"{members.of}: member 'values': expected {constant.datatype} numbers, "
            f"got {list(constant.values)!r}"
        ) from None
    return constant


class _Members:
    """The members of one JSON object: each is taken once, and none may be left."""

    def __init__(self, of: str, document: Mapping[str, Any]) -> None:
        self.of = of
        self._left = dict(document)

    def take(self, name: str, kind: type[_T], default: _T | None = None) -> _T:
        if name not in self._left and default is not None:
            return default
        value = self._left.pop(name, None)
        if not isinstance(value, kind):
            raise self._unfit(name, _WORDS[kind], value)
        return value

    def number(
        self,
        name: str,
        default: float | None,
        *,
        above: float = -math.inf,
        least: float = -math.inf,
    ) -> float:
        value = self._left.pop(name, default)
        fit = isinstance(value, int | float) and not isinstance(value, bool)
        if not fit or not above < value or value < least:
            bound = f"above {above:g}" if above > -math.inf else f"of at least {least:g}"
            raise self._unfit(name, f"a number {bound}", value)
        return float(value)

    def whole(self, name: str, default: int, *, least: int) -> int:
        value = self._left.pop(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._unfit(name, f"a whole number of at least {least}", value)
        return value

    def one_of(self, name: str, values: Collection[str], default: str | None) -> str:
        value = self._left.pop(name, default)
        if not isinstance(value, str) or value not in values:
            raise self._unfit(name, f"one of {', '.join(values)}", value)
        return value

    def strings(self, name: str) -> list[str]:
        value = self._left.pop(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._unfit(name, "an array of strings", value)
        return value

    def string_map(self, name: str) -> dict[str, str]:
        value = self._left.pop(name, {})
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self._unfit(name, "an object of strings", value)
        return value

    def number_map(self, name: str) -> dict[str, float]:
        value = self._left.pop(name, {})
        if not isinstance(value, dict) or not all(type(v) in (int, float) for v in value.values()):
            raise self._unfit(name, "an object of numbers", value)
        return value

    def end(self) -> None:
        if self._left:
            raise PlanError(f"{self.of}: unknown member {next(iter(self._left))!r}")

    def _unfit(self, name: str, expected: str, value: object) -> PlanError:
        came = "nothing" if value is None else repr(value)
        return PlanError(f"{self.of}: member {name!r}: expected {expected}, got {came:.80}")


_WORDS: Mapping[type, str] = {str: "a string", list: "an array"}

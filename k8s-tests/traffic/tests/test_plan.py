import json
from pathlib import Path
from typing import Any

import pytest

from tidegate_traffic import plan
from tidegate_traffic.errors import PlanError
from tidegate_traffic.plan import Kind

TENSORS: dict[str, Any] = {
    "name": "tensors",
    "kind": "v2_grpc",
    "model": "identity",
    "rate": 50,
    "input": "INPUT_FP32",
    "output": "OUTPUT_FP32",
}
PHOTOS: dict[str, Any] = {
    "name": "photos",
    "kind": "photo",
    "model": "image_classifier",
    "rate": 5,
    "photos": [{"file": "coffee.png", "label": "espresso"}],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "coffee.png").write_bytes(b"coffee")
    return tmp_path


def test_a_plan_with_its_photos_and_defaults(directory: Path) -> None:
    document = {"http": "http://gateway:8080/", "grpc": "gateway:8081", "routes": [TENSORS, PHOTOS]}
    (directory / "plan.json").write_text(json.dumps(document))
    found = plan.read(directory / "plan.json", {"duration_s": 3})
    assert (found.http, found.duration_s, found.max_in_flight) == ("http://gateway:8080", 3, 1000)
    tensors, photos = found.routes
    assert tensors.kind is Kind.V2_GRPC
    assert tensors.echo is not None
    assert (tensors.echo.datatype, tensors.echo.elements) == ("FP32", 16)
    assert (tensors.connections, tensors.requests_per_connection) == (1, 0)
    assert photos.photos[0].content == b"coffee"


def without(route: dict[str, Any], member: str) -> dict[str, Any]:
    return {name: value for name, value in route.items() if name != member}


@pytest.mark.parametrize(
    ("routes", "sentence"),
    [
        ([], "the plan: expected at least one route, got none"),
        (["tensors"], "the plan: expected routes as objects, got 'tensors'"),
        ([TENSORS, TENSORS], "the plan: two routes are named 'tensors'"),
        (
            [without(TENSORS, "rate")],
            "route 'tensors': member 'rate': expected a number above 0, got nothing",
        ),
        (
            [TENSORS | {"rate": float("nan")}],
            "route 'tensors': member 'rate': expected a number above 0, got nan",
        ),
        (
            [TENSORS | {"kind": "soap"}],
            "route 'tensors': member 'kind': expected one of photo, v2_json, v2_grpc, "
            "inference_service, got 'soap'",
        ),
        ([TENSORS | {"retries": 3}], "route 'tensors': unknown member 'retries'"),
        (
            [TENSORS | {"kind": "inference_service", "versions": ["1"]}],
            "route 'tensors': member 'versions': answers of kind 'inference_service' do not tell "
            "the version; take the member away",
        ),
        (
            [TENSORS | {"constants": [{"name": "d", "datatype": "INT32", "values": ["x"]}]}],
            "route 'tensors': constant 'd': member 'values': expected INT32 numbers, got ['x']",
        ),
        (
            [PHOTOS | {"photos": []}],
            "route 'photos': member 'photos': expected at least one, got none",
        ),
        (
            [PHOTOS | {"photos": [{"file": "coffee.png"}]}],
            "route 'photos': photo 'coffee.png': expected the member 'label' or 'index', "
            "got neither",
        ),
        (
            [PHOTOS | {"photos": [{"file": "coffee.png", "index": 967, "scores": {"1": "0.9"}}]}],
            "route 'photos': photo 'coffee.png': member 'scores': expected an object of numbers, "
            "got {'1': '0.9'}",
        ),
        (
            [TENSORS | {"kind": "inference_service", "version_output": "version"}],
            "route 'tensors': unknown member 'version_output'",
        ),
    ],
)
def test_what_is_no_plan(directory: Path, routes: list[Any], sentence: str) -> None:
    document = {"http": "http://gateway", "grpc": "gateway:1", "routes": routes}
    with pytest.raises(PlanError) as raised:
        plan.parse(document, directory)
    assert str(raised.value) == sentence


def test_a_route_needs_its_target(directory: Path) -> None:
    with pytest.raises(PlanError, match="route 'tensors' needs the member 'grpc'"):
        plan.parse({"http": "http://gateway", "routes": [TENSORS]}, directory)


def test_a_missing_photo(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"photo 'coffee\.png': it cannot be read"):
        plan.parse({"http": "http://gateway", "routes": [PHOTOS]}, tmp_path)

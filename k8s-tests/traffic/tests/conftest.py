"""A real engine and gateways for the run from end to end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tidegate_engine.artefacts import artefact_path, default_cache
from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway

GatewayFactory = Callable[[LocalEngine], LocalGateway]

GATEWAY = "gateway-0"
PHOTOS = ("chelsea.png", "coffee.png", "camera.png")


@pytest.fixture(scope="session")
def traffic_engine() -> Iterator[LocalEngine]:
    """A real Triton; tests leave it as they found it."""
    with LocalEngine(["image_classifier", "identity", "slow"]) as running:
        yield running


@pytest.fixture
def new_gateway(tmp_path: Path) -> Iterator[GatewayFactory]:
    """Starts gateways, which end with the test."""
    with ExitStack() as stack:

        def start(engine: LocalEngine) -> LocalGateway:
            log = tmp_path / "gateway.log"
            name = f"--answers.gateway_name={GATEWAY}"
            return stack.enter_context(LocalGateway(engine.grpc_address, log, arguments=[name]))

        yield start


@pytest.fixture
def directory(tmp_path: Path, traffic_engine: LocalEngine) -> Path:
    """Where a plan finds the three photos, which are built with the models of the engine."""
    for name in PHOTOS:
        (tmp_path / name).write_bytes(artefact_path(name, default_cache()).read_bytes())
    return tmp_path

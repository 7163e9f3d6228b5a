"""Real processes for the gateway's tests: Triton, a C++ engine, gateways, photos."""

import io
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tidegate_engine.artefacts import artefact_path, default_cache
from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway

MODELS = (
    "image_classifier",
    "resnet50_cpp",
    "identity",
    "slow",
    "raising",
    "batching",
    "repeat",
    "text_stream",
)
_BUILD_S = 300

# Seconds for what should take a moment: a failed test waits longer than a passed one.
_PATIENCE_S = 20

GatewayFactory = Callable[..., LocalGateway]


@pytest.fixture(scope="session")
def engine() -> Iterator[LocalEngine]:
    """A real Triton with all models that share it; tests leave it as they found it."""
    with LocalEngine(MODELS) as running:
        yield running


@pytest.fixture(scope="session")
def gateway(
    engine: LocalEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalGateway]:
    """A gateway with its defaults in front of `engine`; it must be as well after the tests."""
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    with LocalGateway(engine.grpc_address, log) as running:
        yield running
        assert httpx.get(f"{running.admin_url}/readyz").status_code == 200
        assert running.stop() == 0
        exceptions = [r["exception"] for r in running.log_records() if "exception" in r]
        assert exceptions == []


@pytest.fixture(scope="session")
def client(gateway: LocalGateway) -> Iterator[httpx.Client]:
    """HTTP to `gateway`."""
    with httpx.Client(base_url=gateway.http_url, timeout=60) as open_client:
        yield open_client


@pytest.fixture
def new_gateway(tmp_path: Path) -> Iterator[GatewayFactory]:
    """Starts further gateways, which end with the test."""
    with ExitStack() as stack:

        def start(engine_address: str, *arguments: str) -> LocalGateway:
            log = tmp_path / f"gateway-{len(list(tmp_path.iterdir()))}.log"
            return stack.enter_context(LocalGateway(engine_address, log, arguments=arguments))

        yield start


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool], str], None]:
    """Waits until something is so, and fails when it takes too long."""

    def wait(check: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not check():
            assert time.monotonic() < deadline, f"not within {_PATIENCE_S} s: {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def photos(engine: LocalEngine) -> Mapping[str, bytes]:
    """The three photos by name; they are built with the models of `engine`."""
    names = ("chelsea.png", "coffee.png", "camera.png")
    return {name: artefact_path(name, default_cache()).read_bytes() for name in names}


# What each photo shows, as indexes of ImageNet's classes; the first is one of three kinds of cat.
SHOWN = {"chelsea.png": {281, 282, 285}, "coffee.png": {967}, "camera.png": {872}}


@pytest.fixture(params=SHOWN)
def photo_tensor(
    request: pytest.FixtureRequest, photos: Mapping[str, bytes]
) -> tuple[npt.NDArray[np.float32], set[int]]:
    """A photo as `image_classifier` wants it, [1, 3, 224, 224], and the classes it may show.

    Made here by hand, so that the gateway's own preprocessing is not what it is measured by.
    """
    image = Image.open(io.BytesIO(photos[request.param])).convert("RGB")
    side = 0.875 * min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    small = image.resize((224, 224), Image.Resampling.BICUBIC, box)
    pixels = np.asarray(small).transpose(2, 0, 1)
    return ((pixels[np.newaxis] - 127.0) / 128).astype(np.float32), SHOWN[request.param]


@pytest.fixture(scope="session")
def cpp_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real C++ server of inference.InferenceService."""
    source = Path(__file__).parent / "cpp_engine"
    out = Path(__file__).parents[3] / ".run" / "cpp_engine"
    subprocess.run(
        ["make", "-s", "-C", source, f"OUT={out}"], check=True, timeout=_BUILD_S, env=None
    )
    with subprocess.Popen([out / "engine", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("listening on "), said
        try:
            yield f"127.0.0.1:{said.split()[-1]}"
        finally:
            process.kill()

"""What `helm test` runs says whether a gateway serves: here with a real engine and gateway."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway

FILES = Path(__file__).parents[1] / "tidegate" / "files"
PHOTO = FILES / "cat.jpg"

pytestmark = pytest.mark.needs("engine")


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine(["image_classifier", "identity", "raising"]) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(
    engine: LocalEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalGateway]:
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    with LocalGateway(engine.grpc_address, log) as running:
        yield running


def check(http: str, grpc: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, FILES / "check_inference.py"),
            *(f"--http={http.removeprefix('http://')}", f"--grpc={grpc}", *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_photo_is_a_cat_and_zeros_are_answered(gateway: LocalGateway) -> None:
    done = check(
        *(gateway.http_url, gateway.grpc_address, "--model=image_classifier"),
        *(f"--photo={PHOTO}", "--label=Egyptian cat"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    http, grpc = done.stdout.splitlines()
    assert http.startswith("HTTP: Egyptian cat 0.")
    assert grpc == "gRPC: logits FP32[1, 1000]"


def test_every_datatype_can_be_sent(gateway: LocalGateway) -> None:
    done = check(gateway.http_url, gateway.grpc_address, "--model=identity")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("OUTPUT_") == 14


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--model=image_classifier", f"--photo={PHOTO}", "--label=dog"],
            "POST /predict: expected a label with 'dog' first, got [",
        ),
        (
            ["--model=absent", f"--photo={PHOTO}"],
            "POST /predict: expected 200, got 404",
        ),
        (
            ["--model=absent"],
            "gRPC: expected an answer from {grpc}, got NOT_FOUND: ",
        ),
        (
            ["--model=raising"],
            "gRPC: expected an answer from {grpc}, got INTERNAL: ",
        ),
        (
            ["--model=identity", f"--photo={PHOTO}"],
            "POST /predict: expected 200, got 400",
        ),
    ],
)
def test_a_wrong_answer_fails_in_a_sentence(
    gateway: LocalGateway, arguments: list[str], sentence: str
) -> None:
    done = check(gateway.http_url, gateway.grpc_address, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(sentence.format(grpc=gateway.grpc_address))
    assert "Traceback" not in done.stderr


def test_a_gateway_that_is_away_fails_in_a_sentence(unused_address: str) -> None:
    photo = check(unused_address, unused_address, "--model=x", f"--photo={PHOTO}")
    assert photo.returncode == 1
    assert photo.stderr.startswith(
        f"POST /predict: expected an answer from {unused_address}, got [Errno"
    )
    tensors = check(unused_address, unused_address, "--model=x")
    assert tensors.returncode == 1
    assert tensors.stderr.startswith(
        f"gRPC: expected an answer from {unused_address}, got UNAVAILABLE: "
    )


def test_it_waits_no_longer_than_it_may(gateway: LocalGateway) -> None:
    done = check(gateway.http_url, gateway.grpc_address, "--model=absent", "--patience=0.1")
    assert done.returncode == 1
    assert done.stdout.startswith("waiting until model 'absent' serves: 503 ")
    assert done.stderr.startswith("model 'absent': expected it to serve within 0.1 s, got 503 ")


def test_it_waits_until_the_model_serves(engine: LocalEngine, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as http,
        socket.create_server(("127.0.0.1", 0)) as g,
    ):
        http_port, grpc_port = http.getsockname()[1], g.getsockname()[1]
    command = [
        *(sys.executable, str(FILES / "check_inference.py"), "--model=identity", "--patience=50"),
        *(f"--http=127.0.0.1:{http_port}", f"--grpc=127.0.0.1:{grpc_port}"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        first = waiting.stdout.readline()
        assert first.startswith("waiting until model 'identity' serves: [Errno")
        with LocalGateway(
            engine.grpc_address, tmp_path / "gateway.log", http_port=http_port, grpc_port=grpc_port
        ):
            said, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, said
    assert "gRPC: OUTPUT_" in said


@pytest.fixture
def unused_address() -> Iterator[str]:
    """Bound, so that nobody else can listen there, and not listened on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"

"""Triton's own load generator, `perf_analyzer`, against the gateway."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tidegate_gateway.local import LocalGateway

pytestmark = pytest.mark.needs("engine", "perf-analyzer")

ENVIRONMENT = Path(__file__).parents[4] / ".venvs" / "perf-analyzer"
REQUESTS = 20
PATIENCE_S = 120


def perf_analyzer(*arguments: str) -> str:
    """What it reports after some requests."""
    [cudart] = ENVIRONMENT.glob("lib/python3.*/site-packages/nvidia/cuda_runtime/lib")
    ended = subprocess.run(
        [ENVIRONMENT / "bin" / "perf_analyzer", "--request-count", str(REQUESTS), *arguments],
        env={"LD_LIBRARY_PATH": str(cudart)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def reported(report: str, what: str) -> float:
    found = re.search(rf"^ *{what}: ([0-9.]+)", report, re.MULTILINE)
    assert found, report
    return float(found[1])


JSON = ("--input-tensor-format", "json", "--output-tensor-format", "json")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("-i", "http", "--concurrency-range", "2"), id="http"),
        pytest.param(("-i", "http", *JSON), id="http-json"),
        pytest.param(("-i", "http", "--async", "--concurrency-range", "4"), id="http-async"),
        pytest.param(("-i", "grpc", "-b", "2"), id="grpc-batches"),
        pytest.param(("-i", "grpc", "--streaming", "--concurrency-range", "4"), id="grpc-streams"),
        pytest.param(("-i", "grpc", "--grpc-compression-algorithm", "gzip"), id="grpc-gzip"),
    ],
)
def test_all_requests_are_answered_and_counted(
    arguments: tuple[str, ...], gateway: LocalGateway
) -> None:
    over_http = "http" in arguments
    url = gateway.http_url.removeprefix("http://") if over_http else gateway.grpc_address
    report = perf_analyzer("-m", "image_classifier", "-u", url, *arguments)
    client, server = report.split("Server:")
    assert reported(client, "Request count") == REQUESTS
    # What an engine has counted may lag behind its answer by a moment.
    assert 0 < reported(server, "Successful request count") <= REQUESTS


def test_a_decoupled_model_answers_each_request_three_times(
    gateway: LocalGateway, tmp_path: Path
) -> None:
    path = tmp_path / "requests.json"
    path.write_text(json.dumps({"data": [{"count": [3]}]}))
    arguments = ("-i", "grpc", "--streaming", "--input-data", str(path))
    report = perf_analyzer("-m", "repeat", "-u", gateway.grpc_address, *arguments)
    client, _ = report.split("Server:")
    assert reported(client, "Request count") == REQUESTS
    share = reported(client, "Response Throughput") / reported(client, "Throughput")
    assert share == pytest.approx(3, abs=0.01)

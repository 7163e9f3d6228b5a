"""A client that C++ makes from our protocol file."""

import subprocess
from pathlib import Path

import pytest

from tidegate_gateway.local import LocalGateway

BUILD_S = 300


@pytest.mark.needs("engine", "cpp-grpc")
def test_a_client_from_our_protocol_file_is_served(gateway: LocalGateway) -> None:
    source = Path(__file__).parent / "cpp_client"
    out = Path(__file__).parents[3] / ".run" / "cpp_client"
    subprocess.run(["make", "-s", "-C", source, f"OUT={out}"], check=True, timeout=BUILD_S)

    done = subprocess.run(
        [out / "client", gateway.grpc_address],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.splitlines() == [
        "model slow input delay_ms",
        "infer 1.5 -2",
        "refused 3 model 'slow': input 'input': expected datatype FP32, got FP64",
        "stream 0 1 2",
    ]

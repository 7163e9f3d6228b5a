"""Our KServe v2 protocol against the one in Triton's own client: same facts, same bytes.

Given our .proto files, written anew, and the generated messages that `tritonclient` ships; each is
looked at by `wire_probe.py` in a process of its own.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("tritonclient")

PROBE = Path(__file__).with_name("wire_probe.py")
TRITON_PYTHON = Path(__file__).parents[2] / ".venvs" / "tritonclient" / "bin" / "python"
OUR_MODULES = ("model_config_pb2", "kserve_v2_pb2", "kserve_v2_pb2_grpc")
TRITON_MODULES = ("model_config_pb2", "service_pb2", "service_pb2_grpc")

Facts = dict[str, Any]
Samples = dict[str, list[dict[str, Any]]]


def ours(command: str, given: object = None) -> dict[str, Any]:
    modules = [f"tidegate_proto.{module}" for module in OUR_MODULES]
    return probe(Path(sys.executable), command, modules, given)


def tritons(command: str, given: object = None) -> dict[str, Any]:
    modules = [f"tritonclient.grpc.{module}" for module in TRITON_MODULES]
    return probe(TRITON_PYTHON, command, modules, given)


def probe(python: Path, command: str, modules: list[str], given: object) -> dict[str, Any]:
    process = subprocess.run(
        [python, PROBE, command, *modules],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Fails with a line for each key that one side lacks or has otherwise."""
    differences = [
        f"{key}: {found.get(key, 'missing')}, expected {expected.get(key, 'missing')}"
        for key in sorted(found.keys() | expected.keys())
        if key not in found or key not in expected or found[key] != expected[key]
    ]
    assert not differences, "\n" + "\n".join(differences)


def wire(samples: Samples) -> dict[str, list[str]]:
    return {message: [sample["wire"] for sample in of] for message, of in samples.items()}


@pytest.fixture(scope="module")
def our_facts() -> Facts:
    return ours("describe")


@pytest.fixture(scope="module")
def our_samples() -> Samples:
    return ours("write")


@pytest.fixture(scope="module")
def tritons_samples() -> Samples:
    return tritons("write")


def test_every_message_field_enum_and_rpc_is_tritons(our_facts: Facts) -> None:
    assert_same(our_facts, tritons("describe"))
    kinds = {key.split(" ")[0] for key in our_facts}
    assert kinds == {"message", "field", "enum", "value", "rpc", "call"}


def test_every_rpc_of_triton_is_there(our_facts: Facts) -> None:
    rpcs = {
        key.removeprefix("rpc inference.GRPCInferenceService."): facts
        for key, facts in our_facts.items()
        if key.startswith("rpc ")
    }

    assert set(rpcs) == {
        *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata"),
        *("ModelInfer", "ModelStreamInfer", "ModelConfig", "ModelStatistics"),
        *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
        *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
        *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
        *("TraceSetting", "LogSettings"),
    }
    streaming = {name for name, facts in rpcs.items() if facts["server_streaming"]}
    assert streaming == {"ModelStreamInfer"}


def test_the_samples_set_every_field_of_every_message(
    our_facts: Facts, our_samples: Samples
) -> None:
    fields = {key.removeprefix("field ") for key in our_facts if key.startswith("field ")}
    map_entries = {
        key.removeprefix("message ")
        for key, facts in our_facts.items()
        if key.startswith("message ") and facts["map_entry"]
    }

    set_somewhere = {
        f"{message}.{field}"
        for message, samples in our_samples.items()
        for sample in samples
        for field in sample["fields"]
    }

    assert set_somewhere == {f for f in fields if f.rpartition(".")[0] not in map_entries}


def test_both_write_the_same_bytes_and_text(our_samples: Samples, tritons_samples: Samples) -> None:
    assert_same(our_samples, tritons_samples)


def test_triton_reads_what_we_write(our_samples: Samples) -> None:
    assert_same(tritons("read", wire(our_samples)), our_samples)


def test_we_read_what_triton_writes(tritons_samples: Samples) -> None:
    assert_same(ours("read", wire(tritons_samples)), tritons_samples)

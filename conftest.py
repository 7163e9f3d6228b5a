"""What a test needs of the machine, and what becomes of it where that is missing.

A test says `@pytest.mark.needs("engine")`. On a machine without that it is left out, and named at
the end of the run; with REQUIRE_ALL=1 in the environment it fails instead, so that nothing can be
left out unseen.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path

import pytest

# Read by gRPC when it is first imported. Its handlers for fork() may wait for ever for one of its
# own threads; what is started here becomes another program at once, and needs none of it.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

ROOT = Path(__file__).parent


def _has_environment(name: str) -> bool:
    return (ROOT / ".venvs" / name / "bin" / "python").exists()


def _has_cpp_grpc() -> bool:
    tools = ("g++", "make", "protoc", "grpc_cpp_plugin", "pkg-config")
    return (
        all(shutil.which(tool) for tool in tools)
        and subprocess.run(["pkg-config", "--exists", "grpc++", "protobuf"], check=False).returncode
        == 0
    )


def _can_have_cluster() -> bool:
    if os.environ.get("CONTEXT"):
        return True
    tools = ("containerd", "runc", "buildah", "mmdebstrap", "nft", "conntrack", "go")
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in tools)


# What there is to need: how to see whether it is there, and how to get it.
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "engine": (
        lambda: _has_environment("engine"),
        "the engine's environment: make setup",
    ),
    "tritonclient": (
        lambda: _has_environment("tritonclient"),
        "Triton's own client: make setup",
    ),
    "kserve": (
        lambda: _has_environment("kserve"),
        "KServe's client: make setup",
    ),
    "perf-analyzer": (
        lambda: _has_environment("perf-analyzer") and find_library("b64") is not None,
        "Triton's load generator: make setup, and apt-get install libb64-0d",
    ),
    "curl": (
        lambda: shutil.which("curl") is not None,
        "curl: apt-get install curl",
    ),
    "go": (lambda: shutil.which("go") is not None, "Go 1.25 or newer"),
    "own-cluster": (
        lambda: not os.environ.get("CONTEXT"),
        "the cluster of `make cluster`, whose nodes may be broken, and no CONTEXT",
    ),
    "cluster": (
        _can_have_cluster,
        "a cluster: root and what `make cluster-deps` installs, or CONTEXT=name of one for tests",
    ),
    "cpp-grpc": (
        _has_cpp_grpc,
        "a C++ compiler and gRPC for C++: apt-get install g++ make pkg-config libgrpc++-dev "
        "libprotobuf-dev protobuf-compiler protobuf-compiler-grpc",
    ),
}
_REQUIRE_ALL = os.environ.get("REQUIRE_ALL", "") not in ("", "0")

_left_out = pytest.StashKey[dict[str, list[str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"needs(name): what the test needs of: {', '.join(NEEDS)}")
    config.stash[_left_out] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    present: dict[str, bool] = {}
    for item in items:
        for need in {name for mark in item.iter_markers("needs") for name in mark.args}:
            if need not in NEEDS:
                raise pytest.UsageError(
                    f"{item.nodeid} needs {need!r}, which is none of {[*NEEDS]}"
                )
            check, how = NEEDS[need]
            if not present.setdefault(need, check()):
                config.stash[_left_out].setdefault(need, []).append(item.nodeid)
                item.add_marker(pytest.mark.skip(reason=f"needs {how}"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _REQUIRE_ALL and session.config.stash[_left_out]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for need, tests in config.stash[_left_out].items():
        verdict = "REQUIRE_ALL is set, so this fails" if _REQUIRE_ALL else "left out"
        terminalreporter.section(f"{verdict}: {len(tests)} tests need {NEEDS[need][1]}")
        for test in tests:
            terminalreporter.write_line(f"  {test}")

"""Three real engines behind a gateway, and the evidence that tests print."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tidegate_engine.local import LocalEngine
from tidegate_gateway.local import LocalGateway

from .faults import make_well
from .steady import SOAK_S

Engines = tuple[LocalEngine, ...]
_MODELS = ("paced", "identity")
_ENGINES = 3

# What takes minutes is for `make soak` alone.
_LONG_S = 180
collect_ignore = [] if SOAK_S >= _LONG_S else ["test_keepalive.py"]


@pytest.fixture(scope="session")
def _three_engines() -> Iterator[Engines]:
    engines = tuple(LocalEngine(_MODELS) for _ in range(_ENGINES))
    with ExitStack() as stack, ThreadPoolExecutor(_ENGINES) as starters:
        for engine in engines:
            stack.callback(engine.kill)
        list(starters.map(LocalEngine.start, engines))
        yield engines


@pytest.fixture
def engines(_three_engines: Engines) -> Iterator[Engines]:
    """Three engines with `paced` and `identity`; they are well again after the test."""
    yield _three_engines
    for engine in _three_engines:
        make_well(engine)


@pytest.fixture
def gateway_to(tmp_path: Path) -> Iterator[Callable[..., LocalGateway]]:
    """Starts gateways to engines, which tell the engines with their answers."""
    with ExitStack() as stack:

        def start(engines: Engines, *arguments: str) -> LocalGateway:
            addresses = ",".join(engine.grpc_address for engine in engines)
            log = tmp_path / f"gateway-{len(list(tmp_path.glob('gateway-*')))}.log"
            arguments = ("--answers.engine_names=true", *arguments)
            return stack.enter_context(LocalGateway(addresses, log, arguments=arguments))

        yield start


@pytest.fixture
def gateway(engines: Engines, gateway_to: Callable[..., LocalGateway]) -> LocalGateway:
    """A gateway with its defaults in front of the three."""
    return gateway_to(engines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the evidence, which pytest keeps to itself when tests pass."""
    for report in terminalreporter.getreports("passed"):
        if "tests/many_engines/" in report.nodeid and report.when == "call" and report.capstdout:
            terminalreporter.section(f"evidence: {report.nodeid.rpartition('::')[2]}")
            terminalreporter.write(report.capstdout)

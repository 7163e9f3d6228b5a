"""What befalls an engine, and how it is made well again."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tidegate_engine.local import LocalEngine

# Factors.
SLOWNESS = 20
OVERLOAD = 5


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: in reports.
        strike: does it; takes a moment, however long the fault then lasts.
        mend: ends it, and returns when the engine can answer again.
    """

    name: str
    strike: Callable[[LocalEngine], None]
    mend: Callable[[LocalEngine], None]


def _kill(engine: LocalEngine) -> None:
    os.kill(engine.pid, signal.SIGKILL)


def _terminate(engine: LocalEngine) -> None:
    os.kill(engine.pid, signal.SIGTERM)


def _kill_backends(engine: LocalEngine) -> None:
    for pid in engine.stub_pids("paced"):
        os.kill(pid, signal.SIGKILL)


def _start_again(engine: LocalEngine) -> None:
    engine.wait()
    engine.start()


def _restore_pace(engine: LocalEngine) -> None:
    engine.slow_down(1)


KILLED = Fault("killed", _kill, _start_again)
TERMINATED = Fault("terminated", _terminate, _start_again)
STALLED = Fault("stalled", LocalEngine.pause, LocalEngine.resume)
BACKEND_KILLED = Fault("backend killed", _kill_backends, LocalEngine.restart)
SLOWED = Fault("slowed", lambda engine: engine.slow_down(SLOWNESS), _restore_pace)
# For all at once; of one alone it is less than SLOWED.
OVERLOADED = Fault("overloaded", lambda engine: engine.slow_down(OVERLOAD), _restore_pace)

EVERY = (KILLED, TERMINATED, STALLED, BACKEND_KILLED, SLOWED)


def make_well(engine: LocalEngine) -> None:
    """Whatever befell `engine`: it runs, at its own pace, with all its models."""
    engine.slow_down(1)
    if engine.running:
        engine.resume()
    # Of Triton's own doing a dead backend process never comes back.
    if not engine.running or len(engine.stub_pids("paced")) < 2:
        engine.restart()

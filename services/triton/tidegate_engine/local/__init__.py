"""A real Triton server as a local process: no container, no root, no GPU.

`LocalEngine` assembles Triton from the wheel `nvidia-pytriton` in the engine environment
(`.venvs/engine`), runs it on ports of 127.0.0.1 that are chosen or given, and takes it away again,
whatever happens to the process that asked for it:

    with LocalEngine(["image_classifier"]) as engine:
        print(engine.grpc_address)

`LocalLoader` runs the loader of one beside it, which then loads what a routing table says.

Standard library only, so that the demo, the tests and the benchmarks can use it from any
environment. `python -m tidegate_engine.local --model NAME` runs one in the foreground.
"""

from tidegate_engine.local.engine import LocalEngine, make_repository
from tidegate_engine.local.errors import EngineError
from tidegate_engine.local.loader import LocalLoader

__all__ = ["EngineError", "LocalEngine", "LocalLoader", "make_repository"]

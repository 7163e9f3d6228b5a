"""Run one local engine in the foreground until Ctrl-C."""

import argparse
import contextlib
from pathlib import Path

from tidegate_engine.local import EngineError, LocalEngine


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tidegate_engine.local", description=__doc__)
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="load this model; may be given several times",
    )
    parser.add_argument(
        "--repository",
        type=Path,
        metavar="DIR",
        help="a Triton model repository (default: one with the project's models of these names)",
    )
    for name, what in (("grpc", "gRPC"), ("http", "HTTP"), ("metrics", "Prometheus metrics")):
        parser.add_argument(
            f"--{name}-port",
            type=int,
            default=0,
            metavar="PORT",
            help=f"port of 127.0.0.1 for {what} (default: a free one)",
        )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="where the log goes (default: .run/engines/…)"
    )
    parser.add_argument(
        "triton_args", nargs="*", metavar="-- ARG", help="further arguments for tritonserver"
    )
    return parser.parse_args()


def main() -> None:
    """Start the engine, print its addresses, and stay until Ctrl-C or until Triton ends."""
    arguments = _parse()
    engine = LocalEngine(
        arguments.model,
        repository=arguments.repository,
        grpc_port=arguments.grpc_port,
        http_port=arguments.http_port,
        metrics_port=arguments.metrics_port,
        directory=arguments.directory,
        triton_args=arguments.triton_args,
    )
    with contextlib.suppress(KeyboardInterrupt):
        try:
            with engine:
                print(f"gRPC     {engine.grpc_address}")
                print(f"HTTP     {engine.http_address}")
                print(f"metrics  {engine.metrics_address}")
                print(f"log      {engine.log_path}")
                print("Ctrl-C stops it.", flush=True)
                raise SystemExit(engine.wait())
        except EngineError as error:
            raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

"""Starts a real Triton, its loader and the gateway, classifies three photos, stays until Ctrl-C."""

import argparse
import contextlib
import json
import secrets
import shutil
import signal
import socket
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

from tidegate_engine.artefacts import artefact_path, default_cache
from tidegate_engine.local import EngineError, LocalEngine, LocalLoader, make_repository
from tidegate_gateway.local import GatewayError, LocalGateway

ROOT = Path(__file__).parents[1]
RUN = ROOT / ".run" / "demo"
PHOTOS = ("chelsea.png", "coffee.png", "camera.png")
MODEL = "image_classifier"
# The second one is for trying tensors as JSON, as docs/api.md shows.
MODELS = (MODEL, "identity")
VERSION = "1"
# What is to be loaded, and what requests go to: the loader and the gateway follow this file.
TABLE = RUN / "table.json"

# Seconds. Triton is started with flags that allow it; see the gateway's setting.
KEEPALIVE_S = 10
# Seconds for one photo: far more than it takes, so that a slow machine still gets its answer.
PATIENCE_S = 60


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


def main() -> int:
    """Run the demo; returns the exit status."""
    arguments = _arguments()
    # A closed terminal or a kill ends the demo as Ctrl-C does: through the `with` blocks below.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with _running(arguments) as (engine, loader, gateway):
            _classify_photos(gateway.http_url)
            if not arguments.once:
                _stay(engine, loader, gateway)
    except KeyboardInterrupt:
        print("\nStopped.")
    except (DemoError, EngineError, GatewayError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the photos")
    for name, port in (("http", 8080), ("grpc", 8081), ("admin", 8082)):
        parser.add_argument(f"--{name}-port", type=int, default=port, metavar="PORT")
    return parser.parse_args()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _running(
    arguments: argparse.Namespace,
) -> Iterator[tuple[LocalEngine, LocalLoader, LocalGateway]]:
    for name in ("http", "grpc", "admin"):
        _check_free(name, getattr(arguments, f"{name}_port"))
    with contextlib.ExitStack() as stack:
        with _step("Starting Triton"):
            make_repository(RUN / "repository", MODELS)
            engine = stack.enter_context(LocalEngine(repository_key=secrets.token_hex()))
        _write_table()
        loader = LocalLoader(
            engine,
            RUN / "repository",
            RUN / "loader.log",
            arguments=[f"--table.file={TABLE}"],
        )
        with _step("Loading the models"):
            stack.enter_context(loader)
            loader.wait_ready(PATIENCE_S)
        gateway = LocalGateway(
            engine.grpc_address,
            RUN / "gateway.log",
            http_port=arguments.http_port,
            grpc_port=arguments.grpc_port,
            admin_port=arguments.admin_port,
            arguments=[f"--engine.keepalive_s={KEEPALIVE_S}", f"--routing.table={TABLE}"],
        )
        with _step("Starting the gateway"):
            stack.enter_context(gateway)
        yield engine, loader, gateway


def _write_table() -> None:
    table = {
        "schema": 1,
        "revision": 1,
        "models": {model: {"stable": VERSION} for model in MODELS},
        "loads": {model: {"versions": {VERSION: {"digest": ""}}} for model in MODELS},
    }
    TABLE.write_text(json.dumps(table, indent=2))


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    print(f"{what} … ", end="", flush=True)
    began = time.monotonic()
    try:
        yield
    except BaseException:
        print("no")
        raise
    print(f"{time.monotonic() - began:.1f} s")


def _check_free(name: str, port: int) -> None:
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise DemoError(
                f"port {port} is taken: stop what listens there, or choose another with "
                f"`make demo {name.upper()}_PORT=…`."
            ) from None


def _classify_photos(url: str) -> None:
    for name in PHOTOS:
        photo = RUN / name
        shutil.copyfile(artefact_path(name, default_cache()), photo)
        began = time.monotonic()
        best = _classify(url, photo)
        milliseconds = (time.monotonic() - began) * 1000
        print(f"  {name:12} {best['label']:20} {best['score']:6.1%} {milliseconds:8.1f} ms")


def _classify(url: str, photo: Path) -> dict[str, object]:
    """The best class of `photo`, by POST /predict."""
    boundary = uuid.uuid4().hex
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{photo.name}"'
        "\r\n\r\n"
    ).encode() + photo.read_bytes()
    request = urllib.request.Request(  # noqa: S310 - our own gateway
        f"{url}/predict",
        body + f"\r\n--{boundary}--\r\n".encode(),
        {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "tidegate-timeout": str(PATIENCE_S),
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:  # noqa: S310
            top: list[dict[str, object]] = json.load(response)["top"]
            return top[0]
    except OSError as error:
        raise DemoError(f"POST /predict failed: {error}; its log is {RUN}/gateway.log") from None


def _stay(engine: LocalEngine, loader: LocalLoader, gateway: LocalGateway) -> None:
    photo = (RUN / PHOTOS[0]).relative_to(ROOT)
    print(
        f"""
  HTTP    {gateway.http_url}   (interactive documentation: {gateway.http_url}/docs)
  gRPC    {gateway.grpc_address}
  admin   {gateway.admin_url}   (/readyz, /metrics)
  Triton  {engine.grpc_address}
  loader  http://{loader.address}   (/status: what Triton has loaded)

Try it from another terminal:
  curl -F file=@{photo} '{gateway.http_url}/predict?top=3'
  curl {gateway.http_url}/v2/models/{MODEL}

Ctrl-C stops everything.""",
        flush=True,
    )
    while engine.running and loader.running and gateway.poll() is None:
        time.sleep(0.2)
    running = {"Triton": engine.running, "the loader": loader.running}
    ended = next((name for name, runs in running.items() if not runs), "the gateway")
    raise DemoError(
        f"{ended} has ended by itself; see {engine.log_path}, {loader.log_path} and "
        f"{gateway.log_path}"
    )


if __name__ == "__main__":
    sys.exit(main())

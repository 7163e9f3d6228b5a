"""Offers fake `nvidia.com/gpu` devices to a node's kubelet: `plugin.py --unhealthy FILE ID...`

Real: the kubelet's device-plugin API, and with it everything that Kubernetes does with devices:
what a node can allocate, which pod gets which device, which pod stays Pending and why, what happens
when a device fails. Fake: the devices. There is no GPU behind an id, no driver is mounted, and a
container learns its ids as NVIDIA's own plugin tells them, in NVIDIA_VISIBLE_DEVICES. It runs as a
process of the node (see README.md one folder up), so that it needs no image and no pod.

The ids in the file given by `--unhealthy`, one a line, are reported as Unhealthy; no file, none. It
is looked at five times a second.

Each kubelet that starts removes all plugins' sockets and makes its own anew: hence the plugin
watches the kubelet's socket, and serves and registers again whenever that is another.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

# The generated code is made from the .proto file at each start: it cannot differ from it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
_messages, _services = grpc.protos_and_services("deviceplugin.proto")

FOLDER = Path("/var/lib/kubelet/device-plugins")
KUBELET = FOLDER / "kubelet.sock"
OWN = FOLDER / "tidegate-fake-gpu.sock"
RESOURCE = "nvidia.com/gpu"
LOOK_S = 0.2


def devices(ids: Sequence[str], unhealthy: set[str]) -> list[tuple[str, str]]:
    """Every device's id and health, in the words of the API."""
    return [(name, "Unhealthy" if name in unhealthy else "Healthy") for name in ids]


def unhealthy_ids(file: Path) -> set[str]:
    """The ids that a file lists; none where there is no file."""
    try:
        return set(file.read_text(encoding="utf-8").split())
    except FileNotFoundError:
        return set()


class Plugin:
    """What the kubelet calls.

    Args:
        ids: of the devices.
        read_unhealthy: the ids of those that are broken at the moment.
    """

    def __init__(self, ids: Sequence[str], read_unhealthy: Callable[[], set[str]]) -> None:
        self._ids = ids
        self._read_unhealthy = read_unhealthy
        self.closing = threading.Event()

    def options(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        """Nothing optional."""
        return _messages.DevicePluginOptions()

    def list_and_watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """The devices, at once and at every change."""
        last = None
        while context.is_active() and not self.closing.is_set():
            now = devices(self._ids, self._read_unhealthy())
            if now != last:
                say(f"devices: {now}")
                yield _messages.ListAndWatchResponse(
                    devices=[_messages.Device(ID=name, health=health) for name, health in now]
                )
                last = now
            self.closing.wait(LOOK_S)

    def allocate(self, request: Any, _context: grpc.ServicerContext) -> Any:
        """Tell each container its devices, in the variable that NVIDIA's runtime reads."""
        answer = _messages.AllocateResponse()
        for container in request.container_requests:
            ids = ",".join(container.devices_ids)
            say(f"allocated: {ids}")
            answer.container_responses.add().envs["NVIDIA_VISIBLE_DEVICES"] = ids
        return answer


def serve(plugin: Plugin) -> grpc.Server:
    """Serve the plugin on its socket."""
    OWN.unlink(missing_ok=True)
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    handlers: dict[str, Any] = {
        name: kind(method, request.FromString, lambda message: message.SerializeToString())
        for name, kind, method, request in (
            ("GetDevicePluginOptions", unary, plugin.options, _messages.Empty),
            ("ListAndWatch", stream, plugin.list_and_watch, _messages.Empty),
            ("Allocate", unary, plugin.allocate, _messages.AllocateRequest),
        )
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
    )
    server.add_insecure_port(f"unix://{OWN}")
    server.start()
    return server


def register() -> None:
    """Announce the plugin to the kubelet.

    Raises:
        grpc.RpcError: the kubelet does not answer, or refuses.
    """
    request = _messages.RegisterRequest(
        version="v1beta1", endpoint=OWN.name, resource_name=RESOURCE
    )
    with grpc.insecure_channel(f"unix://{KUBELET}") as channel:
        _services.RegistrationStub(channel).Register(request, timeout=5)
    say(f"registered {RESOURCE}")


def kubelet_socket() -> tuple[int, int] | None:
    """What tells one kubelet's socket from the next one's; None where there is none."""
    try:
        found = KUBELET.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def attend(ids: Sequence[str], read_unhealthy: Callable[[], set[str]]) -> None:
    """Serve one kubelet after the other, for ever."""
    while True:
        kubelet = kubelet_socket()
        if kubelet is None:
            time.sleep(LOOK_S)
            continue
        plugin = Plugin(ids, read_unhealthy)
        server = serve(plugin)
        try:
            register()
            while kubelet_socket() == kubelet and OWN.exists():
                time.sleep(LOOK_S)
            say("the kubelet is another")
        except grpc.RpcError as error:
            say(f"registering failed: {error}")
            time.sleep(LOOK_S)
        plugin.closing.set()
        server.stop(grace=1).wait()


def say(text: str) -> None:
    """Log a line."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> None:
    """Offer the devices that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unhealthy", type=Path, required=True, help="file with ids, one a line")
    parser.add_argument("ids", nargs="+", help="the devices' ids")
    arguments = parser.parse_args()
    attend(arguments.ids, lambda: unhealthy_ids(arguments.unhealthy))


if __name__ == "__main__":
    main()

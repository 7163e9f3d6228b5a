"""The little that the cluster itself asks of its API server and its DNS."""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

from .errors import ClusterError
from .layout import API_ADDRESS, API_PORT, DNS_ADDRESS

ANSWER_SECONDS = 10.0


class Api:
    """The API server, as the administrator sees it.

    Args:
        pki: the folder of the administrator's certificate.
    """

    def __init__(self, pki: Path) -> None:
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    def is_ready(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            return self._ask("GET", "/readyz", timeout_s=2.0)[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def get(self, path: str) -> Any:
        """What lies at a path.

        Raises:
            ClusterError: nothing does, or the server does not answer.
        """
        return self._expect("GET", path, None, "application/json", {200})

    def create(self, path: str, content: dict[str, Any]) -> None:
        """Post an object to its collection; that it is there already is fine.

        Raises:
            ClusterError: it is refused, or the server does not answer.
        """
        self._expect("POST", path, content, "application/json", {201, 409})

    def patch(self, path: str, content: dict[str, Any]) -> None:
        """Merge fields into an object.

        Raises:
            ClusterError: it is refused, or the server does not answer.
        """
        self._expect("PATCH", path, content, "application/merge-patch+json", {200})

    def has(self, path: str) -> bool:
        """Whether something lies at a path."""
        try:
            self.get(path)
        except ClusterError:
            return False
        return True

    def is_node_ready(self, name: str) -> bool:
        """Whether a node counts as Ready; a dead one does until its silence is noticed."""
        return self._node_ready(name).get("status") == "True"

    def last_heard_of(self, name: str) -> str | None:
        """When a node's kubelet last reported (to the second); None if it never did."""
        return self._node_ready(name).get("lastHeartbeatTime")

    def allocatable(self, name: str, resource: str) -> int:
        """How much of a resource a node has for pods, in whole units."""
        status = self.get(f"/api/v1/nodes/{name}")["status"]
        return int(status.get("allocatable", {}).get(resource, "0"))

    def _node_ready(self, name: str) -> dict[str, str]:
        status = self.get(f"/api/v1/nodes/{name}")["status"]
        conditions = status.get("conditions", [])
        return next((each for each in conditions if each["type"] == "Ready"), {})

    def _expect(
        self, method: str, path: str, content: dict[str, Any] | None, kind: str, good: set[int]
    ) -> Any:
        try:
            status, answer = self._ask(method, path, content, kind)
        except OSError as error:
            raise ClusterError(
                f"The API server does not answer {method} {path}: {error}."
            ) from None
        if status not in good:
            said = answer.decode(errors="replace")[:500]
            raise ClusterError(f"The API server answers {method} {path} with {status}: {said}")
        return json.loads(answer)

    def _ask(
        self,
        method: str,
        path: str,
        content: dict[str, Any] | None = None,
        kind: str = "application/json",
        timeout_s: float = ANSWER_SECONDS,
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            str(API_ADDRESS), API_PORT, context=self._tls, timeout=timeout_s
        )
        try:
            body = None if content is None else json.dumps(content)
            connection.request(method, path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP answer ({error!r})") from None
        finally:
            connection.close()


def resolves(name: str, timeout_s: float = 0.3) -> bool:
    """Whether the cluster's DNS gives an address for a name, asked from this machine by UDP."""
    number = random.randrange(1 << 16)  # noqa: S311 - it only tells answers apart
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout_s)
        try:
            client.sendto(question(number, name), (str(DNS_ADDRESS), 53))
            return answers(number, client.recv(512))
        except OSError:
            return False


def question(number: int, name: str) -> bytes:
    """A DNS query (RFC 1035, 4.1) for the IPv4 addresses of a name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, 1, 1)


def answers(number: int, message: bytes) -> bool:
    """Whether a DNS message answers that query without error and with a record."""
    if len(message) < 12:
        return False
    # The flags hold, first, that it is an answer, and last, the code of the error.
    back, flags, _, records = struct.unpack(">4H", message[:8])
    return bool(back == number and flags & 0x800F == 0x8000 and records > 0)

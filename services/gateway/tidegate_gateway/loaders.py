"""What loaders tell: which versions each engine has proven.

An engine's loader loads versions by the routing table, and proves each with the model's golden
request before it says so. That is more than the engine itself can tell, which calls a version ready
the moment that it is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate_gateway.discovery import Endpoint
from tidegate_process.asking import Asking, NoAnswer

MAX_STATUS_BYTES = 8 * 2**20
"""Largest status that is read, in bytes: it has the whole routing table in it, of 1 MiB at most."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a loader says of one version.

    Attributes:
        is_proven: whether the table that it goes by wants the version, and it is proven there.
        digest: of the files that it has; "" where it does not say.
    """

    is_proven: bool
    digest: str

    def serves(self, digest: str) -> bool:
        """Whether requests for the version may go there.

        Args:
            digest: of its files, by our table; "" where that has none. A loader that goes by an
                older table may have proven other files.
        """
        return self.is_proven and (not digest or self.digest in ("", digest))


Report = Mapping[tuple[str, str], Said]
"""What a loader says of each (model, version) that it has, or is to have."""


class Loaders:
    """Asks the loaders beside engines.

    Args:
        port: where each answers GET /status, on its engine's address.
        timeout_s: for a whole answer.
    """

    def __init__(self, port: int, *, timeout_s: float) -> None:
        self._asking = Asking(timeout_s=timeout_s, max_bytes=MAX_STATUS_BYTES)
        self._port = port

    async def close(self) -> None:
        """End all connections."""
        await self._asking.close()

    async def ask(self, endpoint: Endpoint) -> Report:
        """What the loader of an engine says now.

        Raises:
            NoAnswer: nothing that can be used.
        """
        host = endpoint.address.rpartition(":")[0].strip("[]")
        return read(await self._asking.ask(host, self._port, "/status"))


def read(document: Mapping[str, Any]) -> Report:
    """The report in a loader's status.

    Raises:
        NoAnswer: it is none.
    """
    try:
        if not document["revision"]:
            raise NoAnswer("it has no routing table yet")
        return {
            (model, version): Said(
                is_proven=said["wanted"] is True and said["proven"] is True,
                digest=said["digest"],
            )
            for model, each in document["models"].items()
            for version, said in each["versions"].items()
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise NoAnswer(f"expected a loader's status: {type(error).__name__}: {error}") from None

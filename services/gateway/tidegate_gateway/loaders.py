"""What loaders tell: which versions each engine has proven.

An engine's loader loads versions by the routing table, and proves each with the model's golden
request before it says so. That is more than the engine itself can tell, which calls a version ready
the moment that it is loaded.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from tidegate_gateway.discovery import Endpoint

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


class Silent(Exception):
    """A loader says nothing that can be used; the message says why."""


class Loaders:
    """Asks the loaders beside engines.

    Args:
        port: where each answers GET /status, on its engine's address.
        timeout_s: for a whole answer.
    """

    def __init__(self, port: int, *, timeout_s: float) -> None:
        self._client = httpx2.AsyncClient(
            timeout=timeout_s,
            # Those that do not answer must not keep others from being asked; and a connection that
            # is kept may be one that the loader is just closing.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            # A proxy of the environment is for the internet, not for the pod next door.
            trust_env=False,
        )
        self._port = port
        self._timeout_s = timeout_s

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()

    async def ask(self, endpoint: Endpoint) -> Report:
        """What the loader of an engine says now.

        Raises:
            Silent: nothing that can be used.
        """
        host = endpoint.address.rpartition(":")[0]
        try:
            async with asyncio.timeout(self._timeout_s):
                content = await self._content(f"http://{host}:{self._port}/status")
        except TimeoutError:
            raise Silent(f"no answer within {self._timeout_s:g} s") from None
        except httpx2.HTTPError as error:
            raise Silent(f"{type(error).__name__}: {error}") from None
        return read(content)

    async def _content(self, url: str) -> bytes:
        content = bytearray()
        async with self._client.stream("GET", url) as answer:
            if answer.status_code != httpx2.codes.OK:
                raise Silent(f"expected status 200, got {answer.status_code}")
            async for part in answer.aiter_bytes():
                content += part
                if len(content) > MAX_STATUS_BYTES:
                    raise Silent(f"expected at most {MAX_STATUS_BYTES} bytes, got more")
        return bytes(content)


def read(content: bytes) -> Report:
    """The report in a loader's status.

    Raises:
        Silent: it is none.
    """
    try:
        document: Any = orjson.loads(content)
        if not document["revision"]:
            raise Silent("it has no routing table yet")
        return {
            (model, version): Said(
                is_proven=said["wanted"] is True and said["proven"] is True,
                digest=said["digest"],
            )
            for model, each in document["models"].items()
            for version, said in each["versions"].items()
        }
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Silent(f"expected a loader's status: {type(error).__name__}: {error}") from None

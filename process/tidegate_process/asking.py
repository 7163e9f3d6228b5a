"""Asking a pod for a JSON document: within a time, up to a size, and never more than that.

A pod that does not answer, answers too late, too much or something else is silent, whatever the
reason: whoever asks decides what that means. The reason is kept for those who look for it.
"""

import asyncio
import ipaddress
from collections.abc import Mapping
from typing import Any

import httpx2
import orjson

from tidegate_process.listening import in_brackets


class NoAnswer(Exception):
    """A pod says nothing that can be used; the message says why."""


class Asking:
    """Asks pods over HTTP.

    Args:
        timeout_s: for a whole answer.
        max_bytes: of an answer.
    """

    def __init__(self, *, timeout_s: float, max_bytes: int) -> None:
        self._client = httpx2.AsyncClient(
            timeout=timeout_s,
            # Those that do not answer must not keep others from being asked; and a connection that
            # is kept may be one that the pod is just closing.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            # A proxy of the environment is for the internet, not for the pod next door.
            trust_env=False,
            # A few packed bytes may become any number.
            headers={"Accept-Encoding": "identity"},
        )
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()

    async def ask(self, address: str, port: int, path: str) -> Mapping[str, Any]:
        """The JSON object at `path` of the pod with the IP `address`.

        Raises:
            NoAnswer: there is none that can be used.
        """
        url = f"http://{_host(address)}:{port}{path}"
        try:
            async with asyncio.timeout(self._timeout_s):
                content = await self._content(url)
            document = orjson.loads(content)
        except TimeoutError:
            raise NoAnswer(f"no answer within {self._timeout_s:g} s") from None
        except httpx2.HTTPError as error:
            raise NoAnswer(": ".join(filter(None, (type(error).__name__, str(error))))) from None
        except orjson.JSONDecodeError as error:
            raise NoAnswer(f"expected JSON: {error}") from None
        if not isinstance(document, dict):
            raise NoAnswer(f"expected a JSON object, got {type(document).__name__}")
        return document

    async def _content(self, url: str) -> bytes:
        content = bytearray()
        async with self._client.stream("GET", url) as answer:
            if answer.status_code != httpx2.codes.OK:
                raise NoAnswer(f"expected status 200, got {answer.status_code}")
            async for part in answer.aiter_raw():
                content += part
                if len(content) > self._max_bytes:
                    raise NoAnswer(f"expected at most {self._max_bytes} bytes, got more")
        return bytes(content)


def _host(address: str) -> str:
    if not address:
        raise NoAnswer("the pod has no address")
    try:
        return in_brackets(str(ipaddress.ip_address(address)))
    except ValueError:
        raise NoAnswer(f"expected the IP address of a pod, got {address!r}") from None

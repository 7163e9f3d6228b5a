"""Asking a pod for a JSON document: within a time, up to a size, and never more than that.

A pod that does not answer, answers too late, too much or something else is silent, whatever the
reason: the plan decides what that means. The reason is kept for those who look for it.
"""

import asyncio
import ipaddress
import json
from collections.abc import Mapping
from typing import Any

import httpx2

from tidegate_operator.errors import NoAnswer


class Asking:
    """Asks pods over HTTP.

    Args:
        timeout_s: for a whole answer.
        max_bytes: of an answer.
    """

    def __init__(self, *, timeout_s: float, max_bytes: int) -> None:
        # Pods are asked directly, whatever proxies the environment names, and for plain bytes: a
        # few packed ones may become any number.
        self._client = httpx2.AsyncClient(
            timeout=timeout_s,
            trust_env=False,
            limits=httpx2.Limits(max_connections=None),
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
        if not address:
            raise NoAnswer("the pod has no address")
        url = f"http://{_host(address)}:{port}{path}"
        try:
            async with asyncio.timeout(self._timeout_s):
                content = await self._content(url)
            document = json.loads(content)
        except TimeoutError:
            raise NoAnswer(f"no answer within {self._timeout_s:g} s") from None
        except httpx2.HTTPError as error:
            raise NoAnswer(str(error) or type(error).__name__) from None
        except (ValueError, RecursionError) as error:
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
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        raise NoAnswer(f"expected the IP address of a pod, got {address!r}") from None
    return f"[{found}]" if found.version == 6 else str(found)


def whole(document: Mapping[str, Any], name: str) -> int:
    """A whole number from 0 in an answer.

    Raises:
        NoAnswer: it is missing, or something else.
    """
    found = document.get(name)
    # type() and not isinstance(): a bool is an int to Python.
    if type(found) is not int or found < 0:
        raise NoAnswer(f"{name}: expected a whole number from 0, got {found!r:.64}")
    return found


def text(document: Mapping[str, Any], name: str) -> str:
    """A text in an answer.

    Raises:
        NoAnswer: it is missing, or something else.
    """
    found = document.get(name)
    if not isinstance(found, str):
        raise NoAnswer(f"{name}: expected a text, got {found!r:.64}")
    return found


def is_said(document: Mapping[str, Any], name: str) -> bool:
    """A yes or no in an answer.

    Raises:
        NoAnswer: it is missing, or something else.
    """
    found = document.get(name)
    if type(found) is not bool:
        raise NoAnswer(f"{name}: expected true or false, got {found!r:.64}")
    return found


def members(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in an answer; an empty one where it is missing or null.

    Raises:
        NoAnswer: it is something else.
    """
    found = document.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise NoAnswer(f"{name}: expected an object, got {found!r:.64}")
    return found

"""Triton, over HTTP on localhost: what it has loaded, to load and to unload, and inference.

Seen on Triton 2.51 (24.10). It is started with

    --model-control-mode=explicit --strict-readiness=false
    --http-restricted-api=model-repository:tidegate-key=<key>
    --grpc-restricted-protocol=model-repository:tidegate-key=<key>

and without --load-model. `model-repository` are the index, load and unload; without the header
`tidegate-key: <key>` they answer 403 (over gRPC, where the metadata would be
`triton-grpc-protocol-tidegate-key`, UNAVAILABLE). All else that is asked here is open.

- The index has every folder of the repository, those that are no models too; those that were never
  loaded have no state.
- A load serves what the policy in config.pbtxt names. A version that is named before and after goes
  on serving, untouched, when nothing but the policy and comments has changed in the text, and no
  file in its folder, or beside it in the model's. Any other change loads all of them anew, beside
  those that serve, and then swaps. (The log says `loading` of those that are not loaded anew, too.)
- A load that names a version without a folder is a success. One that fails drops every version that
  it added, and leaves what was there.
- A load whose client has gone goes on; the index says LOADING until it ends.
- Load and unload answer before the versions that leave have ended (UNLOADING). The last one that
  is unloaded leaves like any other; to unload what is not loaded is a success.
- Nothing but the end of a connection tells of a restart: it has no id, and takes milliseconds.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from tidegate_engine.loader.errors import TritonFailed, TritonSilent, plain
from tidegate_engine.loader.plan import Listed, Listing, Requests, State

KEY_HEADER = "tidegate-key"
"""The header with the key of the restricted part of Triton's API."""

_HEAD_LENGTH = "Inference-Header-Content-Length"
_STATES = {state.value: state for state in State}
_USED, _TOTAL = "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """What Triton answers to an inference.

    Attributes:
        status: of HTTP; 200 for an answer of the model.
        error: what it says instead, in its words; "" for an answer.
        head: the JSON of the answer.
        tensors: the binary part behind it.
    """

    status: int
    error: str = ""
    head: Mapping[str, Any] | None = None
    tensors: bytes = b""


class Triton:
    """One Triton server. A context manager, for its connections.

    Args:
        address: host:port of its HTTP API.
        key: of the restricted part of it; "" where it is not restricted.
        metrics: host:port of its metrics.
        ask_timeout_s: seconds for anything but a load and an inference.
        load_timeout_s: seconds for a load or an unload.
    """

    def __init__(
        self, address: str, key: str, *, metrics: str, ask_timeout_s: float, load_timeout_s: float
    ) -> None:
        self._metrics = f"http://{metrics}/metrics"
        self._headers = {KEY_HEADER: key} if key else {}
        self._load_timeout_s = load_timeout_s
        self._client = httpx2.AsyncClient(
            base_url=f"http://{address}",
            timeout=ask_timeout_s,
            # A connection that is kept may be one to a Triton that has ended since.
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close what is open."""
        await self._client.aclose()

    async def index(self) -> Listing:
        """What it has loaded, by model and version.

        Raises:
            TritonFailed: it does not say.
        """
        found: dict[str, dict[str, Listed]] = {}
        for each in await self._post("/v2/repository/index"):
            state = _STATES.get(each.get("state", ""))
            if state is not None:
                listed = Listed(state, plain(each.get("reason", "")))
                found.setdefault(each["name"], {})[each.get("version", "")] = listed
        return found

    async def load(self, model: str) -> None:
        """Have it load a model from its repository, as the policy there says.

        Raises:
            TritonFailed: it cannot, and has what it had.
            TritonSilent: it did not say whether it could.
        """
        await self._post(f"/v2/repository/models/{model}/load", self._load_timeout_s)

    async def unload(self, model: str) -> None:
        """Have it unload all versions of a model. Raises as `load` does."""
        await self._post(f"/v2/repository/models/{model}/unload", self._load_timeout_s)

    async def requests(self) -> dict[tuple[str, str], Requests]:
        """How often each (model, version) that is loaded has been asked, and has answered.

        Raises:
            TritonFailed: it does not say.
        """
        document = await self._get("/v2/models/stats")
        return {
            (each["name"], each["version"]): Requests(
                *(int(each["inference_stats"][kind]["count"]) for kind in ("success", "fail"))
            )
            for each in document["model_stats"]
        }

    async def metadata(self, model: str, version: str) -> Mapping[str, Any]:
        """What a version takes and gives. Raises TritonFailed."""
        return await self._get(f"/v2/models/{model}/versions/{version}")

    async def config(self, model: str, version: str) -> Mapping[str, Any]:
        """The configuration of a version. Raises TritonFailed."""
        return await self._get(f"/v2/models/{model}/versions/{version}/config")

    async def infer(
        self, model: str, version: str, head: Mapping[str, Any], tensors: bytes
    ) -> Answer:
        """Ask a version; takes as long as it takes.

        Raises:
            TritonSilent: there is no answer.
        """
        start = orjson.dumps(head)
        answer = await self._send(
            "POST",
            f"/v2/models/{model}/versions/{version}/infer",
            content=start + tensors,
            headers={_HEAD_LENGTH: str(len(start))},
            timeout=None,
        )
        if answer.status_code != httpx2.codes.OK:
            return Answer(answer.status_code, error=_said(answer))
        length = int(answer.headers.get(_HEAD_LENGTH, len(answer.content)))
        return Answer(
            answer.status_code,
            head=orjson.loads(answer.content[:length]),
            tensors=answer.content[length:],
        )

    async def gpu_memory(self) -> tuple[int, int] | None:
        """Bytes used and bytes in all on its GPUs; None where it has none.

        Raises:
            TritonFailed: it does not say.
        """
        answer = await self._send("GET", self._metrics)
        sums = {_USED: 0.0, _TOTAL: 0.0}
        for line in answer.text.splitlines():
            name = line.partition("{")[0]
            if name in sums:
                sums[name] += float(line.rpartition(" ")[2])
        return (int(sums[_USED]), int(sums[_TOTAL])) if sums[_TOTAL] else None

    async def _get(self, path: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._checked(await self._send("GET", path))
        return found

    async def _post(self, path: str, timeout_s: float | None = None) -> Any:
        timeout = {} if timeout_s is None else {"timeout": timeout_s}
        return self._checked(
            await self._send("POST", path, content=b"{}", headers=self._headers, **timeout)
        )

    def _checked(self, answer: httpx2.Response) -> Any:
        if answer.status_code != httpx2.codes.OK:
            raise TritonFailed(_said(answer), answer.status_code)
        try:
            return orjson.loads(answer.content) if answer.content else None
        except orjson.JSONDecodeError as error:
            raise TritonFailed(f"expected JSON: {error}") from None

    async def _send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        try:
            return await self._client.request(method, url, **options)
        except httpx2.HTTPError as error:
            raise TritonSilent(f"Triton does not answer: {type(error).__name__}") from None


def _said(answer: httpx2.Response) -> str:
    try:
        return str(orjson.loads(answer.content)["error"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return f"status {answer.status_code}"


async def watch(
    address: str, *, started: Callable[[], None], gone: Callable[[], None], pause_s: float
) -> None:
    """Tell when Triton begins to run and when it ends, however short it was away; never ends.

    One connection is kept open, on which nothing is ever sent. The kernel ends it with Triton. It
    is one to its metrics: told to stop, Triton awaits the end of those to its other ports for as
    long as it may take to exit. They are also the last port that it opens.

    Args:
        address: host:port of its metrics.
        pause_s: seconds between two tries to connect.
    """
    host, _, port = address.rpartition(":")
    while True:
        try:
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            await asyncio.sleep(pause_s)
            continue
        started()
        try:
            with contextlib.suppress(OSError):
                while await reader.read(1):
                    pass
        finally:
            gone()
            writer.close()
        await asyncio.sleep(pause_s)

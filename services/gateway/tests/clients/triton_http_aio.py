"""The calls of a plan by `tritonclient.http.aio`."""

import asyncio
from typing import Any

from tritonclient.http import aio  # type: ignore[import-not-found]
from tritonclient.utils import InferenceServerException  # type: ignore[import-not-found]

from .records import Call, Record, arguments, emit
from .triton_http import ASKING, failure_record, infer_arguments, infer_record


async def _perform(client: Any, call: Call) -> Record:
    try:
        match call["do"]:
            case "infer" | "async_infer":
                return infer_record(await client.infer(**infer_arguments(call)))
            case asking:
                return {"answer": await getattr(client, ASKING[asking])(*call.get("of", []))}
    except InferenceServerException as error:
        return failure_record(error)


async def _main() -> None:
    url, calls = arguments()
    async with aio.InferenceServerClient(url) as client:
        for call in calls:
            emit(call, await _perform(client, call))


if __name__ == "__main__":
    asyncio.run(_main())

"""The calls of a plan by `tritonclient.grpc.aio`: one by one, and in streams."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from tritonclient.grpc import aio  # type: ignore[import-not-found]
from tritonclient.utils import InferenceServerException  # type: ignore[import-not-found]

from .records import Call, Record, arguments, emit, error_record
from .triton_grpc import (
    PATIENCE_S,
    answer_record,
    asked,
    failure_record,
    infer_arguments,
    infer_record,
    request_arguments,
)


async def _perform(client: Any, call: Call) -> Record:
    try:
        match call["do"]:
            case "infer" | "async_infer":
                return infer_record(await client.infer(**infer_arguments(call)))
            case "stream":
                return {"answers": await _stream(client, call)}
            case _:
                return {"answer": await asked(client, call)}
    except InferenceServerException as error:
        return failure_record(error)


async def _stream(client: Any, call: Call) -> list[Record]:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for request in call["requests"]:
            described = request_arguments(request)
            # The sync client alone has a keyword for it, and this one refuses it as a parameter.
            described.pop("enable_empty_final_response", None)
            yield described

    answers = []
    try:
        async for result, error in client.stream_infer(
            requests(),
            stream_timeout=PATIENCE_S,
            headers=call.get("headers"),
            compression_algorithm=call.get("compression", {}).get("request"),
        ):
            answers.append(answer_record(result, error))
    except grpc.RpcError as ended:  # the client passes it on as it is
        answers.append(error_record(ended.code(), ended.details()))
    return answers


async def _main() -> None:
    url, calls = arguments()
    async with aio.InferenceServerClient(url) as client:
        for call in calls:
            emit(call, await _perform(client, call))


if __name__ == "__main__":
    asyncio.run(_main())

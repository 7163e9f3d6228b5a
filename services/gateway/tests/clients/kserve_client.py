"""The calls of a plan by KServe's clients: `InferenceRESTClient` for http://…, else gRPC's."""

import asyncio
import logging
from typing import Any

import grpc
import httpx
from kserve import (  # type: ignore[import-not-found]
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput  # type: ignore[import-not-found]
from kserve.utils.numpy_codec import to_np_dtype  # type: ignore[import-not-found]

from .records import Call, Record, arguments, array, emit, error_record, tensor_record

# What a client says of an answer that it cannot read.
UNREADABLE = (ValueError, KeyError, TypeError)


def _input(tensor: Call) -> Any:
    made = InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
    made.set_data_from_numpy(array(tensor, to_np_dtype), binary_data=tensor.get("binary", True))
    return made


def _wanted(output: Call, *, rest: bool) -> Any:
    parameters: dict[str, object] = {"binary_data": output.get("binary", True)} if rest else {}
    if "classes" in output:
        parameters["classification"] = output["classes"]
    return RequestedOutput(output["name"], parameters)


def _request(call: Call, *, rest: bool) -> Any:
    options = call.get("options", {})
    return InferRequest(
        call["model"],
        [_input(tensor) for tensor in call["inputs"]],
        request_id=options.get("request_id"),
        parameters=options.get("parameters"),
        request_outputs=[_wanted(output, rest=rest) for output in call.get("outputs", [])],
        model_version=call.get("version"),
    )


def _infer_record(response: Any) -> Record:
    tensors = [
        tensor_record(each.name, each.datatype, each.as_numpy()) for each in response.outputs
    ]
    parameters = {name: str(value) for name, value in (response.parameters or {}).items()}
    head = {"id": response.id, "model_name": response.model_name, "parameters": parameters}
    return {"response": {**head, "model_version": response.model_version}, "tensors": tensors}


async def _rest(client: Any, url: str, call: Call) -> Record:
    try:
        match call["do"]:
            case "infer":
                request = _request(call, rest=True)
                return _infer_record(await client.infer(url, request, model_name=call["model"]))
            case asking:
                return {"answer": await getattr(client, f"is_{asking}")(url, *call.get("of", []))}
    except httpx.HTTPStatusError as error:
        return error_record(error.response.status_code, error)
    except UNREADABLE as error:
        return error_record(None, repr(error))


async def _grpc(client: Any, call: Call) -> Record:
    try:
        match call["do"]:
            case "infer":
                return _infer_record(await client.infer(_request(call, rest=False)))
            case asking:
                return {"answer": await getattr(client, f"is_{asking}")(*call.get("of", []))}
    except grpc.RpcError as error:
        return error_record(error.code(), error.details())
    except UNREADABLE as error:
        return error_record(None, repr(error))


async def _main() -> None:
    logging.getLogger("kserve.trace").disabled = True  # it prints each failure with its traceback
    url, calls = arguments()
    if url.startswith("http://"):
        async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest:
            for call in calls:
                emit(call, await _rest(rest, url, call))
    else:
        async with InferenceGRPCClient(url) as client:
            for call in calls:
                emit(call, await _grpc(client, call))


if __name__ == "__main__":
    asyncio.run(_main())

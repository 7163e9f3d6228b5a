"""The calls of a plan by `tritonclient.grpc`: one by one, in the background, and in streams."""

import queue
from typing import Any

from tritonclient import grpc  # type: ignore[import-not-found]
from tritonclient.utils import (  # type: ignore[import-not-found]
    InferenceServerException,
    triton_to_np_dtype,
)

from .records import Call, Record, arguments, array, emit, error_record, tensor_record

# Both clients for gRPC name them so. True: the answer is a message, asked for as JSON.
ASKING = {
    "server_live": ("is_server_live", False),
    "server_ready": ("is_server_ready", False),
    "model_ready": ("is_model_ready", False),
    "server_metadata": ("get_server_metadata", True),
    "model_metadata": ("get_model_metadata", True),
    "model_config": ("get_model_config", True),
    "statistics": ("get_inference_statistics", True),
    "index": ("get_model_repository_index", True),
    "system_shared_memory": ("get_system_shared_memory_status", True),
    "cuda_shared_memory": ("get_cuda_shared_memory_status", True),
    "trace_settings": ("get_trace_settings", True),
    "log_settings": ("get_log_settings", True),
}
# Longer than any call of a plan takes.
PATIENCE_S = 60


def request_arguments(call: Call) -> dict[str, Any]:
    """What describes a request, alone and in a stream."""
    return {
        "model_name": call["model"],
        "model_version": call.get("version", ""),
        "inputs": [_input(tensor) for tensor in call["inputs"]],
        "outputs": [_wanted(output) for output in call["outputs"]] if "outputs" in call else None,
        **call.get("options", {}),
    }


def infer_arguments(call: Call) -> dict[str, Any]:
    """What `infer` takes for a call."""
    compression = call.get("compression", {}).get("request")
    return {**request_arguments(call), "compression_algorithm": compression}


def asked(client: Any, call: Call) -> Any:
    """Begin a call that asks about the server or a model: its answer, or what to await for it."""
    name, is_message = ASKING[call["do"]]
    named = {"as_json": True} if is_message else {}
    return getattr(client, name)(*call.get("of", []), **named)


def infer_record(result: Any) -> Record:
    """The record of an answer: its message without data, and the outputs as clients see them."""
    response = result.get_response(as_json=True)
    raw = response.pop("raw_output_contents", [])
    outputs = result.get_response().outputs
    tensors = [
        tensor_record(each.name, each.datatype, result.as_numpy(each.name)) for each in outputs
    ]
    return {"response": response, "raw": len(raw), "tensors": tensors}


def failure_record(error: Any) -> Record:
    """The record of an error as the client tells it."""
    return error_record(error.status(), error.message())


def answer_record(result: Any, error: Any) -> Record:
    """The record of one of the answers that a client gives as a pair."""
    return failure_record(error) if error is not None else infer_record(result)


def _input(tensor: Call) -> Any:
    made = grpc.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
    made.set_data_from_numpy(array(tensor, triton_to_np_dtype))
    return made


def _wanted(output: Call) -> Any:
    return grpc.InferRequestedOutput(output["name"], output.get("classes", 0))


def _perform(client: Any, call: Call) -> Record:
    try:
        match call["do"]:
            case "infer":
                return infer_record(client.infer(**infer_arguments(call)))
            case "async_infer":
                return _in_background(client, call)
            case "stream":
                return {"answers": _stream(client, call)}
            case _:
                return {"answer": asked(client, call)}
    except InferenceServerException as error:
        return failure_record(error)


def _in_background(client: Any, call: Call) -> Record:
    answers: queue.Queue[Record] = queue.Queue()
    client.async_infer(
        callback=lambda result, error: answers.put(answer_record(result, error)),
        **infer_arguments(call),
    )
    return answers.get(timeout=PATIENCE_S)


def _stream(client: Any, call: Call) -> list[Record]:
    answers: list[Record] = []
    client.start_stream(
        callback=lambda result, error: answers.append(answer_record(result, error)),
        headers=call.get("headers"),
        compression_algorithm=call.get("compression", {}).get("request"),
        stream_timeout=PATIENCE_S,
    )
    for request in call["requests"]:
        client.async_stream_infer(**request_arguments(request))
    client.stop_stream()  # waits for all answers
    return answers


def main() -> None:
    """Make all calls."""
    url, calls = arguments()
    with grpc.InferenceServerClient(url) as client:
        for call in calls:
            emit(call, _perform(client, call))


if __name__ == "__main__":
    main()

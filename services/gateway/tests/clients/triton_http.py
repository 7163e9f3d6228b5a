"""The calls of a plan by `tritonclient.http`."""

from typing import Any

from tritonclient import http  # type: ignore[import-not-found]
from tritonclient.utils import (  # type: ignore[import-not-found]
    InferenceServerException,
    triton_to_np_dtype,
)

from .records import Call, Record, arguments, array, emit, error_record, tensor_record

# Both clients for HTTP name them so.
ASKING = {
    "server_live": "is_server_live",
    "server_ready": "is_server_ready",
    "model_ready": "is_model_ready",
    "server_metadata": "get_server_metadata",
    "model_metadata": "get_model_metadata",
    "model_config": "get_model_config",
    "statistics": "get_inference_statistics",
    "index": "get_model_repository_index",
    "system_shared_memory": "get_system_shared_memory_status",
    "cuda_shared_memory": "get_cuda_shared_memory_status",
    "trace_settings": "get_trace_settings",
    "log_settings": "get_log_settings",
}


def infer_arguments(call: Call) -> dict[str, Any]:
    """What `infer` takes for a call."""
    compression = call.get("compression", {})
    return {
        "model_name": call["model"],
        "model_version": call.get("version", ""),
        "inputs": [_input(tensor) for tensor in call["inputs"]],
        "outputs": [_wanted(output) for output in call["outputs"]] if "outputs" in call else None,
        "request_compression_algorithm": compression.get("request"),
        "response_compression_algorithm": compression.get("response"),
        **call.get("options", {}),
    }


def infer_record(result: Any) -> Record:
    """The record of an answer: its JSON without data, and the outputs as clients see them."""
    response = result.get_response()
    outputs = response.get("outputs", [])
    tensors = [
        tensor_record(each["name"], each["datatype"], result.as_numpy(each["name"]))
        for each in outputs
    ]
    heads = [{key: each[key] for key in each if key != "data"} for each in outputs]
    return {"response": {**response, "outputs": heads}, "tensors": tensors}


def failure_record(error: Any) -> Record:
    """The record of an error as the client tells it."""
    return error_record(error.status(), error.message())


def _input(tensor: Call) -> Any:
    made = http.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
    made.set_data_from_numpy(
        array(tensor, triton_to_np_dtype), binary_data=tensor.get("binary", True)
    )
    return made


def _wanted(output: Call) -> Any:
    return http.InferRequestedOutput(
        output["name"], output.get("binary", True), output.get("classes", 0)
    )


def _perform(client: Any, call: Call) -> Record:
    try:
        match call["do"]:
            case "infer":
                return infer_record(client.infer(**infer_arguments(call)))
            case "async_infer":
                return infer_record(client.async_infer(**infer_arguments(call)).get_result())
            case asking:
                return {"answer": getattr(client, ASKING[asking])(*call.get("of", []))}
    except InferenceServerException as error:
        return failure_record(error)


def main() -> None:
    """Make all calls."""
    url, calls = arguments()
    with http.InferenceServerClient(url) as client:
        for call in calls:
            emit(call, _perform(client, call))


if __name__ == "__main__":
    main()

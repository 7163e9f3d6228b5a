"""Echoes `input` after `delay_ms` milliseconds; gives up when the request is cancelled."""

import time

import triton_python_backend_utils as pb_utils

POLL_S = 0.01


class TritonPythonModel:
    def execute(self, requests):
        return [_respond(request) for request in requests]


def _respond(request):
    delay = pb_utils.get_input_tensor_by_name(request, "delay_ms")
    end = time.monotonic() + (0 if delay is None else int(delay.as_numpy()[0]) / 1000)
    while (left := end - time.monotonic()) > 0:
        if request.is_cancelled():
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(
                    "the request was cancelled", pb_utils.TritonError.CANCELLED
                )
            )
        time.sleep(min(left, POLL_S))
    values = pb_utils.get_input_tensor_by_name(request, "input").as_numpy()
    return pb_utils.InferenceResponse([pb_utils.Tensor("output", values)])

"""Sends the words of `text_input` one by one; gives up when the request is cancelled."""

import re
import time

import numpy as np
import triton_python_backend_utils as pb_utils

POLL_S = 0.01


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            _respond(request)


def _respond(request):
    sender = request.get_response_sender()
    tokens = _tokens(request)[: _option(request, "max_tokens")]
    delay_s = (_option(request, "delay_ms") or 0) / 1000
    fail_after = _option(request, "fail_after")
    for number, token in enumerate(tokens):
        if number == fail_after:
            raise ValueError("raised on purpose")
        if _is_cancelled_within(request, delay_s):
            break
        output = pb_utils.Tensor("text_output", np.array([token], object))
        sender.send(pb_utils.InferenceResponse([output]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _tokens(request):
    text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
    size = _option(request, "token_bytes")
    if size is None:
        return re.findall(rb"\s*\S+", text)
    return [text[start : start + size] for start in range(0, len(text), size)]


def _option(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else int(tensor.as_numpy()[0])


def _is_cancelled_within(request, seconds):
    end = time.monotonic() + seconds
    while not request.is_cancelled():
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, POLL_S))
    return True

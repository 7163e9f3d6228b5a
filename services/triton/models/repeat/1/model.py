"""Sends `count` responses to a request, `delay_ms` milliseconds apart; stops when cancelled."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            _respond(request)


def _respond(request):
    sender = request.get_response_sender()
    delay = pb_utils.get_input_tensor_by_name(request, "delay_ms")
    delay_s = 0 if delay is None else int(delay.as_numpy()[0]) / 1000
    for number in range(int(pb_utils.get_input_tensor_by_name(request, "count").as_numpy()[0])):
        time.sleep(delay_s)
        if request.is_cancelled():
            break
        output = pb_utils.Tensor("output", np.array([number], np.int32))
        sender.send(pb_utils.InferenceResponse([output]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

"""Echoes `input`; with `die` true the process ends at once, as if it had crashed."""

import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [_respond(request) for request in requests]


def _respond(request):
    die = pb_utils.get_input_tensor_by_name(request, "die")
    if die is not None and die.as_numpy()[0]:
        os._exit(1)
    values = pb_utils.get_input_tensor_by_name(request, "input").as_numpy()
    return pb_utils.InferenceResponse([pb_utils.Tensor("output", values)])

"""Echoes `input` after `delay_ms` milliseconds times the factor in a file, many at a time."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import triton_python_backend_utils as pb_utils

AT_A_TIME = 16
DELAY_MS = 20
FACTOR = Path("paced.factor")
POLL_S = 0.05


class TritonPythonModel:
    def initialize(self, _args):
        self._threads = ThreadPoolExecutor(AT_A_TIME)

    def execute(self, requests):
        # Returning before they are answered is what lets the next ones in.
        for request in requests:
            self._threads.submit(_answer, request)


def _answer(request):
    try:
        response = _respond(request)
    except Exception as error:  # noqa: BLE001 - a request that is never answered hangs its test
        response = _refusal(repr(error), pb_utils.TritonError.INTERNAL)
    request.get_response_sender().send(
        response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    )


def _respond(request):
    begin = time.monotonic()
    given = pb_utils.get_input_tensor_by_name(request, "delay_ms")
    delay_s = (DELAY_MS if given is None else int(given.as_numpy()[0])) / 1000
    while (left := begin + delay_s * _factor() - time.monotonic()) > 0:
        if request.is_cancelled():
            return _refusal("the request was cancelled", pb_utils.TritonError.CANCELLED)
        time.sleep(min(left, POLL_S))
    values = pb_utils.get_input_tensor_by_name(request, "input").as_numpy()
    return pb_utils.InferenceResponse([pb_utils.Tensor("output", values)])


def _refusal(sentence, code):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(sentence, code))


def _factor():
    try:
        return float(FACTOR.read_text())
    except FileNotFoundError:
        return 1.0

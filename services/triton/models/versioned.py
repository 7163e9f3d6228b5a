"""Echoes `input` as `output` and says which `version` it is, unless it is to fail.

`version.json` in the version's folder has the number that it tells, for which seconds it loads
(`load_s`), and its `fault`. A fault of its answers begins with request `from_request`, 1 being the
first one since it was loaded. `tidegate_engine.artefacts` puts this file into the repository as the
`<version>/model.py` of each version.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

AT_A_TIME = 32


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"], args["model_version"], "version.json")
        told = json.loads(path.read_text())
        self._version = told["version"]
        self._fault = told.get("fault")
        self._from_request = told.get("from_request", 1)
        self._requests = 0
        self._threads = ThreadPoolExecutor(AT_A_TIME)
        time.sleep(told.get("load_s", 0))
        if self._fault == "raises at load":
            raise ValueError("raised on purpose, at load")
        if self._fault == "dies at load":
            os.abort()
        if self._fault == "takes Triton with it":
            # A bus error, as where /dev/shm is full. It ends Triton also where that is the first
            # process of a container, which no signal of another process does.
            _, _, region, *_ = Path("/proc/self/cmdline").read_text().split("\0")
            os.truncate(Path("/dev/shm", region.lstrip("/")), 0)  # noqa: S108 - Triton's choice

    def execute(self, requests):
        # Returning before they are answered is what lets the next ones in.
        for request in requests:
            self._requests += 1
            fault = self._fault if self._requests >= self._from_request else None
            if fault == "dies":
                os._exit(1)
            self._threads.submit(self._answer, request, fault)

    def _answer(self, request, fault):
        try:
            response = self._respond(request, fault)
        except Exception as error:  # noqa: BLE001 - a request that is never answered hangs its test
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(error)))
        request.get_response_sender().send(
            response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        )

    def _respond(self, request, fault):
        delay = pb_utils.get_input_tensor_by_name(request, "delay_ms")
        time.sleep(0 if delay is None else int(delay.as_numpy()[0]) / 1000)
        name = "data" if fault == "wants another input" else "input"
        values = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
        if fault == "answers wrongly":
            values = values + 1
        if fault == "answers in another shape":
            values = values.reshape(1, -1)
        output = "result" if fault == "names its output otherwise" else "output"
        version = np.array([self._version], np.int32)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(output, values), pb_utils.Tensor("version", version)]
        )

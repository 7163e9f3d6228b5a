"""Serves `model.onnx` of a version's folder with ONNX Runtime, in Triton's Python backend.

For a graph with one float32 input and one float32 output whose first axis is the batch. The names
come from config.pbtxt. `tidegate_engine.artefacts` puts this file into the repository as the
`<version>/model.py` of each model that it serves.
"""

import json
import os
from pathlib import Path
from typing import Any

# ONNX Runtime reports its use to its maker unless told not to before it is imported, and leaves an
# identifier of the machine in the user's cache. What runs where is our users' own business.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance of one version."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._input = config["input"][0]["name"]
        self._output = config["output"][0]["name"]
        options = onnxruntime.SessionOptions()
        # An instance is a process: instance_group says how many cores a model gets.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        # Int8 weights are dequantised once, at load, and not for each request (50 ms → 17 ms).
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        path = Path(args["model_repository"], args["model_version"], "model.onnx")
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Runs the requests that Triton batched as one batch, and gives each its rows back."""
        inputs = [
            pb_utils.get_input_tensor_by_name(request, self._input).as_numpy()
            for request in requests
        ]
        batch = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        (outputs,) = self._session.run([self._output], {self._input: batch})
        ends = np.cumsum([len(rows) for rows in inputs])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(self._output, rows)])
            for rows in np.split(outputs, ends)
        ]

"""Returns INPUT_<datatype> as OUTPUT_<datatype>, for those inputs that a request has."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([_echo(tensor) for tensor in request.inputs()])
            for request in requests
        ]


def _echo(tensor):
    name = tensor.name().replace("INPUT_", "OUTPUT_")
    if name == "OUTPUT_BF16":  # numpy has no such datatype
        return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())
    return pb_utils.Tensor(name, tensor.as_numpy())

"""KServe v2's protobuf messages and the domain's own, in both directions.

The gateway is a server of this protocol to its clients and a client of it to Triton; what the
messages mean is said here once for both. Tensors go as raw bytes wherever the sender is ours.
"""

from collections.abc import Mapping, Sequence

from google.protobuf.internal.containers import MessageMap

from tidegate_gateway.errors import EngineFailed, InvalidInput
from tidegate_gateway.inference import Parameter, Request, Response, check_tensor_parameters
from tidegate_gateway.models import Model, TensorSpec
from tidegate_gateway.tensors import Datatype, Tensor, pack
from tidegate_proto import kserve_v2_pb2 as pb

# The field of InferTensorContents that each datatype is sent in; FP16 and BF16 have none.
_CONTENTS = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
    Datatype.BYTES: "bytes_contents",
}


def read_request(message: pb.ModelInferRequest) -> Request:
    """The request in `message`.

    Raises:
        InvalidInput: its datatypes, contents or the number of its raw contents do not fit together,
            or something is asked of a single tensor.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidInput(
            f"expected raw_input_contents for all {len(message.inputs)} inputs or for none, "
            f"got {len(raw)}"
        )
    return Request(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        inputs=[
            _input(tensor, raw[index] if raw else None)
            for index, tensor in enumerate(message.inputs)
        ],
        outputs=[_wanted(output) for output in message.outputs],
        parameters=_parameters(message.parameters),
    )


def write_request(request: Request) -> pb.ModelInferRequest:
    """The message that carries `request`."""
    message = pb.ModelInferRequest(
        model_name=request.model,
        model_version=request.version,
        id=request.id,
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape
            )
            for tensor in request.inputs
        ],
        outputs=[
            pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in request.outputs
        ],
        raw_input_contents=[bytes(tensor.data) for tensor in request.inputs],
    )
    _set_parameters(message.parameters, request.parameters)
    return message


def read_response(message: pb.ModelInferResponse) -> Response:
    """The response in `message`.

    Raises:
        EngineFailed: its tensors do not come as raw bytes, or have unknown datatypes.
    """
    if len(message.raw_output_contents) != len(message.outputs):
        raise EngineFailed(
            f"the engine's answer has {len(message.outputs)} outputs but "
            f"{len(message.raw_output_contents)} raw contents"
        )
    try:
        outputs = [
            Tensor(
                tensor.name,
                Datatype.of(tensor.datatype, tensor=f"output {tensor.name!r}"),
                tuple(tensor.shape),
                raw,
            )
            for tensor, raw in zip(message.outputs, message.raw_output_contents, strict=True)
        ]
    except InvalidInput as fault:
        raise EngineFailed(f"the engine's answer cannot be read: {fault.message}") from None
    return Response(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        outputs=outputs,
        parameters=_parameters(message.parameters),
    )


def write_response(response: Response) -> pb.ModelInferResponse:
    """The message that carries `response`."""
    message = pb.ModelInferResponse(
        model_name=response.model,
        model_version=response.version,
        id=response.id,
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape
            )
            for tensor in response.outputs
        ],
        raw_output_contents=[bytes(tensor.data) for tensor in response.outputs],
    )
    _set_parameters(message.parameters, response.parameters)
    return message


def write_metadata(model: Model) -> pb.ModelMetadataResponse:
    """The message that describes `model`."""
    return pb.ModelMetadataResponse(
        name=model.name,
        versions=model.versions,
        platform=model.platform,
        inputs=_metadata(model.inputs),
        outputs=_metadata(model.outputs),
    )


def _metadata(specs: Sequence[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [
        pb.ModelMetadataResponse.TensorMetadata(
            name=spec.name, datatype=spec.datatype.name, shape=spec.shape
        )
        for spec in specs
    ]


def _wanted(output: pb.ModelInferRequest.InferRequestedOutputTensor) -> str:
    check_tensor_parameters(f"output {output.name!r}", _parameters(output.parameters))
    return output.name


def _input(tensor: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Tensor:
    check_tensor_parameters(f"input {tensor.name!r}", _parameters(tensor.parameters))
    datatype = Datatype.of(tensor.datatype, tensor=f"input {tensor.name!r}")
    shape = tuple(tensor.shape)
    sent = [field.name for field, _ in tensor.contents.ListFields()]
    if raw is not None:
        if sent:
            raise InvalidInput(
                f"input {tensor.name!r}: expected no contents beside raw_input_contents, "
                f"got {', '.join(sent)}"
            )
        return Tensor(tensor.name, datatype, shape, raw)
    wanted = _CONTENTS.get(datatype)
    if wanted is None:
        raise InvalidInput(
            f"input {tensor.name!r}: expected {datatype.name} in raw_input_contents, got none"
        )
    if sent not in ([wanted], []):
        raise InvalidInput(
            f"input {tensor.name!r}: expected {wanted} for {datatype.name}, got {', '.join(sent)}"
        )
    return Tensor(
        tensor.name, datatype, shape, pack(tensor.name, datatype, getattr(tensor.contents, wanted))
    )


def _parameters(sent: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for key, value in sent.items():
        chosen = value.WhichOneof("parameter_choice")
        if chosen is not None:
            parameters[key] = getattr(value, chosen)
    return parameters


def _set_parameters(
    target: MessageMap[str, pb.InferParameter], parameters: Mapping[str, Parameter]
) -> None:
    for key, value in parameters.items():
        match value:
            case bool():
                target[key].bool_param = value
            case int() if value > 2**63 - 1:
                target[key].uint64_param = value
            case int():
                target[key].int64_param = value
            case float():
                target[key].double_param = value
            case str():
                target[key].string_param = value

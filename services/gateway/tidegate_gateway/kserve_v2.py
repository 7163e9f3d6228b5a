"""KServe v2's protobuf messages and the domain's own, in both directions.

The gateway is a server of this protocol to its clients and a client of it to Triton; what the
messages mean is said here once for both. Tensors go as raw bytes wherever the sender is ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.internal.containers import MessageMap
from google.protobuf.message import Message

from tidegate_gateway.errors import EngineFailed, InvalidInput
from tidegate_gateway.faults import each_read
from tidegate_gateway.models import Model, TensorSpec
from tidegate_gateway.requests import (
    Parameter,
    Request,
    Response,
    Wanted,
    classes_wanted,
    refuse_shared_memory,
)
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
        InvalidInput: its datatypes, contents or the number of its raw contents do not fit together.
        NotOffered: a tensor is to come from, or go to, shared memory.
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
        inputs=each_read(
            message.inputs, lambda index, tensor: _input(tensor, raw[index] if raw else None)
        ),
        outputs=each_read(message.outputs, lambda _, output: _wanted(output)),
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
        outputs=[_asked(wanted) for wanted in request.outputs],
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


def as_document(message: Message) -> dict[str, Any]:
    """`message` as JSON has it in Triton's HTTP: numbers of 64 bits as numbers, which protobuf's
    own form writes as strings, and members that have their default value."""
    document: dict[str, Any] = {}
    for entry in message.DESCRIPTOR.fields:
        if entry.has_presence and not message.HasField(entry.name):
            continue
        value = getattr(message, entry.name)
        if entry.message_type is not None and entry.message_type.GetOptions().map_entry:
            kind = entry.message_type.fields_by_name["value"]
            document[entry.name] = {str(k): _plain(kind, value[k]) for k in value}
        elif entry.is_repeated:
            document[entry.name] = [_plain(entry, each) for each in value]
        else:
            document[entry.name] = _plain(entry, value)
    return document


def _plain(entry: Any, value: Any) -> Any:
    if entry.message_type is not None:
        return as_document(value)
    if entry.enum_type is not None:
        known = entry.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value


def merged_statistics(parts: Iterable[bytes]) -> pb.ModelStatisticsResponse:
    """The statistics of all engines together, from what each has said (serialized).

    Counts and times are added up, the newest time of an inference is taken, and each engine's use
    of memory is listed.
    """
    merged: dict[tuple[str, str], pb.ModelStatistics] = {}
    for part in parts:
        for told in pb.ModelStatisticsResponse.FromString(part).model_stats:
            known = merged.get((told.name, told.version))
            if known is None:
                merged[told.name, told.version] = told
            else:
                _add_statistics(known, told)
    return pb.ModelStatisticsResponse(model_stats=[merged[key] for key in sorted(merged)])


# What is no sum.
_NOT_ADDED = ("last_inference", "batch_size", "batch_stats")


def _add_statistics(known: pb.ModelStatistics, told: pb.ModelStatistics) -> None:
    _add(known, told)
    known.last_inference = max(known.last_inference, told.last_inference)
    sizes = {batch.batch_size: batch for batch in known.batch_stats}
    for batch in told.batch_stats:
        size = batch.batch_size
        _add(sizes.get(size) or known.batch_stats.add(batch_size=size), batch)


def _add(total: Message, part: Message) -> None:
    """Add each number in `part` to that in `total`; lists are joined, maps added up by their
    keys."""
    for entry, value in part.ListFields():
        if entry.name in _NOT_ADDED:
            continue
        if entry.message_type is not None and entry.message_type.GetOptions().map_entry:
            for key in value:
                _add(getattr(total, entry.name)[key], value[key])
        elif entry.is_repeated:
            getattr(total, entry.name).extend(value)
        elif entry.message_type is not None:
            _add(getattr(total, entry.name), value)
        elif entry.cpp_type != FieldDescriptor.CPPTYPE_STRING:
            setattr(total, entry.name, getattr(total, entry.name) + value)


def _metadata(specs: Sequence[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [
        pb.ModelMetadataResponse.TensorMetadata(
            name=spec.name, datatype=spec.datatype.name, shape=spec.shape
        )
        for spec in specs
    ]


def _wanted(output: pb.ModelInferRequest.InferRequestedOutputTensor) -> Wanted:
    return Wanted(output.name, classes_wanted(output.name, _parameters(output.parameters)))


def _asked(wanted: Wanted) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name=wanted.name)
    if wanted.classes:
        output.parameters["classification"].int64_param = wanted.classes
    return output


def _input(tensor: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Tensor:
    refuse_shared_memory(f"input {tensor.name!r}", tensor.parameters)
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

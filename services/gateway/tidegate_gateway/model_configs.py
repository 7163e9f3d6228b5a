"""From Triton's ModelConfig to the gateway's Model.

Both kinds of engine describe models in this one form: Triton sends it, and for engines of
`inference.InferenceService`, which cannot, it lies in a folder.
"""

from collections.abc import Sequence

from tidegate_gateway.errors import EngineFailed
from tidegate_gateway.models import ANY, Model, TensorSpec
from tidegate_gateway.tensors import Datatype
from tidegate_proto import model_config_pb2 as pb

_DATATYPES = {
    number: Datatype["BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")]
    for name, number in pb.DataType.items()
    if name != "TYPE_INVALID"
}
_CHANNELS_FIRST = {pb.ModelInput.FORMAT_NCHW: True, pb.ModelInput.FORMAT_NHWC: False}


def to_model(config: pb.ModelConfig, *, version: str, versions: Sequence[str]) -> Model:
    """The model that `config` describes.

    Raises:
        EngineFailed: a tensor of it has no datatype.
    """
    batch = (ANY,) if config.max_batch_size > 0 else ()
    return Model(
        name=config.name,
        version=version,
        versions=tuple(versions),
        platform=config.platform or config.backend,
        max_batch_size=max(0, config.max_batch_size),
        inputs=tuple(
            TensorSpec(
                name=spec.name,
                datatype=_datatype(config, spec),
                shape=(*batch, *spec.dims),
                channels_first=_CHANNELS_FIRST.get(spec.format),
                optional=spec.optional,
            )
            for spec in config.input
        ),
        outputs=tuple(
            TensorSpec(
                name=spec.name,
                datatype=_datatype(config, spec),
                shape=(*batch, *spec.dims),
                labelled=bool(spec.label_filename),
            )
            for spec in config.output
        ),
        decoupled=config.model_transaction_policy.decoupled,
        parameters={key: value.string_value for key, value in config.parameters.items()},
        config=config.SerializeToString(),
    )


def _datatype(config: pb.ModelConfig, spec: pb.ModelInput | pb.ModelOutput) -> Datatype:
    datatype = _DATATYPES.get(spec.data_type)
    if datatype is None:
        raise EngineFailed(f"model {config.name!r} gives no datatype for {spec.name!r}")
    return datatype

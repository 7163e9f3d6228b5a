"""KServe v2's binary tensor extension: raw bytes of tensors behind the JSON of one body.

The header Inference-Header-Content-Length says where the JSON ends. What follows are the bytes of
those tensors that have the parameter `binary_data_size`, in their order, with nothing between and
nothing behind. They are handed on as views of the body: nothing is copied here.
"""

import re
from collections.abc import Sequence

from tidegate_gateway.errors import InvalidInput
from tidegate_gateway.models import ANY, Model
from tidegate_gateway.requests import Request, Response
from tidegate_gateway.tensors import Tensor, json_kind

LENGTH_HEADER = "Inference-Header-Content-Length"
"""How many bytes of a body are JSON. 0: none, the whole body is the model's only input."""

SIZE = "binary_data_size"
"""Parameter of a tensor: how many bytes of it follow behind the JSON."""

MEDIA_TYPE = "application/octet-stream"

_LENGTH = re.compile(r"[0-9]{1,10}")


class Tail:
    """The bytes behind the JSON, taken from the front."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, where: str, size: object) -> memoryview:
        """The next `size` bytes.

        Raises:
            InvalidInput: there are less, or `size` is no size.
        """
        if type(size) is not int or size < 0:
            raise InvalidInput(
                f"{where}: expected parameter {SIZE!r} as a whole number of 0 or more, got "
                f"{json_kind(size)}"
            )
        taken = self._data[self._at : self._at + size]
        self._at += size
        if len(taken) < size:
            raise InvalidInput(
                f"{where}: expected {size} bytes behind the JSON ({SIZE}), got {len(taken)}"
            )
        return taken

    def check_empty(self) -> None:
        """Raise InvalidInput where something is left."""
        if self._at < len(self._data):
            raise InvalidInput(
                f"the body: expected {self._at} bytes behind the JSON, the sum of all {SIZE}, got "
                f"{len(self._data)}"
            )


def json_length(header: str, body: bytes) -> int:
    """How many bytes of `body` are JSON, as the header Inference-Header-Content-Length says.

    Raises:
        InvalidInput: it is no number, or more than there are.
    """
    if not _LENGTH.fullmatch(header) or int(header) > len(body):
        raise InvalidInput(
            f"{LENGTH_HEADER}: expected a whole number of 0 to {len(body)}, the size of the body, "
            f"got {header!r}"
        )
    return int(header)


def raw_request(body: bytes, model: Model) -> Request:
    """The request that a body without JSON stands for: all of it is the model's only input.

    A batch is one of 1, and one dimension of any size is as large as the bytes make it.

    Raises:
        InvalidInput: the model has several inputs, or more than one such dimension.
    """
    if len(model.inputs) != 1:
        raise InvalidInput(
            f"model {model.name!r}: expected JSON ({LENGTH_HEADER} above 0), since a body of raw "
            f"bytes alone needs a model with one input, and it has {len(model.inputs)}"
        )
    (spec,) = model.inputs
    shape = [1, *spec.shape[1:]] if model.max_batch_size else list(spec.shape)
    unknown = [index for index, size in enumerate(shape) if size == ANY]
    if len(unknown) > 1:
        raise InvalidInput(
            f"model {model.name!r}: expected JSON with the shape of input {spec.name!r} "
            f"({list(spec.shape)}), which raw bytes alone do not tell"
        )
    data: bytes | memoryview = memoryview(body)
    size = spec.datatype.itemsize
    if size is None:
        # Bytes without lengths are one element.
        data = len(body).to_bytes(4, "little") + body
    for index in unknown:
        known = _product(shape[:index] + shape[index + 1 :]) * (size or len(data))
        shape[index] = len(data) // known if known else 0
    return Request(
        model=model.name,
        inputs=[Tensor(spec.name, spec.datatype, tuple(shape), data)],
    )


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def join(document: bytes, response: Response, binary: Sequence[str]) -> bytes:
    """The body of an answer: its JSON, and behind it the tensors that are named in `binary`."""
    return b"".join([document, *(t.data for t in response.outputs if t.name in binary)])

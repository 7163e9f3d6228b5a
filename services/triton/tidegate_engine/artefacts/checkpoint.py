"""Reads the tensors of a PyTorch checkpoint, without PyTorch and without running its pickle.

The file is in PyTorch's legacy format (torch.save before 1.6), which is, one after the other:

    pickle      the magic number
    pickle      the protocol version, 1001
    pickle      facts about the machine that wrote it, such as its byte order
    pickle      the state dictionary: names → tensors, each a view of a storage known by its key
    pickle      the keys of the storages, in the order in which they follow
    storages    each an int64 element count and then its elements

A pickle is a program. Ours may name three things of PyTorch and one of `collections`, and what it
gets for them are the harmless stand-ins of `_ALLOWED`; anything else ends the reading.
"""

import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tidegate_engine.artefacts.errors import CheckpointError

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001

# What unpickling raises on bytes that are no valid pickle, as the pickle module's documentation
# warns: "other exceptions may also be raised", these among them.
_MALFORMED = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class _Storage:
    """A run of elements of one type, which the pickle names and the end of the file holds."""

    key: str
    dtype: np.dtype[Any]
    count: int


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor: a strided view of a storage. Offset and strides count elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild_tensor(  # noqa: PLR0913, PLR0917 -- the arguments are those that PyTorch writes
    storage: _Storage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,  # noqa: ARG001
    backward_hooks: object,  # noqa: ARG001
) -> _View:
    return _View(storage, offset, shape, strides)


_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch", "FloatStorage"): np.dtype("<f4"),
    ("torch", "LongStorage"): np.dtype("<i8"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise CheckpointError(
                f"The checkpoint names {module}.{name}, which a file of weights has no use for: "
                "it was not read."
            ) from None

    def persistent_load(self, reference: Any) -> _Storage:
        match reference:
            case ("storage", np.dtype() as dtype, str(key), str(), int(count), None):
                return _Storage(key, dtype, count)
        raise CheckpointError(f"The checkpoint has a storage of an unknown form: {reference!r}.")


def read_checkpoint(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a legacy PyTorch checkpoint by name, as contiguous little-endian arrays.

    Raises:
        CheckpointError: The file is not in that format, is cut short, or its pickle names
            anything but tensors.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        views = _read_state(file)
        keys = _unpickle(file)
        storages = {view.storage.key: view.storage for view in views.values()}
        if not isinstance(keys, list) or set(keys) != storages.keys():
            raise CheckpointError("The checkpoint's storages are not those that its tensors need.")
        buffers = {key: _read_storage(file, storages[key]) for key in keys}
    return {name: _materialise(name, view, buffers) for name, view in views.items()}


def _read_state(file: BinaryIO) -> dict[str, _View]:
    if _unpickle(file) != _MAGIC or _unpickle(file) != _PROTOCOL:
        raise CheckpointError(
            f"Expected a PyTorch checkpoint in the legacy format, protocol {_PROTOCOL}; "
            "the file begins otherwise."
        )
    match _unpickle(file):
        case {"little_endian": True}:
            pass
        case _:
            raise CheckpointError("Expected a checkpoint of a little-endian machine.")
    state = _unpickle(file)
    if not isinstance(state, dict):
        raise CheckpointError(
            f"Expected a checkpoint that holds a dictionary of tensors, not a {type(state)}."
        )
    for name, view in state.items():
        if not isinstance(name, str) or not isinstance(view, _View):
            raise CheckpointError(f"The checkpoint's entry {name!r} is not a tensor.")
    return dict(state)


def _unpickle(file: BinaryIO) -> Any:
    try:
        return _Unpickler(file).load()
    except _MALFORMED as error:
        raise CheckpointError(f"The checkpoint is damaged: {error}.") from error


def _read_storage(file: BinaryIO, storage: _Storage) -> bytes:
    header = file.read(8)
    size = storage.count * storage.dtype.itemsize
    if len(header) == 8 and struct.unpack("<q", header)[0] == storage.count:
        content = file.read(size)
        if len(content) == size:
            return content
    raise CheckpointError(
        f"The checkpoint's storage {storage.key} does not hold the {storage.count} elements "
        "that its tensors need."
    )


def _materialise(name: str, view: _View, buffers: Mapping[str, bytes]) -> npt.NDArray[Any]:
    dtype = view.storage.dtype
    try:
        # numpy itself refuses a view that would reach outside the buffer.
        array = np.ndarray(
            view.shape,
            dtype,
            buffers[view.storage.key],
            offset=view.offset * dtype.itemsize,
            strides=[stride * dtype.itemsize for stride in view.strides],
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint's tensor {name} does not lie within its storage: {error}."
        ) from error
    return np.ascontiguousarray(array)

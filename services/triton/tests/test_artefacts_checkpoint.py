"""Reading a checkpoint: right tensors from a right file, and nothing run from a wrong one."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from tidegate_engine.artefacts import CheckpointError
from tidegate_engine.artefacts.checkpoint import read_checkpoint

VALUES = np.arange(6, dtype="<f4")
HEADER = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]


def text(value: str) -> bytes:
    """The opcodes that push a string."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(number(value) for value in values) + b"t"


def tensor(
    *,
    rebuild: str = "torch._utils _rebuild_tensor_v2",
    storage: str = "torch FloatStorage",
    offset: int = 0,
    shape: tuple[int, ...] = (2, 3),
    strides: tuple[int, ...] = (3, 1),
) -> bytes:
    """The opcodes that push a tensor as PyTorch pickles it, by default VALUES as [2, 3]."""
    reference = b"(" + text("storage") + named(storage) + text("key") + text("cpu") + number(6)
    arguments = reference + b"NtQ" + number(offset) + numbers(*shape) + numbers(*strides)
    return named(rebuild) + b"(" + arguments + b"\x89NtR"


def named(name: str) -> bytes:
    module, _, attribute = name.partition(" ")
    return f"c{module}\n{attribute}\n".encode()


def checkpoint(state: bytes, *, storage: bytes = VALUES.tobytes()) -> bytes:
    """A file in the legacy format whose state dictionary has the entry `weight`."""
    parts = [pickle.dumps(part, protocol=2) for part in HEADER]
    parts.append(b"\x80\x02}" + text("weight") + state + b"s.")
    parts.append(pickle.dumps(["key"], protocol=2))
    return b"".join(parts) + struct.pack("<q", 6) + storage


def test_a_strided_view_of_a_storage_becomes_a_contiguous_array(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(checkpoint(tensor(shape=(3, 2), strides=(1, 3))))
    tensors = read_checkpoint(path)
    assert list(tensors) == ["weight"]
    assert tensors["weight"].dtype == np.float32
    assert tensors["weight"].flags.c_contiguous
    np.testing.assert_array_equal(tensors["weight"], VALUES.reshape(2, 3).T)


@pytest.mark.parametrize(
    "name",
    ["os system", "posix system", "builtins eval", "builtins getattr", "torch load", "numpy load"],
)
def test_a_pickle_that_names_a_function_is_refused_and_not_run(tmp_path: Path, name: str) -> None:
    loot = tmp_path / "loot"
    call = named(name) + b"(" + text(f"touch '{loot}'") + b"tR"
    path = tmp_path / "weights.pth"
    for content in (checkpoint(call), b"\x80\x02" + call + b"."):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"names {name.replace(' ', '.')}, which"):
            read_checkpoint(path)
    assert not loot.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PK\x03\x04 a newer checkpoint", "is damaged"),
        (pickle.dumps(7), "legacy format, protocol 1001; the file begins otherwise"),
        (checkpoint(text("a string")), "entry 'weight' is not a tensor"),
        (checkpoint(tensor(storage="torch HalfStorage")), "names torch.HalfStorage"),
        (checkpoint(tensor(storage="torch._utils _rebuild_tensor_v2")), "an unknown form"),
        (checkpoint(tensor(offset=1)), "weight does not lie within its storage"),
        (checkpoint(tensor(shape=(3, 3))), "weight does not lie within its storage"),
        (checkpoint(tensor(strides=(-1, 1))), "weight does not lie within its storage"),
    ],
)
def test_another_file_is_told_from_a_checkpoint_in_a_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=sentence):
        read_checkpoint(path)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    whole = checkpoint(tensor())
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_checkpoint(path)

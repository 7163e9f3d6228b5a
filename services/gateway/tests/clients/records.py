"""What clients' programs read and write: calls in, one canonical record for each out.

A program is run as `python -m clients.PROGRAM URL PLAN`, from the folder above, by the Python of
its client's own environment. PLAN is a file with a list of calls in JSON, as `plan.py` describes
them. The program makes them in order and prints a line for each: {"call": its name, "record": what
came}. Standard library and numpy only, since it runs in several environments.
"""

import base64
import hashlib
import json
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Call = dict[str, Any]
Record = dict[str, Any]


def arguments() -> tuple[str, list[Call]]:
    """The URL and the calls that the command line names."""
    url, plan = sys.argv[1:]
    return url, json.loads(Path(plan).read_text())


def emit(call: Call, record: Record) -> None:
    """Tell what came of a call."""
    print(json.dumps({"call": call["name"], "record": record}), flush=True)


def array(tensor: Mapping[str, Any], dtype_of: Callable[[str], npt.DTypeLike]) -> npt.NDArray[Any]:
    """A tensor of the plan as clients take it.

    Args:
        tensor: its datatype, shape and raw bytes (base64).
        dtype_of: the client's own numpy type for a datatype.
    """
    raw = base64.b64decode(tensor["data"])
    if tensor["datatype"] != "BYTES":
        return np.frombuffer(raw, dtype_of(tensor["datatype"])).reshape(tensor["shape"])
    elements = np.empty(int(np.prod(tensor["shape"])), np.object_)
    offset = 0
    for index in range(len(elements)):
        (size,) = struct.unpack_from("<I", raw, offset)
        elements[index] = raw[offset + 4 : offset + 4 + size]
        offset += 4 + size
    return elements.reshape(tensor["shape"])


def raw_bytes(values: npt.NDArray[Any], datatype: str) -> bytes:
    """What a client has made of a tensor, as the protocol's raw bytes."""
    if datatype != "BYTES":
        return values.tobytes()
    # Clients give text where the tensor came as JSON.
    elements = [each.encode() if isinstance(each, str) else bytes(each) for each in values.flat]
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


def tensor_record(name: str, datatype: str, values: npt.NDArray[Any]) -> Record:
    """The record of an output: its shape and the digest of its bytes, with the first of them."""
    raw = raw_bytes(values, datatype)
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(values.shape),
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "begins": raw[:64].hex(),
    }


def error_record(status: object, text: object) -> Record:
    """The record of a failure."""
    return {"error": {"status": None if status is None else str(status), "text": str(text)}}

"""What real clients are asked to do: the same calls against Triton and against the gateway.

A call says what to do and with what (see `records.py` for who reads it):

    do        infer, async_infer, stream, or one of the questions (server_live, model_metadata, …)
    of        a question's arguments: model, version
    model, version, inputs, outputs, options     of infer; options are the client's own keywords
    compression   {"request": …, "response": …}, gzip or deflate
    requests  of a stream: what infer takes, for each

An input is {name, datatype, shape, data (raw bytes, base64), binary}; an output {name, binary,
classes}. `binary` is for HTTP alone: whether it goes as binary data or in the JSON.
"""

import base64
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Call = dict[str, Any]
Photos = npt.NDArray[np.float32]
Area = Callable[[Photos], list[Call]]

_NAN, _INFINITY = float("nan"), float("inf")
_TEXTS = (b"", b"wave", 'größer\n"'.encode(), b"a\0b")
_JUNK = (b"", b"\xff\xfe\0\x80", bytes(range(256)), b"")


def _framed(elements: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


def _packed(dtype: npt.DTypeLike, *values: object) -> bytes:
    return np.array(values, dtype).tobytes()


# The ends of each range, and what is no number; four of each.
VALUES: dict[str, bytes] = {
    "BOOL": bytes([0, 1, 1, 0]),
    "UINT8": _packed(np.uint8, 0, 1, 254, 255),
    "UINT16": _packed(np.uint16, 0, 1, 2**15, 2**16 - 1),
    "UINT32": _packed(np.uint32, 0, 1, 2**31, 2**32 - 1),
    "UINT64": _packed(np.uint64, 0, 1, 2**63, 2**64 - 1),
    "INT8": _packed(np.int8, -128, -1, 0, 127),
    "INT16": _packed(np.int16, -(2**15), -1, 0, 2**15 - 1),
    "INT32": _packed(np.int32, -(2**31), -1, 0, 2**31 - 1),
    "INT64": _packed(np.int64, -(2**63), -1, 0, 2**63 - 1),
    "FP16": _packed(np.float16, 1.5, -0.0, _NAN, -_INFINITY),
    "BF16": _packed(np.uint16, 0x3FC0, 0x8000, 0x7FC1, 0xFF80),
    "FP32": _packed(np.float32, 0.1, -0.0, _NAN, -_INFINITY),
    "FP64": _packed(np.float64, 0.1, -0.0, _NAN, 1e300),
    "BYTES": _framed(_TEXTS),
}
# KServe's client knows no BF16, and no number in JSON that is none.
OF_KSERVE = tuple(each for each in VALUES if each != "BF16")
FINITE = VALUES | {
    "FP32": _packed(np.float32, 0.1, -0.0, 1e-45, -3e38),
    "FP64": _packed(np.float64, 0.1, -0.0, 5e-324, 1e300),
}
# What Triton reads and writes as JSON.
IN_JSON = tuple(each for each in VALUES if each not in ("FP16", "BF16"))
# Of what is not offered, the questions: they leave Triton as it is.
NOT_OFFERED = ("system_shared_memory", "cuda_shared_memory", "trace_settings", "log_settings")
CODINGS = ("gzip", "deflate")
# KServe's client makes one of its own where there is none.
_ID = {"request_id": "7"}


def _tensor(name: str, datatype: str, shape: Sequence[int], raw: bytes, **more: object) -> Call:
    data = base64.b64encode(raw).decode()
    return {"name": name, "datatype": datatype, "shape": [*shape], "data": data, **more}


def _input(datatype: str, raw: bytes | None = None, **more: object) -> Call:
    raw = VALUES[datatype] if raw is None else raw
    return _tensor(f"INPUT_{datatype}", datatype, [4 if raw else 0], raw, **more)


def _fp32(values: npt.ArrayLike, name: str = "input") -> Call:
    array = np.asarray(values, np.float32)
    return _tensor(name, "FP32", array.shape, array.tobytes())


def _int32(name: str, value: int) -> Call:
    return _tensor(name, "INT32", [1], _packed(np.int32, value))


def _infer(name: str, model: str, inputs: Sequence[Call], **more: object) -> Call:
    return {"name": name, "do": "infer", "model": model, "inputs": [*inputs], **more}


def _slow(name: str, value: float, delay_ms: int = 0, **more: object) -> Call:
    return _infer(name, "slow", [_fp32([value]), _int32("delay_ms", delay_ms)], **more)


def _repeat(name: str, count: int, **more: object) -> Call:
    return _infer(name, "repeat", [_int32("count", count)], **more)


def _raising(name: str, **more: object) -> Call:
    return _infer(name, "raising", [_fp32([1])], **more)


def _stream(name: str, *requests: Call, **more: object) -> Call:
    return {"name": name, "do": "stream", "requests": [*requests], **more}


def datatypes() -> list[Call]:
    """Each datatype, with elements and without, alone and together; and BYTES that are no text."""
    junk = _tensor("INPUT_BYTES", "BYTES", [len(_JUNK)], _framed(_JUNK))
    return [
        *(_infer(each, "identity", [_input(each)]) for each in VALUES),
        *(_infer(f"no {each}", "identity", [_input(each, b"")]) for each in VALUES),
        _infer("all", "identity", [_input(each) for each in VALUES]),
        _infer("junk", "identity", [junk]),
        {**_infer("in the background", "identity", [_input("FP32")]), "do": "async_infer"},
    ]


def in_json(values: Mapping[str, bytes] = VALUES) -> list[Call]:
    """JSON and binary data, both ways and mixed in one request; for HTTP."""
    calls = []
    for sent, wanted in ((False, False), (False, True), (True, False)):
        for each in IN_JSON:
            output = {"name": f"OUTPUT_{each}", "binary": wanted}
            inputs = [_input(each, values[each], binary=sent)]
            name = f"{each}: binary {sent}, then {wanted}"
            calls.append(_infer(name, "identity", inputs, outputs=[output], options=_ID))
    mixed = [
        _input(each, values[each], binary=index % 2 == 0) for index, each in enumerate(IN_JSON)
    ]
    outputs = [
        {"name": f"OUTPUT_{each}", "binary": index % 3 == 0} for index, each in enumerate(IN_JSON)
    ]
    empty = _input("FP32", b"", binary=False)
    no_data = {"name": "OUTPUT_FP32", "binary": False}
    return [
        *calls,
        _infer("mixed", "identity", mixed, outputs=outputs, options=_ID),
        _infer("mixed, all back", "identity", mixed, options=_ID),
        _infer("none in JSON", "identity", [empty], outputs=[no_data], options=_ID),
    ]


def classification(photos: Photos) -> list[Call]:
    """The classes of photos, [n, 3, 224, 224], alone and together; also more than there are."""
    both, one = _fp32(photos), _fp32(photos[:1])
    few = {"name": "logits", "classes": 5}
    as_text, all_of_them = {**few, "binary": False}, {**few, "classes": 2000}
    return [
        _infer("one", "image_classifier", [one], outputs=[few], options=_ID),
        _infer("batch", "image_classifier", [both], outputs=[few], options=_ID),
        _infer("as text", "image_classifier", [both], outputs=[as_text], options=_ID),
        _infer("all", "image_classifier", [one], outputs=[all_of_them], options=_ID),
        _infer("logits", "image_classifier", [both], options=_ID),
        _infer(
            "no labels",
            "identity",
            [_input("INT32"), _input("FP64")],
            outputs=[{"name": "OUTPUT_INT32", "classes": 2}, {"name": "OUTPUT_FP64"}],
            options=_ID,
        ),
    ]


def options() -> list[Call]:
    """Ids, versions, wanted outputs and parameters."""
    inputs = [_input("INT32"), _input("BYTES")]
    custom = {"text": "größer", "number": -7, "yes": True, "share": 0.5}
    sequence = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
    asked = [{"name": "OUTPUT_BYTES"}, {"name": "OUTPUT_INT32"}]
    named = {
        "request id": {"request_id": "a photo, größer"},
        "priority": {"priority": 3},
        "timeout": {"timeout": 60_000_000},
        # For queues that have a policy for it; this model has none.
        "short timeout": {"timeout": 1},
        "sequence": sequence,
        "sequence named by a text": {**sequence, "sequence_id": "seven"},
        "parameters": {"parameters": custom, "request_id": "7"},
    }
    return [
        *(_infer(name, "identity", inputs, options=value) for name, value in named.items()),
        _infer("version", "identity", inputs, version="1"),
        _infer("one output", "identity", inputs, outputs=asked[:1]),
        _infer("another order", "identity", inputs, outputs=asked),
    ]


def compression(answers: bool) -> list[Call]:
    """Large requests in each coding; `answers`: their answers as well, each in each."""
    ramp = np.arange(50_000, dtype=np.float32)
    inputs = [_tensor("INPUT_FP32", "FP32", ramp.shape, ramp.tobytes())]
    back: tuple[str | None, ...] = (None, *CODINGS) if answers else (None,)
    return [
        _infer(
            f"{there} there, {again} back",
            "identity",
            inputs,
            compression={"request": there, "response": again},
        )
        for there in (None, *CODINGS)
        for again in back
    ]


def questions() -> list[Call]:
    """What both have to say alike about themselves and the models."""
    asked: dict[str, tuple[str, list[str]]] = {
        "no model": ("model_ready", ["missing"]),
        "no version": ("model_ready", ["identity", "9"]),
        "unknown metadata": ("model_metadata", ["missing"]),
        "unknown config": ("model_config", ["missing"]),
    }
    for model in ("identity", "image_classifier", "repeat", "batching"):
        asked[f"{model} ready"] = ("model_ready", [model])
        asked[f"{model} version ready"] = ("model_ready", [model, "1"])
        asked[f"{model} metadata"] = ("model_metadata", [model])
        asked[f"{model} version metadata"] = ("model_metadata", [model, "1"])
        asked[f"{model} config"] = ("model_config", [model])
    return [{"name": name, "do": do, "of": of} for name, (do, of) in asked.items()]


def errors() -> list[Call]:
    """What is refused, and what fails."""
    good = [_input("INT32")]
    small = np.zeros((1, 3, 2, 2), np.float32)
    many = np.zeros((9, 1), np.float32)
    return [
        _infer("unknown model", "missing", good),
        _infer("unknown version", "identity", good, version="9"),
        _infer("unknown input", "identity", [_fp32([1], "nothing")]),
        _infer("unknown output", "identity", good, outputs=[{"name": "nothing"}]),
        _infer("another datatype", "identity", [_fp32([1], "INPUT_INT32")]),
        _infer("another shape", "image_classifier", [_fp32(small)]),
        _infer("another rank", "slow", [_fp32([[1, 2]])]),
        _infer("too large a batch", "batching", [_fp32(many)]),
        _infer("input twice", "identity", [*good, *good]),
        _raising("a model that raises"),
        _repeat("a decoupled model asked for one answer", 1),
    ]


def streams() -> list[Call]:
    """Streams whose answers have an order."""
    sequence = {"sequence_id": 7}
    return [
        _stream("no request"),
        _stream("decoupled", _repeat("", 5, options={"request_id": "five"})),
        _stream("no answer", _repeat("", 0)),
        _stream("every datatype", *(_infer("", "identity", [_input(each)]) for each in VALUES)),
        _stream(
            "in their order",
            *(
                _slow("", delay, delay, options={"request_id": f"{delay} ms"})
                for delay in (150, 0, 50)
            ),
        ),
        _stream(
            "a sequence",
            _slow("", 1, options={**sequence, "sequence_start": True}),
            _slow("", 2, options=sequence),
            _slow("", 3, options={**sequence, "sequence_end": True}),
        ),
        _stream(
            "compressed",
            _infer("", "identity", [_input("FP32")]),
            compression={"request": "gzip"},
        ),
    ]


def decoupled_streams() -> list[Call]:
    """Streams of several decoupled requests, whose answers come in any order among each other."""
    marked = {"enable_empty_final_response": True}
    return [
        _stream(
            "several",
            *(_repeat("", n, options={"request_id": f"of {n}"}) for n in (3, 1, 0, 2)),
        ),
        _stream(
            "with marked ends",
            *(_repeat("", n, options={**marked, "request_id": f"of {n}"}) for n in (2, 0)),
        ),
        _stream(
            "beside one that waits",
            _slow("", 1, 100, options={"request_id": "waits"}),
            _repeat("", 3, options={"request_id": "of 3"}),
        ),
    ]


def failing_streams() -> list[Call]:
    """Streams with one failure, and what comes after it."""
    after = _slow("", 7, options={"request_id": "after"})
    failing = {
        "unknown model": _infer("", "missing", [_input("INT32")]),
        "unknown input": _infer("", "identity", [_fp32([1], "nothing")]),
        "another datatype": _infer("", "identity", [_fp32([1], "INPUT_INT32")]),
        "a model that raises": _raising(""),
    }
    return [_stream(f"stream: {name}", request, after) for name, request in failing.items()]


def of_kserve(*, rest: bool) -> list[Call]:
    """Each datatype as KServe's clients send and ask for it: as raw bytes, and otherwise."""
    raw = [
        _infer(
            each,
            "identity",
            [_input(each)],
            outputs=[{"name": f"OUTPUT_{each}", "binary": True}],
            options=_ID,
        )
        for each in OF_KSERVE
    ]
    if rest:
        return [*raw, *in_json(FINITE)]
    empty = [_infer(f"no {each}", "identity", [_input(each, b"")]) for each in OF_KSERVE]
    typed = [_infer(f"typed {each}", "identity", [_input(each, binary=False)]) for each in IN_JSON]
    return [*raw, *empty, *typed]


def options_of_kserve() -> list[Call]:
    """Ids, wanted outputs and parameters, as far as KServe's clients have them."""
    inputs = [_input("INT32"), _input("BYTES")]
    custom = {"text": "größer", "number": -7, "yes": True}
    asked = [{"name": "OUTPUT_BYTES", "binary": True}, {"name": "OUTPUT_INT32", "binary": False}]
    return [
        _infer("parameters", "identity", inputs, options={**_ID, "parameters": custom}),
        _infer("one output", "identity", inputs, outputs=asked[:1], options=_ID),
        _infer("another order", "identity", inputs, outputs=asked, options=_ID),
    ]


def readiness_of_models() -> list[Call]:
    """Questions that KServe's client for HTTP can ask of Triton, too."""
    return [
        {"name": model, "do": "model_ready", "of": [model]}
        for model in ("identity", "image_classifier", "missing")
    ]


def health() -> list[Call]:
    """Whether the server lives and is ready."""
    return [{"name": each, "do": f"server_{each}"} for each in ("live", "ready")]


def empty_by_kserve() -> list[Call]:
    """Tensors without elements; over HTTP, KServe's client sends them in two ways at once."""
    return [_infer(f"no {each}", "identity", [_input(each, b"")]) for each in OF_KSERVE]


def differences(*, over_http: bool) -> list[Call]:
    """What Tidegate answers otherwise than Triton, on purpose."""
    text = [{"name": "OUTPUT_FP16", "binary": False}]
    fp16 = _infer("FP16 as JSON", "identity", [_input("FP16", VALUES["INT16"])], outputs=text)
    return [
        *([fp16] if over_http else []),
        _infer("missing input", "slow", [_int32("delay_ms", 0)]),
        {"name": "index", "do": "index"},
        {"name": "server", "do": "server_metadata"},
        *({"name": each, "do": each} for each in NOT_OFFERED),
    ]


def statistics() -> list[Call]:
    """What a model has done, after it has done something."""
    return [
        _infer("first", "identity", [_input("INT32")]),
        {"name": "of a model", "do": "statistics", "of": ["identity"]},
        {"name": "of a version", "do": "statistics", "of": ["identity", "1"]},
    ]


# What each client does, by areas; photos, [n, 3, 224, 224], are for those that classify.
HTTP: dict[str, Area] = {
    "datatypes": lambda _: datatypes(),
    "JSON": lambda _: in_json(),
    "classification": classification,
    "options": lambda _: options(),
    "compression": lambda _: compression(answers=True),
    "questions": lambda _: [*health(), *questions()],
    "errors": lambda _: errors(),
    "differences": lambda _: differences(over_http=True),
    "statistics": lambda _: statistics(),
}
GRPC: dict[str, Area] = {
    "datatypes": lambda _: datatypes(),
    "classification": classification,
    "options": lambda _: options(),
    "compression": lambda _: compression(answers=False),
    "questions": lambda _: [*health(), *questions()],
    "streams": lambda _: streams(),
    "decoupled streams": lambda _: decoupled_streams(),
    "errors": lambda _: [*errors(), *failing_streams()],
    "differences": lambda _: differences(over_http=False),
    "statistics": lambda _: statistics(),
}
KSERVE_REST: dict[str, Area] = {
    "datatypes": lambda _: of_kserve(rest=True),
    "classification": classification,
    "options": lambda _: options_of_kserve(),
    "questions": lambda _: readiness_of_models(),
    "errors": lambda _: [
        # It leaves the version out.
        *(call for call in errors() if call["name"] != "unknown version"),
        *empty_by_kserve(),
    ],
    "health": lambda _: health(),
}
KSERVE_GRPC: dict[str, Area] = {
    "datatypes": lambda _: of_kserve(rest=False),
    "classification": classification,
    "options": lambda _: options_of_kserve(),
    "questions": lambda _: [*health(), *readiness_of_models()],
    "errors": lambda _: errors(),
}

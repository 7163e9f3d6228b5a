"""Asks a gateway for inference as a client would: `helm test` runs it in the gateway's image.

Where it has to, it waits until the model serves. Then a photo goes to POST /predict, and tensors of
zeros over gRPC to whatever the model takes. Ends with status 1 and a sentence when an answer is not
as it should be.
"""

import argparse
import http.client
import json
import math
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from tidegate_proto import kserve_v2_pb2, kserve_v2_pb2_grpc

# Longer than any model should take, shorter than the test's pod may.
_TIMEOUT_SECONDS = 30.0
# For an answer whether the model serves, and between two such questions.
_ASK_SECONDS = 5.0
_PAUSE_SECONDS = 1.0

_ELEMENT_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
    # An empty string: its length, in 4 bytes.
    "BYTES": 4,
}


class Unexpected(Exception):
    """An answer that is not as it should be; the message says what was expected and what came."""


def wait_until_served(address: str, model: str, patience_s: float) -> None:
    """Ask the gateway at `address` (host:port) whether it serves `model`, until it does.

    Raises:
        Unexpected: it does not within `patience_s` seconds.
    """
    deadline = time.monotonic() + patience_s
    told = ""
    while against := _reason_against(address, model):
        if time.monotonic() >= deadline:
            raise Unexpected(
                f"model {model!r}: expected it to serve within {patience_s:g} s, got {against} "
                f"from {address}"
            )
        if against != told:
            print(f"waiting until model {model!r} serves: {against}", flush=True)
            told = against
        time.sleep(_PAUSE_SECONDS)


def _reason_against(address: str, model: str) -> str:
    """What the gateway, or the way to it, has against a request for `model`; "" for nothing."""
    connection = http.client.HTTPConnection(address, timeout=_ASK_SECONDS)
    try:
        connection.request("GET", f"/v2/models/{quote(model)}/ready")
        response = connection.getresponse()
        said = response.read()
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    if response.status == http.client.OK:
        return ""
    return f"{response.status} {said.decode(errors='replace')}".strip()


def classify(address: str, model: str, photo: Path, label: str) -> str:
    """Send `photo` to POST /predict at `address` (host:port), and tell what the model sees.

    Raises:
        Unexpected: the status is not 200, another model answers, no class has a label, or `label`
            is no part of the first one.
        OSError: the gateway cannot be reached.
    """
    boundary = uuid.uuid4().hex
    head = (
        f"--{boundary}\r\n"
        f'Content-Disposition: form-data; name="file"; filename="{photo.name}"\r\n\r\n'
    )
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_SECONDS)
    connection.request(
        "POST",
        f"/predict?top=3&model={quote(model)}",
        body=head.encode() + photo.read_bytes() + f"\r\n--{boundary}--\r\n".encode(),
        headers={
            "content-type": f"multipart/form-data; boundary={boundary}",
            "tidegate-timeout": str(_TIMEOUT_SECONDS),
        },
    )
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.status != http.client.OK:
        raise Unexpected(f"POST /predict: expected 200, got {response.status} {body!r}")
    answer = json.loads(body)
    if answer["model_name"] != model:
        raise Unexpected(f"POST /predict: expected model {model!r}, got {answer['model_name']!r}")
    top: list[dict[str, Any]] = answer["top"]
    if not top or not all(seen["label"] for seen in top):
        raise Unexpected(f"POST /predict: expected classes with labels, got {top}")
    if label not in top[0]["label"]:
        raise Unexpected(f"POST /predict: expected a label with {label!r} first, got {top}")
    return ", ".join(f"{seen['label']} {seen['score']:.3f}" for seen in top)


def infer(address: str, model: str) -> str:
    """Send zeros to `model` by KServe v2 over gRPC at `address` (host:port); tell what it answers.

    Each dimension that the model leaves open is 1.

    Raises:
        Unexpected: another model answers, or its outputs are not those that it declares.
        grpc.RpcError: the gateway cannot be reached, or refuses.
    """
    with grpc.insecure_channel(address) as channel:
        stub = kserve_v2_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = stub.ModelMetadata(
            kserve_v2_pb2.ModelMetadataRequest(name=model), timeout=_TIMEOUT_SECONDS
        )
        request = kserve_v2_pb2.ModelInferRequest(model_name=model)
        for tensor in metadata.inputs:
            shape = [size if size > 0 else 1 for size in tensor.shape]
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
            request.raw_input_contents.append(
                bytes(math.prod(shape) * _ELEMENT_BYTES[tensor.datatype])
            )
        response = stub.ModelInfer(request, timeout=_TIMEOUT_SECONDS)
    if response.model_name != model:
        raise Unexpected(f"ModelInfer: expected model {model!r}, got {response.model_name!r}")
    expected = {output.name: output.datatype for output in metadata.outputs}
    got = {output.name: output.datatype for output in response.outputs}
    if got != expected or len(response.raw_output_contents) != len(expected):
        raise Unexpected(f"ModelInfer: expected outputs {expected}, got {got}")
    if not all(response.raw_output_contents):
        raise Unexpected(f"ModelInfer: expected outputs with content, got empty ones in {got}")
    return ", ".join(
        f"{output.name} {output.datatype}{list(output.shape)}" for output in response.outputs
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask for both; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", required=True, metavar="HOST:PORT")
    parser.add_argument("--grpc", required=True, metavar="HOST:PORT")
    parser.add_argument("--model", required=True)
    parser.add_argument("--photo", type=Path, help="without it, no image is classified")
    parser.add_argument("--label", default="", help="part of the label that the photo must get")
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait until the model serves (default: not at all)",
    )
    given = parser.parse_args(arguments)
    try:
        if given.patience:
            wait_until_served(given.http, given.model, given.patience)
        if given.photo:
            print("HTTP:", classify(given.http, given.model, given.photo, given.label), flush=True)
        print("gRPC:", infer(given.grpc, given.model), flush=True)
    except Unexpected as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"POST /predict: expected an answer from {given.http}, got {error}", file=sys.stderr)
        return 1
    except grpc.RpcError as error:
        print(
            f"gRPC: expected an answer from {given.grpc}, got {error.code().name}: "
            f"{error.details()}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

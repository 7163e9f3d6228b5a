"""gzip and deflate, both ways, and what is said of the rest."""

import gzip
import time
import tracemalloc
import zlib

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_gateway.compression import CODINGS, accepted, compressed, decompressed
from tidegate_gateway.errors import InvalidInput, PayloadTooLarge, RequestError, UnsupportedMedia

LIMIT = 1_000_000


def raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


async def plain(body: bytes, coding: str) -> bytes:
    return await decompressed(body, coding, limit=LIMIT, setting="http.max_body_bytes")


async def refusal(body: bytes, coding: str) -> RequestError:
    with pytest.raises(RequestError) as refused:
        await plain(body, coding)
    return refused.value


@pytest.mark.parametrize("size", [0, 1, 100, 300_000])
async def test_a_body_is_read_in_each_coding(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for coding, coded in {
        "gzip": gzip.compress(body),
        " GZip ": gzip.compress(body),
        "deflate": zlib.compress(body),
        "deflate ": raw_deflate(body),
        "identity": body,
        "": body,
    }.items():
        assert await plain(coded, coding) == body


@settings(max_examples=50, deadline=None, database=None)
@given(body=st.binary(max_size=2000), coding=st.sampled_from(CODINGS), level=st.integers(1, 9))
async def test_what_is_compressed_can_be_read(body: bytes, coding: str, level: int) -> None:
    assert await plain(await compressed(body, coding, level), coding) == body


async def test_another_coding_is_refused() -> None:
    for coding in ("br", "zstd", "gzip, deflate", "x-gzip"):
        error = await refusal(b"", coding)
        assert isinstance(error, UnsupportedMedia)
        assert error.message == (
            f"Content-Encoding: expected gzip, deflate or identity, got {coding!r}"
        )


@pytest.mark.parametrize(
    ("body", "coding", "sentence"),
    [
        (b"{}", "gzip", "expected gzip, got something else"),
        (b"\xff\xff\xff", "deflate", "expected deflate, got something else"),
        (gzip.compress(b"{}" * 100)[:-9], "gzip", "expected whole gzip, got no end of it"),
        (b"", "gzip", "expected whole gzip, got no end of it"),
        (gzip.compress(b"{}") + b"x", "gzip", "expected whole gzip, got bytes behind its end"),
        (gzip.compress(b"{}")[:-4] + b"1234", "gzip", "expected gzip, got something else"),
        (zlib.compress(b"{}"), "gzip", "expected gzip, got something else"),
    ],
)
async def test_a_body_that_is_not_in_its_coding_is_refused(
    body: bytes, coding: str, sentence: str
) -> None:
    error = await refusal(body, coding)
    assert isinstance(error, InvalidInput)
    assert error.message == f"the body: {sentence}"


async def test_a_bomb_does_not_go_off() -> None:
    bomb = gzip.compress(bytes(200 * LIMIT))
    tracemalloc.start()
    error = await refusal(bomb, "gzip")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(error, PayloadTooLarge)
    assert error.message == (
        "the body: expected at most 1000000 bytes (http.max_body_bytes) when decompressed, got more"
    )
    assert peak < 10 * LIMIT


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip", "deflate"),
        ("deflate;q=0.5, gzip;q=0.8", "gzip"),
        ("GZIP", "gzip"),
        ("br, zstd, gzip;q=0.1", "gzip"),
        ("gzip;q=0", ""),
        ("gzip;q=x", ""),
        ("gzip;level=1", ""),
        ("*", ""),
        ("identity", ""),
        ("", ""),
    ],
)
def test_an_answer_is_in_the_coding_that_the_client_likes_best(header: str, coding: str) -> None:
    assert accepted(header) == coding


# On a real gateway

ONE = {"name": "INPUT_FP32", "datatype": "FP32", "shape": [600], "data": [0.5] * 600}


@pytest.mark.needs("engine")
@pytest.mark.parametrize("coding", CODINGS)
def test_both_ways_over_http(client: httpx.Client, coding: str) -> None:
    body = httpx.Request("POST", "http://x", json={"inputs": [ONE]}).content
    coded = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    answer = client.post(
        "/v2/models/identity/infer",
        content=coded,
        headers={"Content-Encoding": coding, "Accept-Encoding": coding},
    )
    assert answer.status_code == 200
    assert answer.headers["content-encoding"] == coding
    assert answer.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) < 500
    assert answer.json()["outputs"][0]["data"] == ONE["data"]


@pytest.mark.needs("engine")
def test_small_answers_and_clients_that_do_not_ask_get_them_as_they_are(
    client: httpx.Client,
) -> None:
    small = {"inputs": [{**ONE, "shape": [1], "data": [1]}]}
    answer = client.post("/v2/models/identity/infer", json=small)
    assert "content-encoding" not in answer.headers
    answer = client.post(
        "/v2/models/identity/infer", json={"inputs": [ONE]}, headers={"Accept-Encoding": "identity"}
    )
    assert "content-encoding" not in answer.headers


@pytest.mark.needs("engine")
def test_a_bomb_over_http_is_413_and_cheap(client: httpx.Client) -> None:
    bomb = gzip.compress(bytes(2**29), compresslevel=1)
    began = time.monotonic()
    answer = client.post(
        "/v2/models/identity/infer", content=bomb, headers={"Content-Encoding": "gzip"}
    )
    assert answer.status_code == 413
    assert "http.max_body_bytes" in answer.json()["error"]
    assert time.monotonic() - began < 5

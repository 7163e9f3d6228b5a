"""Content codings of HTTP: gzip and deflate, both ways, within bounds."""

import asyncio
import zlib

from tidegate_gateway.errors import InvalidInput, PayloadTooLarge, UnsupportedMedia

CODINGS = ("gzip", "deflate")

# Bytes from which on the work goes to a thread. zlib lets others run meanwhile, and below it the
# way there takes longer than the work.
_IN_THREAD = 256 * 1024

_WBITS = {"gzip": 31, "deflate": 15}
# Of what some clients take deflate for: without the header of zlib.
_RAW_DEFLATE = -15


async def decompressed(body: bytes, coding: str, *, limit: int, setting: str) -> bytes:
    """`body` without its coding, as the header Content-Encoding names it.

    Args:
        limit: bytes that come out at most, the value of `setting`.

    Raises:
        UnsupportedMedia: the coding is none of gzip, deflate and identity.
        InvalidInput: `body` is not in that coding.
        PayloadTooLarge: more comes out; the rest is not decompressed.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in CODINGS:
        raise UnsupportedMedia(
            f"Content-Encoding: expected {', '.join(CODINGS)} or identity, got {coding!r}"
        )
    if len(body) < _IN_THREAD:
        return _decompress(body, coding, limit, setting)
    return await asyncio.to_thread(_decompress, body, coding, limit, setting)


def _decompress(body: bytes, coding: str, limit: int, setting: str) -> bytes:
    # A zlib header is 8 in the low half of its first byte, and both together are divisible by 31.
    is_raw = coding == "deflate" and (
        len(body) < 2 or body[0] & 15 != 8 or int.from_bytes(body[:2], "big") % 31
    )
    stream = zlib.decompressobj(_RAW_DEFLATE if is_raw else _WBITS[coding])
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error:
        raise InvalidInput(f"the body: expected {coding}, got something else") from None
    if len(plain) > limit:
        raise PayloadTooLarge(
            f"the body: expected at most {limit} bytes ({setting}) when decompressed, got more"
        )
    if not stream.eof or stream.unused_data:
        what = "bytes behind its end" if stream.eof else "no end of it"
        raise InvalidInput(f"the body: expected whole {coding}, got {what}")
    return plain


def accepted(header: str) -> str:
    """The coding for an answer, as the header Accept-Encoding wants it: of gzip and deflate the one
    with the higher quality, or else the one named first; "" where it wants neither."""
    best, most = "", 0.0
    for part in header.lower().split(","):
        coding, _, quality = part.partition(";")
        weight = _weight(quality)
        if coding.strip() in CODINGS and weight > most:
            best, most = coding.strip(), weight
    return best


def _weight(text: str) -> float:
    name, _, value = text.partition("=")
    if not text.strip():
        return 1.0
    try:
        return float(value) if name.strip() == "q" else 0.0
    except ValueError:
        return 0.0


async def compressed(body: bytes, coding: str, level: int) -> bytes:
    """`body` in that coding, of CODINGS."""
    if len(body) < _IN_THREAD:
        return _compress(body, coding, level)
    return await asyncio.to_thread(_compress, body, coding, level)


def _compress(body: bytes, coding: str, level: int) -> bytes:
    stream = zlib.compressobj(level, zlib.DEFLATED, _WBITS[coding])
    return stream.compress(body) + stream.flush()

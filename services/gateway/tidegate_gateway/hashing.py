"""Choices that every gateway makes alike, without a word between them.

Rendezvous hashing gives each candidate a number made of its name and the key, and takes the best:
when candidates come and go, only the keys of those move. Python's own `hash` differs from process
to process, so it cannot be used.
"""

import math
from hashlib import blake2b

_DIGEST_BYTES = 8
# As many bits as a float holds exactly: with all 64 the largest would be rounded up to 1.
_BITS = 53


def unit(*parts: str) -> float:
    """A number in [0, 1) that stands for `parts`, evenly spread: the same in every process and
    release, since keys would move otherwise."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        # Headers may hold anything, lone surrogates too.
        encoded = part.encode(errors="surrogatepass")
        # The length keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    whole = int.from_bytes(digest.digest(), "big") >> (8 * _DIGEST_BYTES - _BITS)
    return math.ldexp(whole, -_BITS)

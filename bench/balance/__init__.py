"""How much of what three real engines can do comes through the gateway when one is at half speed.

`python -m bench.balance` from the root of the repository, or `make bench-balance`. Beside the
gateway stands round robin from a client of its own, which has no gateway in its path and is
flattered by that.
"""

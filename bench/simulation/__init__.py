"""Engines and gateways in virtual time: how ways to choose an endpoint compare.

`python -m bench.simulation` from the root of the repository. Tidegate's own choice is
`tidegate_gateway.balancing` itself; only the engines, the requests and the clock are made up.
"""

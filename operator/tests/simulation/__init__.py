"""A cluster in one process, in which anything may happen at any time.

The plan, the routing table, the bookkeeping of gateways and that of loaders are the shipped code.
What is played is what they have in common with nothing else: the API server and its watches, Triton
and the repository, Kubernetes, clients, and the order in which things happen. Each method of
`world.World` is one thing that happens, however small; what must never be is checked when it could
happen, and raises `rules.Violation`.
"""

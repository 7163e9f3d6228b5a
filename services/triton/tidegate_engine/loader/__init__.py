"""The loader: has one Triton load what the routing table wants, proves it, and reports.

A sidecar of each engine, and the only one that calls Triton's repository API. `bookkeeping` and
`plan` decide and are pure; `loader` does what they say, with `repository` (files) and `triton`
(HTTP). Run as `python -m tidegate_engine.loader`.
"""

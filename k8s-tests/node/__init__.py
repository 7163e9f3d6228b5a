"""A real Kubernetes for tests on one Linux machine, of one node or more, without Docker.

README.md beside this file says how it is built and what may be done to it.
"""

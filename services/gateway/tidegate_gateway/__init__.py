"""Tidegate's gateway: HTTP, images and tensors in, binary gRPC to the engines out."""

from importlib.metadata import version

__version__ = version("tidegate-gateway")

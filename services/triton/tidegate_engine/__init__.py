"""Tidegate's engine: NVIDIA Triton with its models, in a container or as a local process."""

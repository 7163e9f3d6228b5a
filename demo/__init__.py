"""The whole of Tidegate on one machine, without root, container or GPU: `make demo`."""

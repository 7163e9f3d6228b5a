"""A fake `nvidia.com/gpu` device plugin, for tests of scheduling on machines without GPUs."""

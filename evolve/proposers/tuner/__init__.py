"""Kernels from a tuner over the knobs of known kernels."""

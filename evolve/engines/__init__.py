"""Engines, which evaluate kernels in worker processes."""

"""Engines: where kernels are evaluated."""

"""Kernels from language models."""

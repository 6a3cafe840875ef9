"""Devices, one folder per kind: each compiles, runs and times kernels."""

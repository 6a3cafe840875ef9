"""Devices: one folder per kind, each with what compiles, runs and times kernels there."""

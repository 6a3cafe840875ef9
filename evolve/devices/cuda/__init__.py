"""NVIDIA GPUs through CuPy: NVRTC to cubin, launches, events."""

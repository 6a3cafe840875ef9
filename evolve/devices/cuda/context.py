"""The CUDA context of a thread."""

from cupy.cuda import runtime


def bind_context(index: int) -> None:
    """CuPy launches through the driver, which knows no context in a thread that never called CUDA's runtime."""
    runtime.setDevice(index)

"""Small kernels of our own, which look after the GPU between other people's."""

import ctypes
from functools import cache
from typing import Any

import torch
from cupy.cuda import nvrtc
from cupy_backends.cuda.api import driver

from evolve.devices.cuda.launching import loaded


@cache
def function(source: str, name: str, arch: str) -> Any:
    """Compiled and loaded once per process."""
    return loaded(compiled(source, arch)).get_function(name)


def compiled(source: str, arch: str) -> bytes:
    program = nvrtc.createProgram(source, "own.cu", (), ())
    try:
        nvrtc.compileProgram(program, [f"-arch={arch}", "-std=c++17"])
        image: bytes = nvrtc.getCUBIN(program)
        return image + b"\0"  # CuPy drops the last byte
    finally:
        nvrtc.destroyProgram(program)


def launch(function: Any, blocks: int, threads: int, values: tuple[Any, ...], shared: int = 0) -> None:
    """Enqueue on PyTorch's current stream; `values` are ctypes values."""
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    stream = torch.cuda.current_stream().cuda_stream
    driver.launchKernel(
        function.ptr, blocks, 1, 1, threads, 1, 1, shared, stream, ctypes.addressof(addresses), 0
    )  # fmt: skip

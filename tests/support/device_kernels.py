"""Kernels without an op for device tests, functions that run them, and the list of all devices."""

from collections.abc import Mapping
from functools import cache

import pytest
import torch

from archive.binding import Point, bind
from archive.kernel import Bound, Kernel, parse
from evolve.devices.choose import kinds, make, policy_of
from evolve.devices.device import Device, RejectedError
from evolve.devices.emulated.device import EmulatedDevice

Tensors = Mapping[str, torch.Tensor]
EVERY_DEVICE = [
    pytest.param(kind, marks=[pytest.mark.gpu] if policy_of(kind).times_are_gpu_times else []) for kind in kinds()
]


@cache
def made(kind: str) -> Device:
    """Return the device of this kind, shared by all tests.

    The emulated device does not use NVRTC here; other tests cover that.
    """
    return EmulatedDevice() if kind == "emulated" else make(kind)


def bound(
    kernel: Kernel | str, tensors: Tensors, dims: Mapping[str, int | float] | None = None, dtype: str = "float32"
) -> Bound:
    """Return a kernel bound at a point with these tensors; floats in `dims` are parameters of the op."""
    kernel = parse(kernel) if isinstance(kernel, str) else kernel
    sizes = dims or {}
    return bind(
        kernel,
        Point(
            dtype=dtype,
            dims={name: value for name, value in sizes.items() if isinstance(value, int)},
            parameters={name: value for name, value in sizes.items() if isinstance(value, float)},
            tensors={name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()},
            sms=4,
            shared_bytes=232448,
        ),
    )


def run(device: Device, kernel: Kernel | str, tensors: Tensors, dims: Mapping[str, int | float] | None = None) -> Bound:
    """Compile a kernel and run it once; the tensors are copied to the device and back."""
    plan = bound(kernel, tensors, dims)
    program = device.compile(plan)
    there = {name: tensor.to(device.torch_device) for name, tensor in tensors.items()}
    for workspace in plan.workspace:
        dtype = getattr(torch, workspace.dtype)
        there[workspace.name] = torch.full((workspace.elements,), 77, dtype=dtype, device=device.torch_device)
    device.run(program, there)
    for name, tensor in tensors.items():
        tensor.copy_(there[name])
    return plan


def rejected(device: Device, kernel: str, tensors: Tensors, **dims: float) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        run(device, kernel, tensors, dims)
    return caught.value


def out_of(device: Device, kernel: str, size: int, dtype: torch.dtype = torch.int32, **dims: float) -> list[float]:
    """Return the values that a kernel writes to `y`, its only tensor."""
    y = torch.zeros(size, dtype=dtype)
    run(device, kernel, {"y": y}, dims)
    values: list[float] = y.tolist()
    return values


def single(body: str, args: str, block: str = "[32]", grid: str = "[1]", more: str = "", top: str = "") -> str:
    """Return a kernel with one launch. `args` are its C parameters, such as `const float* x, int n`."""
    names = ", ".join(f'"{parameter.split()[-1].lstrip("*&")}"' for parameter in args.split(",") if parameter.strip())
    return (
        f'/*---\nop = "test"\n{top}\n[[launch]]\nentry = "test_entry"\ngrid = {grid}\nblock = {block}\n'
        f"args = [{names}]\n{more}\n---*/\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
        f'extern "C" __global__ void test_entry({args}) {{\n{body}\n}}\n'
    )


# Three launches of two entries; the second is skipped unless n is greater than 1.
PAIR = """/*---
op = "test"
[[launch]]
entry = "scale"
grid = [1]
block = [32]
args = ["x", "y"]
[[launch]]
entry = "add"
grid = ["n - 1"]
block = [32]
args = ["x", "y"]
[[launch]]
entry = "scale"
grid = [2]
block = [16]
args = ["x", "y"]
---*/
extern "C" __global__ void scale(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
extern "C" __global__ void add(const float* x, float* y) { y[threadIdx.x] += x[threadIdx.x]; }
"""

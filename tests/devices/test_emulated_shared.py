"""Shared memory on the emulated device: its scope, its initial contents and its limits."""

import pytest
import torch
from device_kernels import out_of, rejected, single

from archive.records import Outcome
from evolve.devices.emulated.device import EmulatedDevice

Y = {"y": torch.zeros(32, dtype=torch.int32)}


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice()


@pytest.mark.parametrize("declared", ["__shared__ float s[64];", "extern __shared__ float s[];"])
def test_shared_memory_starts_as_garbage(device: EmulatedDevice, declared: str) -> None:
    body = f"{declared}\ny[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x];\n__syncthreads();\ns[threadIdx.x] = 0.f;"
    kernel = single(body, "float* y", block="[64]", grid="[4]", more="shared = 256")
    values = torch.tensor(out_of(device, kernel, 256, torch.float32)).view(4, 64)
    assert values[0].isnan().all()
    assert (values[1] > 1e38).all()


def test_shared_scalars_and_shared_memory_in_templates_start_as_garbage_too(device: EmulatedDevice) -> None:
    kernel = single("y[0] = held<int>(3); y[1] = held<float>(1); y[2] = held<int>(0);", "int* y", block="[1]").replace(
        'extern "C"',
        "template <class T> __device__ int held(int i) { static __shared__ T v[4], w; "
        "int found = *(int*)&v[i] == -1 && *(int*)&w == -1; v[0] = 5; return found; }\n"
        'extern "C"',
    )
    assert out_of(device, kernel, 3) == [1, 1, 0]


@pytest.mark.parametrize("qualifier", ["alignas(16)", "__align__(16)", "alignas(sizeof(float) * (2 + 2))"])
def test_shared_memory_may_be_aligned_after_its_qualifier(device: EmulatedDevice, qualifier: str) -> None:
    body = f"__shared__ char odd;\n__shared__ {qualifier} float s[4];\nodd = 0;\ny[0] = (size_t)&s[0] % 16 + odd;"
    assert out_of(device, single(body, "int* y", block="[1]"), 1) == [0]


def test_shared_memory_at_namespace_scope_is_visible_in_every_function(device: EmulatedDevice) -> None:
    body = "table[threadIdx.x] = threadIdx.x;\nraw[threadIdx.x] = 2;\n__syncthreads();\ny[threadIdx.x] = other();"
    kernel = single(body, "int* y", more="shared = 128").replace(
        'extern "C"',
        "extern __shared__\n    __align__(16) int raw[];\n__shared__ int table[32];\n"
        "__device__ int other() { return table[31 - threadIdx.x] * raw[threadIdx.x]; }\n" 'extern "C"',
    )  # fmt: skip
    assert out_of(device, kernel, 32) == list(range(62, -1, -2))


def test_shared_memory_at_namespace_scope_works_in_cooperative_grids(device: EmulatedDevice) -> None:
    body = "raw[threadIdx.x] = blockIdx.x;\ncooperative_groups::this_grid().sync();\ny[blockIdx.x] = raw[31];"
    kernel = single(body, "int* y", grid="[6]", more="shared = 128\ncooperative = true")
    kernel = kernel.replace("cuda_fp16.h", "cooperative_groups.h")
    assert out_of(device, kernel.replace('extern "C"', 'extern __shared__ int raw[];\nextern "C"'), 6) == list(range(6))


def test_more_static_shared_memory_than_48_kilobytes_does_not_compile(device: EmulatedDevice) -> None:
    error = rejected(device, single("__shared__ float s[13000];\ns[threadIdx.x] = 0.f;", "int* y"), Y)
    assert error.outcome == Outcome.COMPILE_ERROR
    assert "extern __shared__" in error.log


def test_static_and_dynamic_shared_memory_count_together(device: EmulatedDevice) -> None:
    body = "__shared__ float s[2000];\ns[threadIdx.x] = 0.f;"
    error = rejected(device, single(body, "int* y", more="shared = 230000"), Y)
    assert error.outcome == Outcome.ILLEGAL

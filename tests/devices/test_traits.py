"""Traits of compiled kernels: equal code for renamed kernels, different code for changed ones, and occupancy."""

import re

import pytest
import torch
from chosen_ops import THOROUGH, some
from each import each

pytest.importorskip("cupy")

from archive.binding import bind
from archive.kernel import Bound, Kernel, parse
from archive.library import shipped
from archive.records import DeviceInfo, Traits
from evolve.devices.cuda.compiler import compile_cubin
from evolve.devices.cuda.cubin import occupancy
from evolve.devices.cuda.program import CudaProgram
from evolve.op_on_device import point
from reference_ops import catalog

GPU = DeviceInfo("cuda", "Some GPU", "sm_90a", 132, 232448)


@pytest.mark.parametrize(
    ("arch", "registers", "threads", "shared_bytes", "expected"),
    [
        ("sm_90a", 32, 1024, 0, 1.0),
        ("sm_90a", 33, 1024, 0, 0.5),  # a warp gets registers in units of 256: 40 for each thread
        ("sm_90a", 255, 256, 0, 0.125),
        ("sm_90a", 64, 256, 0, 0.5),
        ("sm_90a", 72, 128, 0, 28 / 64),  # seven warps in each of four partitions
        ("sm_90a", 16, 32, 0, 0.5),  # a multiprocessor holds at most 32 blocks
        ("sm_90a", 16, 33, 0, 1.0),  # a block of two warps, one nearly empty
        ("sm_90a", 32, 128, 100 * 1024, 8 / 64),
        ("sm_90a", 32, 128, 113 * 1024, 8 / 64),  # two blocks and the 2 KB reserved by the system use all shared memory
        ("sm_90a", 32, 128, 113 * 1024 + 1, 4 / 64),
        ("sm_90a", 32, 1024, 227 * 1024, 0.5),
        ("sm_75", 32, 1024, 0, 1.0),  # a Turing multiprocessor holds 1024 threads
        ("sm_75", 64, 256, 32 * 1024, 0.5),
        ("sm_80", 32, 128, 80 * 1024, 8 / 64),
        ("sm_86", 32, 1024, 0, 32 / 48),  # an sm_86 multiprocessor holds 1536 threads
        ("sm_86", 40, 256, 0, 1.0),
        ("sm_89", 32, 32, 0, 24 / 48),
        ("sm_100a", 32, 1024, 0, 1.0),
        ("sm_103a", 32, 128, 100 * 1024, 8 / 64),
        ("sm_120a", 32, 768, 0, 1.0),
        ("sm_120a", 32, 128, 50 * 1024, 4 / 48),
    ],
)  # fmt: skip
def test_occupancy_equals_that_of_nvidias_calculator(
    arch: str, registers: int, threads: int, shared_bytes: int, expected: float
) -> None:
    assert occupancy(arch, registers, threads, shared_bytes) == expected


TEXT = """/*---
op = "softmax"
note = "a block per row"
[knobs]
THREADS = [128, 64]
[let]
half = "THREADS // 2"
[workspace]
scratch = { shape = ["rows"], dtype = "float32" }
[[launch]]
entry = "first"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "scratch", "cols"]
[[launch]]
entry = "second"
grid = ["rows"]
block = [32]
args = ["scratch", "out", "half"]
---*/
__constant__ const float table[4] = {1, 2, 3, 4};
__device__ __noinline__ float scaled(float value, int by) { return value / table[by & 3]; }
extern "C" __global__ void first(const x_t* x, scratch_t* scratch, int cols) {
    __shared__ float kept[THREADS];
    kept[threadIdx.x] = scaled(x[threadIdx.x], cols);
    __syncthreads();
    scratch[blockIdx.x] = kept[threadIdx.x ^ 1];
}
extern "C" __global__ void second(const scratch_t* scratch, out_t* out, int half) { out[half] = scratch[threadIdx.x]; }
"""


def at_first_workload(kernel: Kernel) -> Bound:
    op = catalog.load(kernel.op)
    return bind(kernel, point(op, op.gpu[0], GPU))


def traits(kernel: Kernel, arch: str = "sm_90a") -> Traits:
    return compile_cubin(at_first_workload(kernel), arch).traits


def altered(*changes: tuple[str, str], text: str = TEXT) -> Kernel:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text)


def test_the_traits_of_a_kernel_with_two_launches() -> None:
    found = traits(altered())
    assert (found.load_bytes, found.store_bytes, found.shared_bytes, found.threads) == (4, 4, 512, 128)
    assert (found.launches, found.tensor_cores, found.atomics) == (2, False, False)
    assert found.occupancy == 0.5  # the occupancy of the second launch: 32 resident blocks of one warp each
    assert 0 < found.registers < 64


def test_static_and_dynamic_shared_memory_count_together() -> None:
    assert traits(altered(("[32]\n", "[32]\nshared = 1000\n"))).shared_bytes == 1000
    assert traits(altered(('["THREADS"]\n', '["THREADS"]\nshared = 1000\n'))).shared_bytes == 1512


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize(
    "changes",
    [
        [("a block per row", "one row, one block")],
        [("    __shared__", "    // what the neighbour reads\n\n    __shared__")],
        [("kept", "held"), ("value", "given")],
        [("scaled", "aa_divided"), ("first", "zz_begin"), ("second", "aa_end")],
        [("scratch", "between")],
        [("[let]", "SPARE = [3, 4]\n[let]")],
        [("__constant__", "__device__ int never(int n) { return n * 7; }\n__constant__")],
        [("__constant__", 'extern "C" __global__ void beside(int* p) { p[0] = p[1]; }\n__constant__')],
        [("__device__ __noinline__", "template <int N> struct Unused { int at[N]; };\n__device__ __noinline__")],
    ],
    ids=["note", "comment", "variables", "functions", "workspace", "knob", "function", "entry", "template"],
)
def test_renamed_kernels_compile_to_the_same_code(arch: str, changes: list[tuple[str, str]]) -> None:
    other = altered(*changes)
    assert other.id != altered().id
    assert traits(other, arch) == traits(altered(), arch)


@pytest.mark.parametrize(
    "changes",
    [
        [("THREADS = [128, 64]", "THREADS = [64, 128]")],
        [("block = [32]", "block = [64]")],
        [('"THREADS // 2"', '"THREADS // 4"')],
        [('shape = ["rows"]', 'shape = ["rows * 2"]')],
        [('"float32" }', '"float32", zero = true }')],
        [('args = ["x", "scratch"', 'args = ["out", "scratch"')],
        [('entry = "second"\ngrid = ["rows"]', 'entry = "second"\ngrid = ["rows - 1"]')],
        [('"cols"]\n', '"cols"]\ncooperative = true\n')],
        [("{1, 2, 3, 4}", "{1, 2, 3, 5}")],
        [("value / table", "value * table")],
        [("threadIdx.x ^ 1", "threadIdx.x ^ 2")],
        [("__global__ void first", "__global__ void __launch_bounds__(128) first")],
        [("__shared__ float kept[THREADS]", "__shared__ float kept[THREADS + 64]")],
    ],
    ids=lambda changes: changes[0][1][:24],
)
def test_every_change_to_the_running_code_changes_the_hash(changes: list[tuple[str, str]]) -> None:
    assert traits(altered(*changes)).code != traits(altered()).code


@each({name: name for name in some()}, quick=THOROUGH[:2])
def test_a_shipped_kernel_and_a_renamed_copy_compile_to_the_same_code(name: str) -> None:
    kernel = shipped(name)[-1]
    entry = kernel.plan.launches[0].entry
    text = re.sub(rf"\b{entry}\(", "aa_renamed(", kernel.text.replace(f'entry = "{entry}"', 'entry = "aa_renamed"'))
    copy = parse(f"{text}// The end.\n__device__ int unused(int n) {{ return n; }}\n")
    assert copy.plan.launches[0].entry == "aa_renamed"
    assert traits(copy) == traits(kernel)


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [32, 128, 1024])
@pytest.mark.parametrize("shared_bytes", [0, 30_000])
def test_the_driver_agrees_on_the_occupancy(threads: int, shared_bytes: int) -> None:
    from cupy_backends.cuda.api import driver

    from evolve.devices.cuda.device import CudaDevice

    device = CudaDevice()
    changes = [("block = [32]", f"block = [{threads}]\nshared = {shared_bytes}"), ("[128, 64]", f"[{threads}]")]
    bound = at_first_workload(altered(*changes))
    program = CudaProgram(bound, compile_cubin(bound, device.info.arch), device.info.sms)
    functions = {name: program.module.get_function(name) for name in ("first", "second")}
    blocks = {
        launch.entry: driver.occupancyMaxActiveBlocksPerMultiprocessor(
            functions[launch.entry].ptr, threads, launch.shared
        )
        for launch in bound.launches
    }
    warps = torch.cuda.get_device_properties(0).max_threads_per_multi_processor // 32
    assert program.traits.occupancy == min(blocks.values()) * (threads // 32) / warps

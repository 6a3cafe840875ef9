"""The emulated device, which finds faults that a GPU would not report or would hang on."""

import importlib.util
from itertools import pairwise
from typing import NoReturn

import pytest
import torch
from device_kernels import bound, out_of, rejected, run, single

from archive.kernel import Bound
from archive.records import Outcome
from evolve.devices.cuda.compiler import compile_cubin
from evolve.devices.cuda.translation import EMPTY_HEADERS
from evolve.devices.device import CompileResult, RejectedError, Tools
from evolve.devices.emulated import compiler, source
from evolve.devices.emulated.device import EmulatedDevice
from evolve.errors import UserError

I32 = torch.int32
Y = {"y": torch.zeros(4096, dtype=I32)}


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice()


def test_the_device_info_says_emulated(device: EmulatedDevice) -> None:
    assert (device.info.kind, device.info.arch, device.info.sms) == ("emulated", "sm_90a", 4)


def test_the_emulated_device_has_no_clocks_no_graphs_and_no_sanitizer(device: EmulatedDevice) -> None:
    assert device.tools == Tools(fenced=device.tools.fenced)


def test_a_kernel_is_compiled_for_a_gpu_where_traits_are_needed_and_else_only_checked() -> None:
    pytest.importorskip("cupy")
    compiled, checked = list[Bound](), list[Bound]()

    def compile_for_gpu(plan: Bound) -> CompileResult:
        compiled.append(plan)
        return compile_cubin(plan, "sm_90a")

    device = EmulatedDevice(compile_for_gpu, checked.append)
    brief = device.tools.compile_without_traits
    assert brief
    plans = [bound(single("y[0] = n;", "int* y", top='specialize = ["n"]'), Y, {"n": n}) for n in (1, 2, 2)]
    listed = device.compile(plans[0])
    assert listed.traits
    drawn = [brief(plan) for plan in plans]
    assert [program.traits for program in drawn] == [listed.traits, None, None]
    assert (compiled, checked) == ([plans[0], plans[0]], plans[1:])
    y = torch.zeros(4096, dtype=I32)
    drawn[1].launch({"y": y})
    assert y[0] == 2


@pytest.mark.parametrize("word", ["thread_local", "__thread"])
def test_a_thread_local_variable_does_not_compile(device: EmulatedDevice, word: str) -> None:
    error = rejected(
        device, single("y[0] = kept++;", "int* y").replace('extern "C"', f'{word} int kept;\nextern "C"'), Y
    )
    assert error.outcome == Outcome.COMPILE_ERROR
    assert word in error.log


def test_threads_that_wait_at_different_barriers_are_a_deadlock(device: EmulatedDevice) -> None:
    body = """
    if (threadIdx.x < 17) __syncthreads();
    else if (threadIdx.x < 32) __shfl_sync(threadIdx.x % 32 < 28 ? 0xfffffff0 : 0xfffffff0, 1, 20);"""
    error = rejected(device, single(body, "int* y"), Y)
    assert error.outcome == Outcome.LAUNCH_ERROR
    assert (
        "deadlock in block (0,0,0): 17 threads wait at __syncthreads, 15 threads wait at a warp operation" in error.log
    )
    assert "lanes 4,5,6,7,8,9,10,11,12,13,14,15,16 of warp 0 never reach" in error.log


def test_a_warp_operation_that_some_lanes_skip_is_a_deadlock(device: EmulatedDevice) -> None:
    body = "if (threadIdx.x != 4) __shfl_sync(0xffffffff, 1, 0);\n__syncthreads();"
    error = rejected(device, single(body, "int* y", block="[64]"), Y)
    assert "33 threads wait at __syncthreads, 31 threads wait at a warp operation that lanes 4 of warp 0" in error.log


def test_the_device_still_works_after_a_deadlock(device: EmulatedDevice) -> None:
    y = torch.zeros(64, dtype=I32)
    kernel = single(
        "if (n && threadIdx.x == 4) __syncwarp();\ny[threadIdx.x] = __shfl_sync(0xffffffff, (int)threadIdx.x, 1);",
        "int* y, int n", block="[64]",
    )  # fmt: skip
    with pytest.raises(RejectedError, match="deadlock"):
        run(device, kernel, {"y": y}, {"n": 1})
    run(device, kernel, {"y": y}, {"n": 0})
    assert y.tolist() == [1] * 32 + [33] * 32


def test_a_program_still_works_after_its_own_failure(device: EmulatedDevice) -> None:
    y = torch.zeros(256, dtype=I32)
    body = "if (y[0] == 5 && threadIdx.x > 60) __trap();\n__syncthreads();\ny[threadIdx.x] = __syncthreads_count(1);"
    program = device.compile(bound(single(body, "int* y", block="[256]"), {"y": y}))
    y[0] = 5
    with pytest.raises(RejectedError, match="__trap"):
        device.run(program, {"y": y})
    y[0] = 0
    device.run(program, {"y": y})
    assert y.tolist() == [256] * 256


def test_a_lane_outside_its_own_mask_is_refused(device: EmulatedDevice) -> None:
    error = rejected(device, single("__shfl_sync(0x1, 1, 0);", "int* y"), Y)
    assert error.outcome == Outcome.LAUNCH_ERROR
    assert "mask 0x00000001 leaves it out" in error.log


def test_a_trap_crashes_the_kernel_and_not_the_process(device: EmulatedDevice) -> None:
    error = rejected(device, single("if (threadIdx.x == 3) __trap();\n__syncthreads();", "int* y"), Y)
    assert error.outcome == Outcome.CRASHED
    assert "thread (3,0,0): __trap()" in error.log


def test_a_failed_assertion_names_its_condition_and_its_line(device: EmulatedDevice) -> None:
    kernel = single("assert(blockIdx.x != 2);", "int* y", grid="[4]")
    line = (
        bound(kernel, {"y": torch.zeros(1, dtype=I32)}).kernel.text.splitlines().index("assert(blockIdx.x != 2);") + 1
    )
    error = rejected(device, kernel, Y)
    assert error.outcome == Outcome.CRASHED
    assert f"block (2,0,0), thread (0,0,0): assertion failed: blockIdx.x != 2 at kernel.cu({line})" in error.log


def test_blocks_do_not_run_in_ascending_order(device: EmulatedDevice) -> None:
    body = "y[1 + atomicAdd(y, 1)] = blockIdx.x;"
    order = out_of(device, single(body, "int* y", block="[1]", grid="[20]"), 21)[1:]
    assert sorted(order) == list(range(20))
    assert sum(a < b for a, b in pairwise(order)) < 15


def test_a_missing_barrier_gives_wrong_results(device: EmulatedDevice) -> None:
    body = """
    __shared__ int s[128];
    s[threadIdx.x] = threadIdx.x;
    y[blockIdx.x * 128 + threadIdx.x] = s[threadIdx.x ^ 64];"""
    values = torch.tensor(out_of(device, single(body, "int* y", block="[128]", grid="[2]"), 256)).view(2, 128)
    right = torch.arange(128) ^ 64
    assert not (values[0] == right).all()
    assert not (values[1] == right).all()


def test_a_warp_may_write_shared_memory_that_others_still_read(device: EmulatedDevice) -> None:
    """The second sum is written without a barrier after the first has been read."""
    body = """
    __shared__ int sums[4];
    int sum = 1;
    for (int round = 0; round < 2; ++round) {
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = sums[0] + sums[1] + sums[2] + sums[3];
    }
    y[blockIdx.x * 128 + threadIdx.x] = sum;"""
    kernel = single(body, "int* y", block="[128]", grid="[4]")
    right = 128 * 32 * 4
    assert any(value != right for value in out_of(device, kernel, 512))
    safe = kernel.replace("+ sums[3];", "+ sums[3]; __syncthreads();")
    assert out_of(device, safe, 512) == [right] * 512


def test_threads_of_a_block_may_wait_for_each_other_through_atomics(device: EmulatedDevice) -> None:
    body = """
    __shared__ int turn;
    if (threadIdx.x == 0) turn = 0;
    __syncthreads();
    while (atomicAdd(&turn, 0) != 63 - threadIdx.x) {}
    y[threadIdx.x] = turn;
    atomicAdd(&turn, 1);"""
    assert out_of(device, single(body, "int* y", block="[64]"), 64) == list(range(63, -1, -1))


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ('asm volatile("membar.gl;");', "inline PTX"),
        ("nvcuda::wmma::mma_sync(0, 0, 0, 0);", "tensor cores"),
        ("cuda::barrier<cuda::thread_scope_block> b;", "cuda::"),
        ("test_entry<<<1, 1>>>(y);", "<<<"),
        ("auto c = cooperative_groups::this_cluster();", "clusters"),
        ("tex2D<float>(0, 1, 2);", "textures"),
    ],
)
def test_code_that_needs_a_gpu_is_unsupported_and_not_an_error(device: EmulatedDevice, code: str, what: str) -> None:
    error = rejected(device, single(code, "int* y"), Y)
    assert error.outcome == Outcome.UNSUPPORTED
    assert what in error.log


@pytest.mark.parametrize("header", ["mma.h", "cuda/barrier", "cub/cub.cuh", "cuda_pipeline.h"])
def test_headers_that_need_a_gpu_are_unsupported(device: EmulatedDevice, header: str) -> None:
    error = rejected(device, single("", "int* y").replace("cuda_fp16.h", header), Y)
    assert error.outcome == Outcome.UNSUPPORTED
    assert header in error.log


@pytest.mark.parametrize(
    "line",
    ["#include <iostream>", "# include <sys/mman.h>", "#/* */include <fstream>", "%:include <thread>", "#include FILE",
     "#inc\\\nlude <unistd.h>", "#include_next <stdio.h>", '#include "../../etc/passwd"'],
)  # fmt: skip
def test_no_include_reaches_the_host(device: EmulatedDevice, line: str) -> None:
    error = rejected(device, single("", "int* y").replace("#include <cuda_fp16.h>", line), Y)
    assert error.outcome == Outcome.COMPILE_ERROR


def test_words_in_comments_and_strings_do_not_count(device: EmulatedDevice) -> None:
    body = """
    // asm, <<<, cuda::barrier
    /* wmma::x
    #include <thread>
    */
    if (n > 5) printf("asm(%d) <<<\\n", n);
    y[0] = 1'000;"""
    y = torch.zeros(1, dtype=I32)
    run(device, single(body, "int* y, int n"), {"y": y}, {"n": 1})
    assert y.tolist() == [1000]


def test_a_function_without_global_is_not_an_entry(device: EmulatedDevice) -> None:
    error = rejected(device, single("y[0] = 1;", "int* y").replace('extern "C" __global__', 'extern "C" __device__'), Y)
    assert error.outcome == Outcome.MALFORMED


def test_an_entry_in_an_extern_c_block_with_launch_bounds_is_found(device: EmulatedDevice) -> None:
    kernel = single("y[0] = 1;", "int* y").replace(
        'extern "C" __global__ void', 'extern "C" {\n__global__ void __launch_bounds__(32, 2)'
    )
    assert out_of(device, kernel + "}\n", 1) == [1]


def test_an_entry_made_by_a_macro_is_found(device: EmulatedDevice) -> None:
    kernel = single("y[0] = 1;", "int* y").replace(
        'extern "C" __global__ void test_entry(int* y)',
        '#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)\nKERNEL(test_entry, int* y)',
    )
    assert out_of(device, kernel, 1) == [1]


def test_a_second_compiler_can_refuse_the_kernel() -> None:
    def refuse(_: object) -> NoReturn:
        raise RejectedError(Outcome.COMPILE_ERROR, "not for a GPU")

    error = rejected(EmulatedDevice(also_compile=refuse), single("y[0] = 1;", "int* y"), Y)
    assert error.log == "not for a GPU"


def test_a_long_compile_log_is_cut(device: EmulatedDevice) -> None:
    error = rejected(device, single("\n".join(f"missing_{i}();" for i in range(500)), "int* y"), Y)
    assert error.outcome == Outcome.COMPILE_ERROR
    assert len(error.log) < 4100


def test_large_local_arrays_fit_on_a_threads_stack(device: EmulatedDevice) -> None:
    body = """
    float held[8192];
    for (int i = 0; i < 8192; ++i) held[i] = (float)(i + threadIdx.x);
    __syncthreads();
    y[threadIdx.x] = (int)held[(y[threadIdx.x] + 8191) % 8192];"""
    assert out_of(device, single(body, "int* y"), 32) == [8191 + t for t in range(32)]


@pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="ziglang is not installed")
def test_ziglang_replaces_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    body = "y[threadIdx.x] = __shfl_xor_sync(0xffffffff, (int)threadIdx.x, 1) + __float2int_rn(expf(0.f));"
    assert out_of(EmulatedDevice(), single(body, "int* y"), 32) == [(t ^ 1) + 1 for t in range(32)]


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError) as caught:
        EmulatedDevice().compile(bound(single("", "int* y"), {"y": torch.zeros(1, dtype=I32)}))
    assert "ziglang" in caught.value.hint


def test_without_cuda_headers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "cuda_include_dirs", lambda: ())
    with pytest.raises(UserError) as caught:
        EmulatedDevice().compile(bound(single("", "int* y"), {"y": torch.zeros(1, dtype=I32)}))
    assert "CUDA_HOME" in caught.value.hint


def test_headers_that_the_cuda_device_accepts_are_accepted() -> None:
    assert set(EMPTY_HEADERS) <= source.HEADERS

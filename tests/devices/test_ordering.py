"""Order among the blocks of a launch, read from the compiled code: refused code, and code that only looks similar."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("cupy")

from each import each
from unordered import POINT, bound

from archive.binding import bind
from archive.kernel import Bound, parse
from archive.records import Outcome
from evolve.devices.cuda import ordering
from evolve.devices.cuda.compiler import Cubin, compile_ahead, compile_cubin
from evolve.devices.device import RejectedError
from evolve.devices.emulated.device import EmulatedDevice

LAST = "__syncthreads(); if (!last) return; for (int i = threadIdx.x; i < 64; i += 128) y[i] = __ldcg(&parts[i]);"
READ = "__syncthreads(); y[blockIdx.x] = __ldcg(&parts[(blockIdx.x + 1) % 64]);"
ARRIVE = "parts[blockIdx.x] = x[blockIdx.x]; __threadfence(); atomicAdd(count, 1);"
PLACE = "__shared__ int place; if (threadIdx.x == 0) place = atomicAdd(count, 1); __syncthreads();"
ACQUIRE = """__device__ int seen(const int* at) {
    int value; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory"); return value;
}"""
RELEASE = (
    '__device__ void add(int* at) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(at) : "memory"); }'
)


def compiled(kernel: Bound) -> Cubin:
    return compile_cubin(kernel, "sm_90a")


def thread_0(body: str) -> str:
    return f"if (threadIdx.x == 0) {{ {body} }}"


def counted(body: str) -> str:
    return f"__shared__ bool last; {thread_0(body)} {LAST}"


UNFENCED = {
    "no fence": counted("parts[blockIdx.x] = x[blockIdx.x]; last = atomicAdd(count, 1) == 63;"),
    "a fence before the write": counted(
        "__threadfence(); parts[blockIdx.x] = x[blockIdx.x]; last = atomicAdd(count, 1) == 63;"
    ),
    "a fence of the block": counted(
        "parts[blockIdx.x] = x[blockIdx.x]; __threadfence_block(); last = atomicAdd(count, 1) == 63;"
    ),
    "a volatile write": counted("*(volatile float*)&parts[blockIdx.x] = x[0]; last = atomicInc(count, 63) == 63;"),
    "a write by atomics": counted("atomicAdd(&parts[blockIdx.x], x[0]); last = atomicSub(count, 1) == -63;"),
    "a barrier of the block": counted("").replace(
        "if (threadIdx.x == 0) {  }",
        "parts[blockIdx.x * 8 + threadIdx.x % 8] = x[0]; __syncthreads();"
        + thread_0("last = atomicAdd(count, 1) == 63;"),
    ),
    "a mark set in a branch": (
        "__shared__ int mark; if (threadIdx.x == 0) { mark = 0; parts[blockIdx.x] = x[0];"
        "if (atomicAdd(count, 1) == 63) mark = 1; } __syncthreads(); if (mark == 0) return; y[0] = __ldcg(&parts[n]);"
    ),
    "a fence on one way alone": counted(
        "parts[blockIdx.x] = x[0]; if (n > 7) __threadfence(); last = atomicAdd(count, 1) == 63;"
    ),
}


@each(UNFENCED)
def test_a_count_of_blocks_without_a_fence_is_refused(body: str) -> None:
    error = rejected(bound(body.replace("atomicInc(count", "atomicInc((unsigned*)count")))
    assert "`parts` before the count in `count`" in error.log
    assert "__threadfence()" in error.log


def rejected(kernel: Bound) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        compiled(kernel)
    assert caught.value.outcome is Outcome.UNSAFE
    return caught.value


WAITING = {
    "a volatile load": "while (*(volatile int*)count < 64) {}",
    "an atomic that adds nothing": "while (atomicAdd(count, 0) < 64) __nanosleep(50);",
    "an atomic that sets no bit": "while (atomicOr(count, 0) != 64) {}",
    "a swap of equals": "while (atomicCAS(count, 64, 64) != 64) {}",
    "a load past the first cache": "while (__ldcg(count) < 64) __nanosleep(50);",
    "a limited number of tries": "for (int i = 0; i < 1000 && *(volatile int*)count < 64; ++i) {}",
    "a pause that grows": "for (int ns = 8; *(volatile int*)count < 64; ns = min(2 * ns, 256)) __nanosleep(ns);",
    "a load that acquires": "while (seen(count) < 64) {}",
    "a generation": (
        "int old = *(volatile int*)&count[1]; if (atomicAdd(count, 1) == 63) atomicAdd(&count[1], 1);"
        "else while (*(volatile int*)&count[1] == old) {}"
    ),
    "rounds counted by the counter": (
        "int mine = atomicAdd(count, 1); int goal = (mine / 64 + 1) * 64; while (*(volatile int*)count < goal) {}"
    ),
    "a look at every flag": (
        "atomicExch(&flags[blockIdx.x], 1); bool all; do { all = true;"
        "for (int i = 0; i < 64; ++i) all = all && ((volatile int*)flags)[i]; } while (!all);"
    ),
}


@each(WAITING)
def test_waiting_for_blocks_that_may_not_have_started_is_refused(wait: str) -> None:
    body = thread_0(f"{ARRIVE} {wait} __threadfence();") + READ
    assert "`cooperative = true`" in rejected(bound(body, ACQUIRE)).log


@each(WAITING)
def test_blocks_that_all_run_at_once_may_wait_for_each_other(wait: str) -> None:
    body = thread_0(f"{ARRIVE} {wait} __threadfence();") + READ
    assert not compiled(bound(body, ACQUIRE, cooperative=True)).log
    assert not compiled(bound(body, ACQUIRE, blocks=1)).log


@pytest.mark.parametrize("before", ["flags[blockIdx.x - 1] == 0", "flags[0] != blockIdx.x"])
def test_waiting_for_lower_block_numbers_is_refused_with_the_way_to_number_blocks(before: str) -> None:
    wait = f"if (blockIdx.x > 0) while (((volatile int*)flags)[{before.removeprefix('flags[')}) {{}}"
    error = rejected(bound(thread_0(f"{wait} __threadfence(); atomicAdd(&flags[blockIdx.x % 9], 1);")))
    assert "ticket" in error.log


UNFENCED_FLAGS = {
    "a barrier of all": "parts[blockIdx.x] = x[0]; atomicAdd(count, 1); while (*(volatile int*)count < 64) {}",
    "a flag": (
        "parts[blockIdx.x] = x[0]; ((volatile int*)flags)[blockIdx.x] = 1; while (flags[n] == 0) __threadfence();"
    ),
    "values and a flag in one buffer": (
        "sums[64 + blockIdx.x] = x[0]; atomicAdd((int*)sums, 1); while (*(volatile int*)sums < 64) {}"
        "parts[blockIdx.x] = __ldcg(&sums[64 + n]);"
    ),
    "a lock": (
        "while (atomicCAS(count, 0, 1) != 0) {} __threadfence(); parts[n] = __ldcg(&parts[n]) + x[0];"
        "atomicExch(count, 0);"
    ),
}


@each(UNFENCED_FLAGS)
def test_a_flag_without_a_fence_is_refused_even_if_all_blocks_run(body: str) -> None:
    assert re.search(r"`(parts|sums)` before that to", rejected(bound(thread_0(body) + READ, cooperative=True)).log)


def test_a_count_that_does_not_wait_for_the_other_threads_is_refused() -> None:
    write = "parts[blockIdx.x * 128 + threadIdx.x] = x[threadIdx.x]; __threadfence();"
    count = f"{thread_0('last = atomicAdd(count, 1) == 63;')} {LAST}"
    assert "thread 0 counts" in rejected(bound(f"__shared__ bool last; {write} {count}")).log
    assert not compiled(bound(f"__shared__ bool last; {write} __syncthreads(); {count}")).log


HONEST = {
    "a count with a fence": counted("parts[blockIdx.x] = x[0]; __threadfence(); last = atomicAdd(count, 1) == 63;"),
    "a fence of every thread": (
        "__shared__ bool last; parts[blockIdx.x * 8 + threadIdx.x % 8] = x[0]; __threadfence(); __syncthreads();"
        + thread_0("last = atomicAdd(count, 1) == 63;") + LAST
    ),
    "a value of the first lane of the first warp": (
        "__shared__ bool last; if (threadIdx.x < 32) { if (threadIdx.x % 32 == 0) { parts[blockIdx.x] = x[0];"
        "__threadfence(); } }" + thread_0("last = atomicAdd(count, 1) == 63;") + LAST
    ),
    "a fence after the block's barrier": (
        "__shared__ bool last; parts[blockIdx.x * 8 + threadIdx.x % 8] = x[0]; __syncthreads();"
        + thread_0("__threadfence(); last = atomicAdd(count, 1) == 63;") + LAST
    ),
    "tickets of lower blocks": PLACE + thread_0(
        "if (place > 0) { while (((volatile int*)flags)[place - 1] == 0) {} __threadfence(); }"
        "parts[place] = x[place]; __threadfence(); ((volatile int*)flags)[place] = 1;"
    ),
    "turns of lower tickets": PLACE + thread_0(
        "while (*(volatile int*)&count[1] != place) {} __threadfence(); parts[0] = __ldcg(parts) + x[place];"
        "__threadfence(); atomicAdd(&count[1], 1);"
    ),
    "a lock": thread_0(
        "while (atomicCAS(count, 0, 1) != 0) {} __threadfence(); parts[0] = __ldcg(parts) + x[0];"
        "__threadfence(); atomicExch(count, 0);"
    ),
    "a lock by exchange": thread_0(
        "while (atomicExch(count, 1) != 0) __nanosleep(20); __threadfence(); parts[0] = __ldcg(parts) + x[0];"
        "__threadfence(); *(volatile int*)count = 0;"
    ),
    "tiles handed out": (
        "__shared__ int tile; for (;;) { __syncthreads();" + thread_0("tile = atomicAdd(count, 1);") +
        "__syncthreads(); if (tile >= n) return; parts[tile] = x[tile]; __syncthreads(); y[tile] = parts[tile]; }"
    ),
    "a maximum by compare and swap": (
        "parts[blockIdx.x] = x[0]; int seen = flags[0]; while (__int_as_float(seen) < x[n]) {"
        "int was = atomicCAS(flags, seen, __float_as_int(x[n])); if (was == seen) break; seen = was; }"
        "y[blockIdx.x] = parts[blockIdx.x];"
    ),
    "places of a list": (
        "int at = atomicAdd(&count[0], 1); if (at < n) flags[at] = threadIdx.x; y[blockIdx.x] = flags[blockIdx.x];"
    ),
    "a table with open addresses": (
        "int slot = n & 4095; for (;;) { int held = ((volatile int*)flags)[slot]; if (held == n) break;"
        "if (held == 0 && atomicCAS(&flags[slot], 0, n) == 0) break; slot = (slot + 1) & 4095; } y[slot] = 1;"
    ),
    "a flag that ends early": (
        "for (int i = threadIdx.x; i < n; i += 128) { if (x[0] > 0) return; y[i] = x[i]; parts[i] = y[i]; }"
    ),
    "a count within the block": counted(
        "parts[blockIdx.x] = x[0]; last = atomicAdd_block(&count[0], 1) == 63;"
    ),
    "a loop that may end early": (
        "float s = 0; for (int i = 0; i < n && *(volatile int*)count == 0; ++i) s += x[i]; y[0] = s; count[0] = 1;"
    ),
    "a smallest distance": (
        "parts[blockIdx.x] = x[0]; if (atomicMin(flags, n) > n) y[blockIdx.x] = parts[n];"
    ),
    "counts that no block reads": (
        "parts[blockIdx.x] = x[0]; atomicAdd(&flags[threadIdx.x], 1); y[blockIdx.x] = parts[blockIdx.x] + x[1];"
    ),
    "sums read volatile": (
        "float s = 0; for (int i = 0; i < n; ++i) s += ((volatile float*)sums)[i]; y[0] = s; sums[n] = s;"
    ),
    "flags among warps": (
        "__shared__ volatile int ready; ready = 0; __syncthreads(); if (threadIdx.x == 0) { parts[0] = x[0];"
        "__threadfence_block(); ready = 1; } if (threadIdx.x == 64) { while (ready == 0) {} y[0] = x[1]; }"
    ),
    "totals and marks in one word": PLACE + thread_0(
        "float before = 0; if (place > 0) { int word; while ((word = ((volatile int*)flags)[place - 1]) == 0) {}"
        "before = __int_as_float(word); } y[place] = before;"
        "((volatile int*)flags)[place] = __float_as_int(before + x[place]);"
    ),
    "a linked list": "int at = 1; while (at > 0) { y[at] = x[at]; at = ((volatile int*)flags)[at]; } flags[n] = 3;",
}  # fmt: skip


@each(HONEST)
def test_code_that_only_looks_unordered_is_accepted(body: str) -> None:
    assert not compiled(bound(body)).log


def test_the_blocks_of_a_cluster_may_wait_for_each_other_but_cause_a_warning() -> None:
    body = thread_0(f"{ARRIVE} while (*(volatile int*)count < 64) {{}} __threadfence();") + READ
    text = bound(body).kernel.text.replace("__global__ void", "__global__ void __cluster_dims__(2, 1, 1)")
    assert "warning: launch 0" in compiled(replace(bound(body), kernel=parse(text))).log


def test_a_barrier_whose_counter_is_reset_for_later_is_accepted() -> None:
    wait = "atomicAdd(&count[0], 1); while (*(volatile int*)&count[0] < 64) {}"
    body = f"{ARRIVE.partition('atomicAdd')[0]} {wait} __threadfence(); sums[blockIdx.x] = x[n]; count[1] = 0;"
    assert not compiled(bound(thread_0(body) + READ + " y[0] = __ldcg(&sums[n]);", cooperative=True)).log


def test_atomics_that_release_and_loads_that_acquire_need_no_fence() -> None:
    body = thread_0("parts[blockIdx.x] = x[0]; add(count); while (seen(count) < 64) {}") + READ
    assert not compiled(bound(body, ACQUIRE + RELEASE, cooperative=True)).log


READ_ONLY = {
    "of the next thread's value": "y[threadIdx.x] = x[0]; __syncthreads(); sums[0] = __ldg(&y[threadIdx.x ^ 1]);",
    "in the next round": "for (int i = threadIdx.x; i < n; i += 128) y[i + 128] = __ldg(&y[i]) + x[i];",
    "of four values": "parts[threadIdx.x] = x[0]; __syncthreads(); y[0] = __ldg((const float4*)parts + threadIdx.x).x;",
    "in PTX": (
        'sums[threadIdx.x] = x[0]; __syncthreads(); float v; asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) :'
        ' "l"(sums + 5)); y[0] = v;'
    ),
}


@each(READ_ONLY)
def test_a_read_only_load_of_a_tensor_that_the_launch_writes_is_refused(body: str) -> None:
    assert "read-only load" in rejected(bound(body)).log


def test_a_read_only_load_of_a_buffer_passed_twice_is_refused() -> None:
    text = bound("kept[threadIdx.x] = x[0]; __syncthreads(); y[0] = parts[threadIdx.x ^ 1];").kernel.text
    text = text.replace('"sums"', '"parts"')
    text = text.replace("float* parts, float* sums", "const float* __restrict__ parts, float* __restrict__ kept")
    assert "read-only load" in rejected(bind(parse(text), POINT)).log


def test_a_read_only_load_of_a_zeroed_buffer_before_it_is_written_causes_a_warning() -> None:
    cubin = compiled(bound("const int i = blockIdx.x * 128 + threadIdx.x; sums[i] = __ldg(&sums[i]) + x[i];"))
    assert "warning" in cubin.log
    assert "read-only load" in cubin.log


def test_a_tensor_that_an_earlier_launch_may_have_stored_by_a_tensor_map_may_be_read_with_a_warning() -> None:
    plain = bound("const int i = blockIdx.x * 128 + threadIdx.x; parts[i] = __ldg(&parts[i]) + x[i];").kernel.text
    stores = (
        '[tensor_maps]\nparts_map = { tensor = "parts", shape = [64], box = [64] }\n\n[[launch]]\nentry = "store"\n'
        'grid = [1]\nblock = [32]\nargs = ["parts_map"]\n\n[[launch]]'
    )
    after = plain.replace("[[launch]]", stores, 1)
    entry = 'extern "C" __global__ void store(const __grid_constant__ CUtensorMap parts_map) {}\n'
    assert "read-only load" in rejected(bind(parse(plain), POINT)).log
    assert "read-only load" in compiled(bind(parse(after + entry), POINT)).log


def test_the_emulated_device_repeats_the_warnings() -> None:
    device = EmulatedDevice(also_compile=partial(compile_cubin, arch="sm_90a"))
    assert "read-only load" in device.compile(bound("sums[threadIdx.x] = __ldg(&sums[threadIdx.x]) + x[n];")).log


def test_inputs_may_be_read_by_read_only_loads() -> None:
    assert not compiled(bound("y[threadIdx.x] = __ldg(&x[threadIdx.x]);")).log


def test_a_plain_load_after_a_signal_without_a_fence_causes_a_warning() -> None:
    body = thread_0(f"{ARRIVE} while (*(volatile int*)count < 64) {{}}") + READ.replace("__ldcg(&parts", "*(&parts")
    log = compiled(bound(body, cooperative=True)).log
    assert "warning" in log
    assert "__ldcg" in log


def test_the_place_is_the_line_of_the_kernels_text() -> None:
    kernel = bound("parts[n] = x[0];\n__shared__ bool last; last = atomicAdd(count, 1) == 63;" + LAST)
    line = 1 + kernel.kernel.text.split("\n").index("__shared__ bool last; last = atomicAdd(count, 1) == 63;" + LAST)
    assert f"launch 0, kernel.cu:{line}: " in rejected(kernel).log


def test_code_that_another_process_has_compiled_is_read_again_for_this_plan(tmp_path: Path) -> None:
    body = thread_0(f"{ARRIVE} while (*(volatile int*)count < 64) {{}} __threadfence();") + READ
    compile_ahead(bound(body, blocks=1), "sm_90a", tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(RejectedError, match="cooperative"):
        compile_cubin(bound(body), "sm_90a", tmp_path)
    assert not list(tmp_path.iterdir())


def test_code_that_another_process_has_compiled_and_read_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = thread_0(f"{ARRIVE} while (*(volatile int*)count < 64) {{}} __threadfence();") + READ
    text = bound(body).kernel.text.replace("__global__ void", "__global__ void __cluster_dims__(4, 1, 1)")
    kernel = replace(bound(body), kernel=parse(text))
    warned = compile_ahead(kernel, "sm_90a", tmp_path).log
    monkeypatch.setattr(ordering, "check", lambda *_: pytest.fail("the PTX was read again"))
    assert compile_cubin(kernel, "sm_90a", tmp_path).log == warned
    assert "warning: launch 0" in warned

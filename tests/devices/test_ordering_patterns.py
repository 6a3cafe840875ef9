"""Patterns of cooperation among blocks: accepted when complete, and refused without one of their parts."""

import pytest

pytest.importorskip("cupy")

from each import each
from unordered import bound

from archive.records import Outcome
from evolve.devices.cuda.compiler import compile_cubin
from evolve.devices.device import RejectedError

MEET = """__device__ void meet(int* count, int blocks) {
    __syncthreads();
    if (threadIdx.x == 0) {
        volatile int* round = count + 1;
        const int own = *round;
        __threadfence();
        if (atomicAdd(count, 1) == blocks - 1) {
            *(volatile int*)count = 0;
            __threadfence();
            *round = own + 1;
        } else {
            while (*round == own) {}
        }
        __threadfence();
    }
    __syncthreads();
}"""
STEPS = """for (int step = 0; step < n; ++step) {
    float sum = 0;
    for (int j = threadIdx.x; j < 64; j += 128) sum += __ldcg(&parts[step % 2 * 64 + j]);
    parts[(1 - step % 2) * 64 + blockIdx.x] = tanhf(sum + x[step]);
    y[step * 64 + blockIdx.x] = sum;
    meet(count, gridDim.x);
}"""
LOOK_BACK = """__shared__ int tile;
if (threadIdx.x == 0) tile = atomicAdd(count, 1);
__syncthreads();
const float own = x[tile * 128 + threadIdx.x];
if (threadIdx.x >= 32) return;
float before = 0;
for (int at = tile - 1 - (int)threadIdx.x;; at -= 32) {
    int state;
    do state = at >= 0 ? ((volatile int*)flags)[at] : 2;
    while (__any_sync(~0u, state == 0));
    __threadfence();
    before += at >= 0 ? ((volatile float*)sums)[at] : 0.0f;
    if (__ballot_sync(~0u, state == 2)) break;
}
if (threadIdx.x == 0) {
    ((volatile float*)sums)[tile] = own + before;
    __threadfence();
    ((volatile int*)flags)[tile] = 2;
    y[tile] = before;
}"""
KEYS = """__shared__ bool last;
unsigned long long key = __float_as_uint(x[blockIdx.x * 128 + threadIdx.x]);
if (key > 9) atomicMax((unsigned long long*)sums, key);
__threadfence();
__syncthreads();
if (threadIdx.x == 0) last = atomicAdd(count, 1) == 63;
__syncthreads();
if (last && threadIdx.x == 0) {
    y[0] = __uint_as_float(*(volatile unsigned*)sums);
    count[0] = 0;
}"""
COLUMNS = """__shared__ bool last;
float sum = 0;
for (int row = blockIdx.x; row < n; row += 32) sum += x[row * 128 + threadIdx.x];
parts[blockIdx.x * 128 + threadIdx.x] = sum;
__threadfence();
__syncthreads();
if (!threadIdx.x) last = atomicAdd(count, 1) + 1 == gridDim.x;
__syncthreads();
if (!last) return;
sum = 0;
for (int block = 0; block < 32; ++block) sum += __ldcg(&parts[block * 128 + threadIdx.x]);
y[threadIdx.x] = sum;"""
HALVES = """parts[blockIdx.x] = x[0];
__syncthreads();
if (threadIdx.x == 0) {
    __threadfence();
    const unsigned add = blockIdx.x == 0 ? 0x80000000u - 63 : 1, old = atomicAdd((unsigned*)count, add);
    while (((*(volatile unsigned*)count ^ old) & 0x80000000u) == 0) {}
    __threadfence();
}
__syncthreads();
y[blockIdx.x] = __ldcg(&parts[63 - blockIdx.x]);"""
EXCHANGED = MEET.replace("*(volatile int*)count = 0;", "atomicExch(count, 0);")
RIGHT = {
    "steps with a barrier": (STEPS, MEET, True),
    "a barrier whose counter is exchanged": (STEPS, EXCHANGED, True),
    "a barrier by the highest bit": (HALVES, "", True),
    "a warp looks back": (LOOK_BACK, "", False),
    "greatest key": (KEYS, "", False),
    "sums of columns": (COLUMNS, "", False),
}
WRONG = {
    "steps with a barrier without a fence": (STEPS, MEET.replace("__threadfence();", "", 1), True),
    "steps with a barrier of some blocks": (STEPS, MEET, False),
    "a barrier by the highest bit without a fence": (HALVES.replace("__threadfence();", "", 1), "", True),
    "a barrier by the highest bit of some blocks": (HALVES, "", False),
    "a warp looks back at lower blocks": (LOOK_BACK.replace("atomicAdd(count, 1)", "blockIdx.x"), "", False),
    "a warp looks back without a fence": (
        LOOK_BACK.replace("before;\n    __threadfence();", "before;"), "", False,
    ),
    "greatest key without a fence": (KEYS.replace("__threadfence();", ""), "", False),
    "sums of columns without a fence": (COLUMNS.replace("__threadfence();", ""), "", False),
    "sums of columns without a barrier": (COLUMNS.replace("__syncthreads();", "", 1), "", False),
}  # fmt: skip


@each(RIGHT)
def test_blocks_that_work_together_in_order_are_accepted(body: str, before: str, cooperative: bool) -> None:
    assert not compile_cubin(bound(body, before, cooperative=cooperative), "sm_90a").log


@each(WRONG)
def test_blocks_that_work_together_without_order_are_refused(body: str, before: str, cooperative: bool) -> None:
    with pytest.raises(RejectedError) as caught:
        compile_cubin(bound(body, before, cooperative=cooperative), "sm_90a")
    assert caught.value.outcome is Outcome.UNSAFE

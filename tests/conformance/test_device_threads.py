"""Cooperation of threads, which must work the same on every device: blocks, shared memory, warps."""

import pytest
import torch
from device_kernels import EVERY_DEVICE, made, out_of, single

from evolve.devices.device import Device

F32 = torch.float32


@pytest.fixture(scope="module", params=EVERY_DEVICE)
def device(request: pytest.FixtureRequest) -> Device:
    return made(request.param)


def test_a_grid_and_a_block_have_three_dimensions(device: Device) -> None:
    body = """
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int threads = blockDim.x * blockDim.y * blockDim.z;
    y[block * threads + thread] = blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z
        + 1000 * threadIdx.x + 10000 * threadIdx.y + 100000 * threadIdx.z;"""
    values = out_of(device, single(body, "int* y", block="[4, 3, 2]", grid="[2, 3, 4]"), 24 * 24)
    expected = [
        bx + 10 * by + 100 * bz + 1000 * tx + 10000 * ty + 100000 * tz
        for bz in range(4) for by in range(3) for bx in range(2)
        for tz in range(2) for ty in range(3) for tx in range(4)
    ]  # fmt: skip
    assert values == expected


def test_static_shared_memory_is_shared_by_the_block(device: Device) -> None:
    body = """
    __shared__ int tile[4][65];
    tile[threadIdx.y][threadIdx.x] = threadIdx.x * 4 + threadIdx.y;
    __syncthreads();
    int t = threadIdx.y * 64 + threadIdx.x;
    y[t] = tile[t % 4][t / 4];"""
    assert out_of(device, single(body, "int* y", block="[64, 4]"), 256) == list(range(256))


def test_dynamic_shared_memory_may_exceed_48_kilobytes(device: Device) -> None:
    body = """
    extern __shared__ __align__(16) unsigned char raw[];
    float* values = reinterpret_cast<float*>(raw);
    for (int i = threadIdx.x; i < 50000; i += blockDim.x) values[i] = (float)i;
    __syncthreads();
    y[threadIdx.x] = values[49999 - threadIdx.x];"""
    values = out_of(device, single(body, "float* y", block="[128]", more="shared = 200000"), 128, F32)
    assert values == [49999 - t for t in range(128)]


def test_a_barrier_orders_every_step_of_a_block(device: Device) -> None:
    body = """
    extern __shared__ int s[];
    s[threadIdx.x] = 1;
    for (int step = 1; step < blockDim.x; step *= 2) {
        __syncthreads();
        int left = threadIdx.x >= step ? s[threadIdx.x - step] : 0;
        __syncthreads();
        s[threadIdx.x] += left;
    }
    y[threadIdx.x] = s[threadIdx.x];"""
    values = out_of(device, single(body, "int* y", block="[1000]", more="shared = 4000"), 1000)
    assert values == list(range(1, 1001))


def test_a_barrier_does_not_wait_for_threads_that_returned(device: Device) -> None:
    body = """
    if (threadIdx.x >= 64) return;
    __shared__ int s[64];
    s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];"""
    assert out_of(device, single(body, "int* y", block="[128]"), 64) == list(range(63, -1, -1))


def test_counting_barriers_give_every_thread_the_count(device: Device) -> None:
    body = """
    int count = __syncthreads_count(threadIdx.x % 3 == 0);
    int all = __syncthreads_and(threadIdx.x < 96);
    int any = __syncthreads_or(threadIdx.x == 95);
    y[threadIdx.x] = count * 100 + (all != 0) * 10 + (any != 0);"""
    assert out_of(device, single(body, "int* y", block="[96]"), 96) == [3211] * 96


@pytest.mark.parametrize("width", [32, 16, 8, 4])
def test_shuffles_move_values_within_their_width(device: Device, width: int) -> None:
    body = f"""
    int lane = threadIdx.x;
    y[lane] = __shfl_sync(0xffffffff, lane, 5, {width});
    y[lane + 32] = __shfl_up_sync(0xffffffff, lane, 3, {width});
    y[lane + 64] = __shfl_down_sync(0xffffffff, lane, 3, {width});
    y[lane + 96] = __shfl_xor_sync(0xffffffff, lane, 3, {width});"""
    first = [lane // width * width for lane in range(32)]
    expected = [first[lane] + 5 % width for lane in range(32)]
    expected += [lane - 3 if lane - 3 >= first[lane] else lane for lane in range(32)]
    expected += [lane + 3 if lane + 3 < first[lane] + width else lane for lane in range(32)]
    expected += [lane ^ 3 for lane in range(32)]
    assert out_of(device, single(body, "int* y"), 128) == expected


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("double", "threadIdx.x * 1.5"),
        ("long long", "threadIdx.x * 3ll << 33"),
        ("unsigned", "4000000000u + threadIdx.x"),
        ("__half", "__int2half_rn(threadIdx.x)"),
        ("__nv_bfloat16", "__int2bfloat16_rn(threadIdx.x)"),
        ("__half2", "__floats2half2_rn(threadIdx.x, 7.f)"),
        ("__nv_bfloat162", "__floats2bfloat162_rn(threadIdx.x, 7.f)"),
    ],
)
def test_every_type_that_cuda_can_shuffle_keeps_its_bits(device: Device, kind: str, make: str) -> None:
    body = f"""
    {kind} mine = {make}, want, got;
    got = __shfl_xor_sync(0xffffffff, mine, 1);
    want = __shfl_sync(0xffffffff, mine, threadIdx.x ^ 1);
    {kind} all[2] = {{got, want}};
    const unsigned char* bytes = (const unsigned char*)all;
    int same = 1;
    for (int i = 0; i < sizeof(mine); ++i) same &= bytes[i] == bytes[i + sizeof(mine)];
    const unsigned char* own = (const unsigned char*)&mine;
    int other = 0;
    for (int i = 0; i < sizeof(mine); ++i) other |= bytes[i] != own[i];
    y[threadIdx.x] = same + 2 * other;"""
    assert out_of(device, single(body, "int* y"), 32) == [3] * 32


def test_halves_of_a_warp_may_shuffle_on_their_own_at_the_same_time(device: Device) -> None:
    body = """
    int lane = threadIdx.x, value = lane;
    unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    if (lane < 16) {
        for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(mask, value, step);
    } else {
        for (int step = 1; step < 16; step *= 2) value = max(value, __shfl_xor_sync(mask, value, step));
    }
    y[lane] = value;"""
    assert out_of(device, single(body, "int* y"), 32) == [120] * 16 + [31] * 16


def test_lanes_outside_a_mask_can_do_something_else(device: Device) -> None:
    body = """
    int lane = threadIdx.x, value = 1;
    if (lane % 2) value = __reduce_add_sync(0xaaaaaaaa, lane);
    __syncwarp();
    y[lane] = __shfl_sync(0xffffffff, value, lane + 1);"""
    assert out_of(device, single(body, "int* y"), 32) == [256, 1] * 16


def test_votes_count_the_lanes_of_their_mask(device: Device) -> None:
    body = """
    int lane = threadIdx.x;
    unsigned ballot = __ballot_sync(0xffffffff, lane % 4 == 0);
    int any = __any_sync(0xffffffff, lane == 40), all = __all_sync(0xffffffff, lane < 32);
    unsigned match = __match_any_sync(0xffffffff, lane / 8);
    int same;
    unsigned everyone = __match_all_sync(0xffffffff, 5, &same);
    y[lane] = (ballot == 0x11111111u) + 2 * any + 4 * all + 8 * (match == 0xffu << lane / 8 * 8)
        + 16 * (everyone == 0xffffffffu) + 32 * same;"""
    assert out_of(device, single(body, "int* y"), 32) == [61] * 32


def test_reductions_cover_the_warp(device: Device) -> None:
    body = """
    unsigned lane = threadIdx.x;
    const unsigned all = 0xffffffff;
    unsigned parts[6] = {
        __reduce_add_sync(all, lane), __reduce_min_sync(all, lane + 3), __reduce_max_sync(all, lane),
        __reduce_and_sync(all, lane | 64), __reduce_or_sync(all, lane), __reduce_xor_sync(all, lane)};
    int low = __reduce_min_sync(0xffffffff, (int)lane - 40);
    if (lane < 6) y[lane] = parts[lane];
    if (lane == 6) y[lane] = low;"""
    assert out_of(device, single(body, "int* y"), 7) == [496, 3, 31, 64, 31, 0, -40]


def test_the_active_mask_names_the_lanes_of_a_branch(device: Device) -> None:
    body = """
    int lane = threadIdx.x;
    y[lane] = 0;
    if (lane >= 20) {
        unsigned mask = __activemask();
        y[lane] = __popc(mask) + __shfl_sync(mask, lane, __ffs(mask) - 1);
    }"""
    assert out_of(device, single(body, "int* y"), 32) == [0] * 20 + [32] * 12


TILES = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void test_entry(int* y) {
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    auto four = cg::tiled_partition<4>(block);
    int sum = threadIdx.x;
    for (int step = warp.size() / 2; step > 0; step /= 2) sum += warp.shfl_down(sum, step);
    sum = warp.shfl(sum, 0);
    block.sync();
    y[block.thread_rank()] = sum * 100 + four.shfl(four.thread_rank() * 10 + four.meta_group_rank() % 10, 3);
}
"""


def test_tiles_of_a_block_shuffle_among_themselves(device: Device) -> None:
    plan = '/*---\nop = "test"\n[[launch]]\nentry = "test_entry"\ngrid = [1]\nblock = [64]\nargs = ["y"]\n---*/\n'
    values = out_of(device, plan + TILES, 64)
    assert values == [(496 if t < 32 else 1520) * 100 + 30 + t // 4 % 10 for t in range(64)]

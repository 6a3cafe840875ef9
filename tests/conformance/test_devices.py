"""What every device must do, the same for the GPU and its emulation."""

import pytest
import torch
from device_kernels import bound, run, single

from archive.binding import Bound, IllegalError
from archive.kernel import parse
from archive.records import Outcome
from evolve.devices.device import Device, RejectedError
from evolve.devices.emulated.device import EmulatedDevice

F32, I32, I64 = torch.float32, torch.int32, torch.int64


@pytest.fixture(scope="module", params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """Every device that this machine has."""
    if request.param == "emulated":
        return EmulatedDevice()
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    from evolve.devices.cuda.device import CudaDevice

    return CudaDevice()


def rejected(device: Device, kernel: str, tensors: dict[str, torch.Tensor], **dims: float) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        run(device, kernel, tensors, dims)
    return caught.value


def out_of(device: Device, kernel: str, size: int, dtype: torch.dtype = I32, **dims: float) -> list[float]:
    """The values that a kernel with the one tensor `y` writes."""
    y = torch.zeros(size, dtype=dtype)
    run(device, kernel, {"y": y}, dims)
    values: list[float] = y.tolist()
    return values


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


def test_dynamic_shared_memory_may_take_more_than_48_kilobytes(device: Device) -> None:
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


def test_counting_barriers_tell_every_thread(device: Device) -> None:
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
def test_every_type_that_cuda_shuffles_keeps_its_bits(device: Device, kind: str, make: str) -> None:
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


def test_lanes_left_out_of_a_mask_do_something_else(device: Device) -> None:
    body = """
    int lane = threadIdx.x, value = 1;
    if (lane % 2) value = __reduce_add_sync(0xaaaaaaaa, lane);
    __syncwarp();
    y[lane] = __shfl_sync(0xffffffff, value, lane + 1);"""
    assert out_of(device, single(body, "int* y"), 32) == [256, 1] * 16


def test_votes_see_the_lanes_of_their_mask(device: Device) -> None:
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


def test_integer_atomics_lose_nothing(device: Device) -> None:
    body = """
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&y[0], 1);
    atomicSub(&y[1], 2);
    atomicMax(&y[2], t);
    atomicMin(&y[3], -t);
    atomicOr(&y[4], 1 << t % 30);
    atomicXor(&y[5], t);
    atomicInc((unsigned*)&y[6], 9);
    int old = y[7], seen;
    do { seen = old; old = atomicCAS(&y[7], seen, seen + 3); } while (old != seen);
    atomicAnd(&y[8], ~(1 << t % 8));
    atomicExch(&y[9], 42);"""
    y = torch.zeros(10, dtype=I32)
    y[8] = 511
    run(device, single(body, "int* y", block="[256]", grid="[20]"), {"y": y})
    xor = 0
    for t in range(5120):
        xor ^= t
    assert y.tolist() == [5120, -10240, 5119, -5119, 2**30 - 1, xor, 0, 15360, 256, 42]


def test_floating_point_atomics_add(device: Device) -> None:
    body = """
    atomicAdd(&f[0], 0.5f);
    atomicAdd(&d[0], 0.25);
    atomicAdd((__half2*)h, __floats2half2_rn(1.f, 2.f));
    atomicAdd((__nv_bfloat162*)b, __floats2bfloat162_rn(1.f, 2.f));"""
    f, d = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    h, b = torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.bfloat16)
    run(device, single(body, "float* f, double* d, __half* h, __nv_bfloat16* b"), {"f": f, "d": d, "h": h, "b": b})
    assert (f.tolist(), d.tolist(), h.tolist(), b.tolist()) == ([16], [8], [32, 64], [32, 64])


def test_64_bit_atomics_carry(device: Device) -> None:
    body = """
    unsigned long long* u = (unsigned long long*)y;
    atomicAdd(&u[0], 1ull << 31);
    atomicMax(&u[1], (unsigned long long)threadIdx.x << 40);"""
    assert out_of(device, single(body, "long long* y"), 2, I64) == [32 << 31, 31 << 40]


@pytest.mark.parametrize(("kind", "dtype"), [("__half", torch.float16), ("__nv_bfloat16", torch.bfloat16)])
def test_eight_16_bit_values_load_at_once(device: Device, kind: str, dtype: torch.dtype) -> None:
    body = f"""
    uint4 raw = *reinterpret_cast<const uint4*>(x + 8 * threadIdx.x);
    {kind} values[8];
    *reinterpret_cast<uint4*>(values) = raw;
    float sum = 0.f;
    for (int i = 0; i < 8; ++i) sum += static_cast<float>(values[i]);
    y[threadIdx.x] = sum;"""
    x, y = torch.randn(256).to(dtype), torch.zeros(32)
    run(device, single(body, f"const {kind}* x, float* y"), {"x": x, "y": y})
    assert torch.allclose(y, x.float().view(32, 8).sum(1), atol=1e-5)


def test_pairs_of_bfloat16_convert_both_ways(device: Device) -> None:
    body = """
    float2 pair = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(x)[threadIdx.x]);
    pair.x *= 2.f; pair.y *= 3.f;
    reinterpret_cast<__nv_bfloat162*>(y)[threadIdx.x] = __float22bfloat162_rn(pair);"""
    x, y = torch.randn(64).bfloat16(), torch.zeros(64, dtype=torch.bfloat16)
    run(device, single(body, "const __nv_bfloat16* x, __nv_bfloat16* y"), {"x": x, "y": y})
    assert torch.equal(y, (x.float() * torch.tensor([2.0, 3.0] * 32)).bfloat16())


def test_16_bit_arithmetic_rounds_once(device: Device) -> None:
    body = """
    int i = threadIdx.x;
    y[i] = __hfma(x[i], x[i + 32], x[i + 64]);
    y[i + 32] = __hadd(x[i], x[i + 32]);
    y[i + 64] = __hmul(x[i], x[i + 32]);
    y[i + 96] = __hmax(x[i], x[i + 32]);"""
    x, y = torch.randn(96).half(), torch.zeros(128, dtype=torch.float16)
    run(device, single(body, "const __half* x, __half* y"), {"x": x, "y": y})
    a, b, c = x.double().view(3, 32)
    assert torch.equal(y, torch.cat([(a * b + c).half(), (a + b).half(), (a * b).half(), torch.maximum(a, b).half()]))


MATHS = {
    "expf(x)": torch.exp, "__expf(x)": torch.exp, "exp2f(x)": torch.exp2, "logf(fabsf(x))": lambda x: x.abs().log(),
    "__logf(fabsf(x))": lambda x: x.abs().log(), "tanhf(x)": torch.tanh, "erff(x)": torch.erf, "erfcf(x)": torch.erfc,
    "rsqrtf(fabsf(x))": lambda x: x.abs().rsqrt(), "sqrt(fabsf(x))": lambda x: x.abs().sqrt(),
    "sin(x)": torch.sin, "cosf(x)": torch.cos, "log1pf(fabsf(x))": lambda x: x.abs().log1p(), "expm1f(x)": torch.expm1,
    "exp10f(x)": lambda x: 10**x, "sinpif(x)": lambda x: torch.sin(x * torch.pi),
    "cospif(x)": lambda x: torch.cos(x * torch.pi), "normcdff(x)": torch.special.ndtr,
    "erfinvf(tanhf(x))": lambda x: torch.erfinv(torch.tanh(x)), "__fdividef(x, 3.f)": lambda x: x / 3,
    "__saturatef(x)": lambda x: x.clamp(0, 1), "powf(fabsf(x), 1.7f)": lambda x: x.abs() ** 1.7,
    "fmaxf(x, 0.f) + fminf(x, 1.f)": lambda x: x.clamp(min=0) + x.clamp(max=1),
    "rcbrtf(2.f)": lambda x: x * 0 + 2 ** (-1 / 3),
    "__frcp_rn(x)": lambda x: 1 / x, "__fmaf_rn(x, x, 1.f)": lambda x: x * x + 1,
    "copysignf(2.f, x)": lambda x: 2 * x.sign(),
    "atan2f(x, 2.f)": lambda x: torch.atan2(x, torch.full_like(x, 2.0)),
    "lgammaf(fabsf(x) + 1.f)": lambda x: torch.lgamma(x.abs() + 1),
    "__fsqrt_rn(fabsf(x))": lambda x: x.abs().sqrt(), "fmodf(x, 0.75f)": lambda x: torch.fmod(x, 0.75),
    "max(x, 0.5f) * abs(x)": lambda x: x.clamp(min=0.5) * x.abs(), "rintf(3.f * x)": lambda x: (3 * x).round(),
}  # fmt: skip


def test_mathematical_functions_agree_with_torch(device: Device) -> None:
    cases = "".join(f"out[{row} * 256 + i] = {text};\n" for row, text in enumerate(MATHS))
    body = f"int i = threadIdx.x;\nfloat x = given[i];\n{cases}"
    given = torch.linspace(-2.2, 2.3, 256)
    out = torch.zeros(len(MATHS), 256)
    run(device, single(body, "const float* given, float* out", block="[256]"), {"given": given, "out": out})
    expected = torch.stack([function(given.double()) for function in MATHS.values()])
    error = (out.double() - expected).abs() / (1 + expected.abs())
    worst = {text: value for text, value in zip(MATHS, error.amax(1).tolist(), strict=True) if value > 2e-6}
    assert worst == {}


def test_bit_intrinsics_agree_with_their_definition(device: Device) -> None:
    body = """
    int results[] = {
        __clz(1), __clz(0), __popc(0xf0f0), __ffs(8), (int)__brev(1u), (int)__byte_perm(0x33221100, 0x77665544, 0x5140),
        (int)__umulhi(1u << 31, 6u), __mulhi(-5, 1 << 30), __mul24(1000, -3), (int)__funnelshift_l(1u << 31, 1u, 1),
        (int)__funnelshift_r(1u, 1u, 1), __dp4a(0x01020304, 0x01010101, 5), __float_as_int(1.f),
        (int)__int_as_float(0x40400000),
        __float2int_rn(2.5f), __float2int_rz(-2.7f), __float2int_ru(2.1f), __float2int_rd(-2.1f), __float2int_rn(1e20f),
        __double2loint(1.5), __double2hiint(1.5), __popcll(~0ull), __clzll(1ll << 40),
        (int)__vadd4(0x01ff0203u, 0x01010101u)};
    for (int i = 0; i < 24; ++i) y[i] = results[i];"""
    assert out_of(device, single(body, "int* y", block="[1]"), 24) == [
        31, 32, 8, 4, -(2**31), 0x55114400, 3, -2, -3000, 3, -(2**31), 15, 0x3F800000, 3,
        2, -2, 3, -3, 2**31 - 1, 0, 0x3FF80000, 64, 23, 0x02000304,
    ]  # fmt: skip


def test_specialised_values_are_compile_time_constants(device: Device) -> None:
    body = 'static_assert(wide == 21474836480, "");\nint held[cols];\nheld[3] = (int)(wide >> 31);\ny[0] = held[3];'
    top = 'specialize = ["cols", "wide"]\n[let]\nwide = "cols * 3067833782 + 6"'
    assert out_of(device, single(body, "int* y", block="[1]", top=top), 1, cols=7) == [10]


def test_knobs_are_macros(device: Device) -> None:
    body = "#if WARPS == 4\ny[threadIdx.x / 32] = WARPS * 10;\n#endif"
    kernel = single(body, "int* y", block='["32 * WARPS"]', top="[knobs]\nWARPS = [4, 2]")
    assert out_of(device, kernel, 4) == [40] * 4


def test_integer_arguments_arrive_in_both_widths(device: Device) -> None:
    body = "y[0] = a; y[1] = b; y[2] = (long long)c;"
    kernel = single(body, "long long* y, int a, long long b, unsigned c", block="[1]")
    assert out_of(device, kernel, 3, I64, a=-5, b=-(2**40), c=2**32 - 1) == [-5, -(2**40), 2**32 - 1]


def test_float_arguments_arrive_in_both_widths(device: Device) -> None:
    values = out_of(
        device,
        single("y[0] = a; y[1] = b;", "double* y, float a, double b", block="[1]"),
        2,
        torch.float64,
        a=0.5,
        b=0.1,
    )
    assert values == [0.5, 0.1]


def test_a_list_of_tensors_travels_by_value(device: Device) -> None:
    text = """/*---
op = "test"
[[launch]]
entry = "sum_all"
grid = [1]
block = [32]
args = [["a", "b", "c"], "y", "n"]
---*/
extern "C" __global__ void sum_all(List<const float*, 3> inputs, float* y, int n) {
    float sum = 0.f;
    for (int i = 0; i < 3; ++i) sum += inputs[i][threadIdx.x];
    y[threadIdx.x] = sum * n;
}
"""
    tensors = {name: torch.randn(32) for name in "abc"} | {"y": torch.zeros(32)}
    run(device, text, tensors, {"n": 2})
    assert torch.allclose(tensors["y"], 2 * (tensors["a"] + tensors["b"] + tensors["c"]))


TWO_STEPS = """/*---
op = "test"
[workspace]
scratch = {{ shape = ["n"], dtype = "float32" }}
count = {{ shape = [1], dtype = "int32", zero = true }}
[[launch]]
entry = "first"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "scratch", "count", "n"]
[[launch]]
entry = "nothing"
grid = ["n - {n}"]
block = [64]
args = ["y"]
[[launch]]
entry = "second"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["scratch", "count", "y", "n"]
---*/
extern "C" __global__ void first(const float* x, scratch_t* scratch, int* count, int n) {{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) {{ scratch[i] = x[i] * 2; atomicAdd(count, 1); }}
}}
extern "C" __global__ void nothing(float* y) {{ y[threadIdx.x] = -1; }}
extern "C" __global__ void second(const scratch_t* scratch, const int* count, float* y, int n) {{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) y[i] = scratch[n - 1 - i] + *count;
}}
"""


def test_launches_run_in_order_share_the_workspace_and_skip_an_empty_grid(device: Device) -> None:
    x, y = torch.randn(100), torch.zeros(100)
    run(device, TWO_STEPS.format(n=100), {"x": x, "y": y}, {"n": 100})
    assert torch.equal(y, x.flip(0) * 2 + 100)


def test_a_zeroed_workspace_is_zeroed_at_every_launch(device: Device) -> None:
    x, y = torch.randn(100), torch.zeros(100)
    plan = bound(TWO_STEPS.format(n=100), {"x": x, "y": y}, {"n": 100})
    program = device.compile(plan)
    there = {name: tensor.to(device.torch_device) for name, tensor in {"x": x, "y": y}.items()}
    there["scratch"] = torch.zeros(100, device=device.torch_device)
    there["count"] = torch.full((1,), 9, dtype=I32, device=device.torch_device)
    for _ in range(3):
        device.run(program, there)
    assert there["count"].item() == 100


GRID_BARRIER = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void test_entry(int* y, int* total) {
    cg::grid_group grid = cg::this_grid();
    for (int round = 0; round < 5; ++round) {
        if (threadIdx.x == 0) atomicAdd(total, 1);
        grid.sync();
        if (threadIdx.x == 0) y[round * gridDim.x + blockIdx.x] = *(volatile int*)total;
        grid.sync();
    }
}
"""
SPIN_BARRIER = """
__device__ void wait_for_grid(int* counter, int target) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(counter, 1);
        while (*(volatile int*)counter < target) {}
        __threadfence();
    }
    __syncthreads();
}
extern "C" __global__ void test_entry(int* y, int* total, int* counter) {
    for (int round = 0; round < 5; ++round) {
        if (threadIdx.x == 0) atomicAdd(total, 1);
        wait_for_grid(counter, (2 * round + 1) * gridDim.x);
        if (threadIdx.x == 0) y[round * gridDim.x + blockIdx.x] = *(volatile int*)total;
        wait_for_grid(counter, (2 * round + 2) * gridDim.x);
    }
}
"""


def cooperative(source: str, args: str, grid: int) -> str:
    return (
        f'/*---\nop = "test"\n[workspace]\ncounter = {{ shape = [1], dtype = "int32", zero = true }}\n[[launch]]\n'
        f'entry = "test_entry"\ngrid = [{grid}]\nblock = [64]\nargs = {args}\ncooperative = true\n---*/\n{source}'
    )


def test_a_cooperative_grid_meets_at_grid_barriers(device: Device) -> None:
    y, total = torch.zeros(5 * 8, dtype=I32), torch.zeros(1, dtype=I32)
    run(device, cooperative(GRID_BARRIER, '["y", "total"]', 8), {"y": y, "total": total})
    assert y.view(5, 8).tolist() == [[8 * (round_ + 1)] * 8 for round_ in range(5)]


def test_a_cooperative_grid_may_spin_on_an_atomic_counter(device: Device) -> None:
    y, total = torch.zeros(5 * 4, dtype=I32), torch.zeros(1, dtype=I32)
    run(device, cooperative(SPIN_BARRIER, '["y", "total", "counter"]', 4), {"y": y, "total": total})
    assert y.view(5, 4).tolist() == [[4 * (round_ + 1)] * 4 for round_ in range(5)]


def test_a_cooperative_grid_that_cannot_be_resident_is_illegal(device: Device) -> None:
    tensors = {"y": torch.zeros(1, dtype=I32), "total": torch.zeros(1, dtype=I32)}
    error = rejected(device, cooperative(GRID_BARRIER, '["y", "total"]', 100_000), tensors)
    assert error.outcome == Outcome.ILLEGAL


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


def test_a_missing_extern_c_is_malformed(device: Device) -> None:
    kernel = single("y[0] = 1;", "int* y").replace('extern "C" __global__', "__global__")
    error = rejected(device, kernel, {"y": torch.zeros(1, dtype=I32)})
    assert error.outcome == Outcome.MALFORMED
    assert "test_entry" in error.log


def test_a_misspelled_entry_is_malformed_and_says_what_there_is(device: Device) -> None:
    kernel = single("y[0] = 1;", "int* y").replace("void test_entry", "void tset_entry")
    error = rejected(device, kernel, {"y": torch.zeros(1, dtype=I32)})
    assert error.outcome == Outcome.MALFORMED
    assert "`test_entry`" in error.log
    assert "tset_entry" in error.log


@pytest.mark.parametrize(
    ("parameters", "args"),
    [
        ("int* y", '["y", "n"]'),
        ("int* y, int n, int m", '["y", "n"]'),
        ("int* y, short n", '["y", "n"]'),
        ("int* y, int n", '["y", "huge"]'),
        ("List<int*, 3> y, int n", '[["y", "y"], "n"]'),
    ],
    ids=["too many", "too few", "two bytes", "out of range", "list too short"],
)
def test_arguments_that_do_not_fit_the_entry_are_malformed(device: Device, parameters: str, args: str) -> None:
    kernel = (
        f'/*---\nop = "test"\n[[launch]]\nentry = "test_entry"\ngrid = [1]\nblock = [1]\nargs = {args}\n---*/\n'
        f'extern "C" __global__ void test_entry({parameters}) {{}}\n'
    )
    error = rejected(device, kernel, {"y": torch.zeros(1, dtype=I32)}, n=3, huge=2**40)
    assert error.outcome == Outcome.MALFORMED
    assert "launch 0" in error.log


def test_a_compile_error_has_the_line_of_the_kernels_text(device: Device) -> None:
    kernel = single("int fine = 1;\ny[0] = missing_name;", "int* y")
    plan = bound(kernel, {"y": torch.zeros(1, dtype=I32)})
    line = plan.kernel.text.splitlines().index("y[0] = missing_name;") + 1
    with pytest.raises(RejectedError, match="missing_name") as caught:
        device.compile(plan)
    assert caught.value.outcome == Outcome.COMPILE_ERROR
    assert f"kernel.cu:{line}" in caught.value.log or f"kernel.cu({line})" in caught.value.log


@pytest.mark.parametrize("header", ["<fstream>", "<thread>", "<unistd.h>", '"/etc/passwd"'])
def test_host_headers_do_not_compile(device: Device, header: str) -> None:
    kernel = single("y[0] = 1;", "int* y").replace("#include <cuda_fp16.h>", f"#include {header}")
    assert rejected(device, kernel, {"y": torch.zeros(1, dtype=I32)}).outcome == Outcome.COMPILE_ERROR


def test_headers_that_models_write_out_of_habit_compile(device: Device) -> None:
    headers = "cuda_runtime.h", "math.h", "stdint.h", "cstdint", "float.h", "cooperative_groups.h"
    lines = "\n".join(f"#include <{header}>" for header in headers)
    kernel = single("y[0] = FLT_MAX > 1e38f && INT32_MAX > 0 && isinf(INFINITY);", "int* y", block="[1]")
    assert out_of(device, kernel.replace("#include <cuda_fp16.h>", lines), 1) == [1]


@pytest.mark.parametrize(
    "plan",
    [
        'library = "matmul"\nargs = ["y"]',
        'entry = "test_entry"\ngrid = [1]\nblock = [1]\nargs = ["y"]\noverlap = true',
    ],
    ids=["library", "overlap"],
)
def test_reserved_parts_of_a_plan_are_unsupported(device: Device, plan: str) -> None:
    kernel = f'/*---\nop = "test"\n[[launch]]\n{plan}\n---*/\nextern "C" __global__ void test_entry(int* y) {{}}\n'
    with pytest.raises(RejectedError, match="not supported yet") as caught:
        device.compile(Bound(parse(kernel), (), (), (), ()))
    assert caught.value.outcome == Outcome.UNSUPPORTED


def test_too_much_shared_memory_is_illegal() -> None:
    kernel = single("y[0] = 1;", "int* y", more="shared = 300000")
    with pytest.raises(IllegalError):
        bound(kernel, {"y": torch.zeros(1, dtype=I32)})


def test_time_is_positive(device: Device) -> None:
    y = torch.zeros(1, dtype=I32, device=device.torch_device)
    program = device.compile(bound(single("y[0] = 1;", "int* y"), {"y": y}))
    assert device.time(lambda: program.launch({"y": y})) > 0


def test_a_program_runs_again_with_other_tensors(device: Device) -> None:
    kernel = single("y[threadIdx.x] += threadIdx.x;", "int* y")
    program = device.compile(bound(kernel, {"y": torch.zeros(32, dtype=I32)}))
    first, second = (torch.zeros(32, dtype=I32, device=device.torch_device) for _ in range(2))
    device.run(program, {"y": first})
    device.run(program, {"y": second})
    device.run(program, {"y": second})
    assert (first.tolist(), second.tolist()) == (list(range(32)), list(range(0, 64, 2)))

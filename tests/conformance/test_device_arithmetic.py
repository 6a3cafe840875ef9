"""Arithmetic that must be the same on every device: atomics, 16-bit types, mathematical functions."""

import pytest
import torch
from device_kernels import EVERY_DEVICE, made, out_of, run, single

from evolve.devices.device import Device

I32, I64 = torch.int32, torch.int64


@pytest.fixture(scope="module", params=EVERY_DEVICE)
def device(request: pytest.FixtureRequest) -> Device:
    return made(request.param)


def test_integer_atomics_lose_no_update(device: Device) -> None:
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


def test_intrinsics_with_a_rounding_mode_are_not_fused_with_other_operations(device: Device) -> None:
    body = """
    int i = threadIdx.x;
    y[i] = __fmul_rn(x[i], x[i + 32]) - products[i];
    y[i + 32] = __fadd_rn(x[i] * x[i + 32], -products[i]);
    y[i + 64] = __fsub_rn(x[i] * x[i + 32], products[i]);"""
    x, y = torch.randn(64), torch.full((96,), 7.0)
    products = x[:32] * x[32:]
    arguments = "const float* x, const float* products, float* y"
    run(device, single(body, arguments), {"x": x, "products": products, "y": y})
    assert y.tolist() == [0.0] * 96


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

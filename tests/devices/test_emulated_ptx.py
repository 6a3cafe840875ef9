"""Inline PTX on the emulated device: its instructions do the same as a GPU's, and others are unsupported."""

import pytest
import torch
from device_kernels import rejected, run, single

from archive.records import Outcome
from evolve.devices.choose import make
from evolve.devices.emulated import ptx
from evolve.devices.emulated.device import EmulatedDevice
from evolve.devices.source_text import masked

MMA = """
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    float d[4] = {c[g * 8 + 2 * t], c[g * 8 + 2 * t + 1], c[(g + 8) * 8 + 2 * t], c[(g + 8) * 8 + 2 * t + 1]};
    unsigned p[4], q[2];
    for (int i = 0; i < 4; ++i) p[i] = WORD(a, g + i % 2 * 8, t + i / 2 * 4);
    for (int i = 0; i < 2; ++i) q[i] = WORD(b, g, t + i * 4);
    asm volatile("mma.sync.aligned.SHAPE.row.col.f32.TYPES.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
    for (int i = 0; i < 4; ++i) y[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];"""
WORDS = "#define WORD(of, row, word) reinterpret_cast<const unsigned*>(of)[(row) * 8 + word]\n"
SINGLES = "#define WORD(of, row, word) __float_as_uint(of[(row) * 8 + word])\n"
SHARED = "__shared__ alignas(16) unsigned short tile[32][8];\n"
FILL = f"{SHARED}for (int i = 0; i < 8; ++i) tile[threadIdx.x][i] = 8 * threadIdx.x + i;\n__syncthreads();\n"
AT = "(unsigned)__cvta_generic_to_shared"


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice()


@pytest.mark.parametrize(
    ("shape", "types", "name", "dtype"),
    [
        ("m16n8k16", "bf16.bf16", "__nv_bfloat16", torch.bfloat16),
        ("m16n8k16", "f16.f16", "__half", torch.float16),
        ("m16n8k8", "tf32.tf32", "float", torch.float32),
    ],
)
def test_a_product_on_tensor_cores_is_the_product_of_the_tiles(
    device: EmulatedDevice, shape: str, types: str, name: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    depth = int(shape.rpartition("k")[2])
    a, b = (torch.randn(rows, depth).to(torch.bfloat16).to(dtype) for rows in (16, 8))
    c, y = torch.randn(16, 8), torch.zeros(16, 8)
    kernel = single(
        MMA.replace("SHAPE", shape).replace("TYPES", types),
        f"const {name}* a, const {name}* b, const float* c, float* y",
    )
    entry = kernel.index('extern "C"')
    run(device, kernel[:entry] + (SINGLES if depth == 8 else WORDS) + kernel[entry:], {"a": a, "b": b, "c": c, "y": y})
    torch.testing.assert_close(y, c + a.float() @ b.float().T, atol=1e-5, rtol=1e-5)


def test_tf32_ignores_the_last_13_bits(device: EmulatedDevice) -> None:
    a, b = torch.full((16, 8), 1 + 2.0**-11), torch.ones(8, 8)
    kernel = single(
        MMA.replace("SHAPE", "m16n8k8").replace("TYPES", "tf32.tf32"),
        "const float* a, const float* b, const float* c, float* y",
    )
    y, entry = torch.zeros(16, 8), kernel.index('extern "C"')
    run(device, kernel[:entry] + SINGLES + kernel[entry:], {"a": a, "b": b, "c": torch.zeros(16, 8), "y": y})
    assert y.unique().tolist() == [8.0]


# A [64, 64] times B [64, 64], both stored in lines of 128 bytes with swizzled pieces of 16 bytes. With ACROSS, a line
# contains one value of each row of A, or of each column of B; otherwise it contains values along the sum.
OF_A_WARPGROUP = """
    __shared__ alignas(1024) TYPE left[64 * 64], right[64 * 64];
    for (int i = threadIdx.x; i < 64 * 64; i += 128) {
        const int line = i / 64, to = line * 64 + ((i % 64 / 8) ^ (line % 8)) * 8 + i % 8;
        left[to] = a[i], right[to] = b[i];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[8];
    for (int i = 0; i < 8; ++i) d[i] = 7.0f;
    const unsigned long long kind = 1ull << 62 | 64ull << 32 | 512ull << 16;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < 4; ++k) {
        const unsigned long long of_a = kind | ((unsigned)__cvta_generic_to_shared(left) & 0x3ffff) >> 4;
        const unsigned long long of_b = kind | ((unsigned)__cvta_generic_to_shared(right) & 0x3ffff) >> 4;
        asm volatile("{\\n.reg .pred add;\\nsetp.ne.b32 add, %10, 0;\\n"
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.SHORT.SHORT "
            "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, add, 1, 1, ACROSS, ACROSS;\\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
            : "l"(of_a + k * (ACROSS ? 128 : 2)), "l"(of_b + k * (ACROSS ? 128 : 2)), "r"(k));
    }
    asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 8; ++i) {
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
        y[row * 16 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
    }"""


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_warpgroup_multiplies_tiles_in_shared_memory(kind: str, dtype: torch.dtype, across: bool) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(64, 64).to(dtype), torch.randn(64, 64).to(dtype)
    name, short = {torch.bfloat16: ("__nv_bfloat16", "bf16"), torch.float16: ("__half", "f16")}[dtype]
    body = OF_A_WARPGROUP.replace("TYPE", name).replace("SHORT", short).replace("ACROSS", str(int(across)))
    y = torch.zeros(64, 16)
    kernel = single(body, f"const {name}* a, const {name}* b, float* y", block="[128]")
    run(make(kind), kernel, {"a": a, "b": b, "y": y})
    left, right = (a.float().T, b.float()) if across else (a.float(), b.float().T)
    torch.testing.assert_close(y, left @ right[:, :16], atol=1e-4, rtol=1e-5)


ROWS_IN_REGISTERS = """
    __shared__ alignas(1024) TYPE right[64 * 16];
    for (int i = threadIdx.x; i < 64 * 16; i += 128)
        right[i / 64 * 64 + ((i % 64 / 8) ^ (i / 64 % 8)) * 8 + i % 8] = b[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    unsigned r[4];
    for (int i = 0; i < 4; ++i)
        r[i] = *reinterpret_cast<const unsigned*>(a + (row + i % 2 * 8) * 16 + column + i / 2 * 8);
    float d[4];
    const unsigned long long of_b = 1ull << 62 | 64ull << 32 | 512ull << 16 | (AT(right) & 0x3ffff) >> 4;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{\\n.reg .pred add;\\nsetp.ne.b32 add, %9, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.SHORT.SHORT {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, add, 1, 1, 1;\\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(of_b), "r"(0));
    asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; ++i) y[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];"""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_warpgroup_multiplies_rows_in_registers(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(64, 16).to(dtype), torch.randn(16, 64).to(dtype)
    name, short = {torch.bfloat16: ("__nv_bfloat16", "bf16"), torch.float16: ("__half", "f16")}[dtype]
    body = ROWS_IN_REGISTERS.replace("TYPE", name).replace("SHORT", short).replace("AT(", f"{AT}(")
    y = torch.zeros(64, 8)
    kernel = single(body, f"const {name}* a, const {name}* b, float* y", block="[128]")
    run(make(kind), kernel, {"a": a, "b": b, "y": y})
    torch.testing.assert_close(y, a.float() @ b.float()[:, :8], atol=1e-4, rtol=1e-5)


def test_a_warp_waits_for_a_product_until_its_warpgroup_has_multiplied(device: EmulatedDevice) -> None:
    body = """
    __shared__ int reached;
    if (threadIdx.x == 0) reached = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) atomicAdd(&reached, 1);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (threadIdx.x % 128 == 0) y[threadIdx.x / 128] = reached;"""
    y = torch.zeros(1, dtype=torch.int32)
    run(device, single(body, "int* y", block="[128]"), {"y": y})
    assert y.tolist() == [4]
    text = single(body.replace("asm", "if (threadIdx.x < 96) asm"), "int* y", block="[128]")
    error = rejected(device, text, {"y": y})
    assert "96 threads wait at wgmma.wait_group, which not all four warps reach" in error.log


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_loads_four_matrices(device: EmulatedDevice, transposed: bool) -> None:
    name = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if transposed else ''}.shared.b16"
    body = f"""{FILL}unsigned r[4];
    asm volatile("{name} {{%0,%1,%2,%3}}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"({AT}(tile[threadIdx.x])));
    for (int i = 0; i < 4; ++i) y[8 * threadIdx.x + 2 * i] = r[i] & 0xffff;
    for (int i = 0; i < 4; ++i) y[8 * threadIdx.x + 2 * i + 1] = r[i] >> 16;"""
    y = torch.zeros(32, 4, 2, dtype=torch.int32)
    run(device, single(body, "int* y"), {"y": y})
    matrices = torch.arange(256, dtype=torch.int32).reshape(4, 8, 8)
    if transposed:
        matrices = matrices.transpose(1, 2)
    assert torch.equal(y, matrices.reshape(4, 32, 2).transpose(0, 1))


@pytest.mark.parametrize("memory", ["static", "dynamic"])
def test_cp_async_copies_to_shared_memory_and_fills_up_with_zeros(device: EmulatedDevice, memory: str) -> None:
    declared = "__shared__ uint4 tile[32];" if memory == "static" else "extern __shared__ uint4 tile[];"
    body = f"""{declared}
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"({AT}(tile + threadIdx.x)),
                 "l"(x + 4 * threadIdx.x), "r"(threadIdx.x < 31 ? 16 : 8) : "memory");
    asm volatile("cp.async.commit_group;\\n" "cp.async.wait_group %0;" ::"n"(0) : "memory");
    __syncthreads();
    for (int i = threadIdx.x; i < 128; i += 32) y[i] = reinterpret_cast<int*>(tile)[i];"""
    x, y = torch.arange(128, dtype=torch.int32), torch.full((128,), 9, dtype=torch.int32)
    run(
        device,
        single(body, "const int* x, int* y", more="shared = 512" if memory == "dynamic" else ""),
        {"x": x, "y": y},
    )
    assert y.tolist() == [*range(126), 0, 0]


@pytest.mark.parametrize(("name", "least"), [("ex2.approx.f32", 2.0**-149), ("ex2.approx.ftz.f32", 0.0)])
def test_ex2_is_a_power_of_two_and_flushes_subnormal_results_on_request(
    device: EmulatedDevice, name: str, least: float
) -> None:
    x = torch.tensor([0.0, 3.5, -126.0, -149.0, -200.0, -torch.inf, torch.inf, torch.nan] * 4)
    y = torch.zeros(32)
    body = f'asm("{name} %0, %1;" : "=f"(y[threadIdx.x]) : "f"(x[threadIdx.x]));'
    run(device, single(body, "const float* x, float* y"), {"x": x, "y": y})
    expected = torch.tensor([1.0, 2.0**3.5, 2.0**-126, least, 0.0, 0.0, torch.inf, torch.nan] * 4)
    torch.testing.assert_close(y, expected, equal_nan=True, atol=0.0, rtol=1e-6)


def test_an_asynchronous_copy_to_a_misaligned_address_fails(device: EmulatedDevice) -> None:
    body = f"""__shared__ int tile[64];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"({AT}(tile + 1)), "l"(x) : "memory");"""
    error = rejected(device, single(body, "const int* x"), {"x": torch.zeros(64, dtype=torch.int32)})
    assert (error.outcome, "misaligned" in error.log) == (Outcome.LAUNCH_ERROR, True)


@pytest.mark.parametrize(
    "statement",
    [
        'asm volatile("cp.async.commit_group; membar.gl;");',
        'asm volatile("cp.async.bulk.prefetch.L2.global [%0], 16;");',
        'asm("mov.u32 %0, %clock;" : "=r"(y[0]));',
        'asm volatile("cp.async.wait_group %1;" ::"n"(0));',
        'asm goto("cp.async.wait_all;");',
    ],
)
def test_a_statement_with_another_instruction_is_unsupported(device: EmulatedDevice, statement: str) -> None:
    error = rejected(device, single(statement, "int* y"), {"y": torch.zeros(32, dtype=torch.int32)})
    assert error.outcome == Outcome.UNSUPPORTED


def test_a_translated_statement_keeps_the_number_of_lines() -> None:
    source = 'asm volatile(\n    "cp.async.wait_group 1;"\n    :::\n    "memory");\nnext();'
    ((start, end, text),) = ptx.translated(source, masked(source))
    assert (source[:start] + text + source[end:]).count("\n") == source.count("\n")

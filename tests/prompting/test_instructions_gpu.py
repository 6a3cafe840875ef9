"""Results of the examples of instructions, emulated and on a GPU of the Hopper generation."""

import pytest
import torch
from device_kernels import bound, made, run
from each import each

from evolve.prompting.instructions import IN_THE_KERNEL, INSTRUCTIONS, SHARED_ADDRESS

LANES = "const int lane = threadIdx.x % 32, g = lane / 4, t = 2 * (lane % 4);\n"
PAIR = "auto pair = [&](int row, int col) { return *reinterpret_cast<const unsigned*>(x + row * 16 + col); };\n"
# The thread count, the code before the example in the kernel, and the code after it.
USES = {
    "cp.async": (
        128,
        "__shared__ alignas(16) x_t tile[1][8 * 128]; const int stage = 0;\n",
        'asm volatile("cp.async.wait_group 0;" ::: "memory");\n__syncthreads();\n'
        "for (int i = threadIdx.x; i < 1024; i += 128) out[i] = float(tile[0][1023 - i]);\n",
    ),
    "cp.async.bulk": (
        128,
        "constexpr int COUNT = 1024; const int bytes = 2048;\n",
        "for (int i = threadIdx.x; i < 1024; i += 128) out[i] = float(row[1023 - i]);\n",
    ),
    "tensor maps": (
        128,
        "const int row = 0, column = 0;\n",
        "for (int i = threadIdx.x; i < 4096; i += 128)\n"
        "    out[i] = float(tile[i / 64 * 64 + (i % 64 / 8 ^ i / 64 % 8) * 8 + i % 8]);\n",
    ),
    "clusters": (
        128,
        "__shared__ float part; float sum = float(x[blockIdx.x]);\n",
        "if (threadIdx.x == 0) out[blockIdx.x] = sum;\n",
    ),
    "mma.sync": (
        32,
        f"{LANES}{PAIR}float d[4] = {{}};\n"
        "unsigned a[4] = {pair(g, t), pair(g + 8, t), pair(g, t + 8), pair(g + 8, t + 8)};\n"
        "unsigned b[2] = {pair(g, t), pair(g, t + 8)};\nmma(d, a, b);\n",
        "out[g * 8 + t] = d[0]; out[g * 8 + t + 1] = d[1];\n"
        "out[(g + 8) * 8 + t] = d[2]; out[(g + 8) * 8 + t + 1] = d[3];\n",
    ),
    "wgmma": (
        128,
        "__shared__ alignas(1024) x_t a_tile[64 * 64], b_tile[8 * 64];\nfloat d[4] = {};\n"
        "const uint4* from = reinterpret_cast<const uint4*>(x);\n"
        "for (int i = threadIdx.x; i < 64 * 8; i += 128) {\n"
        "    const int r = i / 8, p = i % 8, to = 8 * r + (p ^ r % 8);\n"
        "    reinterpret_cast<uint4*>(a_tile)[to] = from[i];\n"
        "    if (r < 8) reinterpret_cast<uint4*>(b_tile)[to] = from[i];\n}\n",
        f"{LANES}const int row = 16 * (threadIdx.x / 32) + g;\n"
        "out[row * 8 + t] = d[0]; out[row * 8 + t + 1] = d[1];\n"
        "out[(row + 8) * 8 + t] = d[2]; out[(row + 8) * 8 + t + 1] = d[3];\n",
    ),
}
EXAMPLES = {one.name: one for one in INSTRUCTIONS}


def kernel_text(name: str) -> str:
    threads, before, after = USES[name]
    helpers, _, body = EXAMPLES[name].example.partition(IN_THE_KERNEL)
    cluster, blocks = ("__cluster_dims__(4, 1, 1) ", 8) if name == "clusters" else ("", 1)
    body = body.replace("SIZE", "4")
    plan, parameter = EXAMPLES[name].plan, EXAMPLES[name].parameter
    names, first = ('"x_map", ', f"{parameter}, ") if plan else ("", "")
    return (
        f'/*---\nop = "any"\n{plan}[[launch]]\nentry = "f"\ngrid = [{blocks}]\nblock = [{threads}]\n'
        f'args = [{names}"x", "out"]\n---*/\n{SHARED_ADDRESS}{helpers}'
        f'extern "C" __global__ void {cluster}f({first}const x_t* x, out_t* out) {{\n'
        f"{before}{body}{after}}}\n"
    )


def inputs(name: str) -> torch.Tensor:
    rows, cols = {"mma.sync": (16, 16), "wgmma": (64, 64), "tensor maps": (64, 64), "clusters": (1, 8)}.get(
        name, (1, 1024)
    )
    return torch.randint(-8, 9, (rows, cols), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)


def expected(name: str, x: torch.Tensor) -> torch.Tensor:
    values = x.float()
    if name == "clusters":
        return values.view(2, 4).sum(1, keepdim=True).expand(2, 4).reshape(1, 8)
    if name in ("mma.sync", "wgmma"):
        return values @ values[:8].T
    return values if name == "tensor maps" else values.flip(1)


def dims(x: torch.Tensor) -> dict[str, int | float]:
    return {"rows": x.shape[0], "cols": x.shape[1]}


@each({name: name for name in EXAMPLES})
def test_every_example_is_tested(name: str) -> None:
    pytest.importorskip("cupy")
    from evolve.devices.cuda.compiler import compile_cubin

    x = inputs(name)
    assert compile_cubin(bound(kernel_text(name), {"x": x, "out": expected(name, x)}, dims(x)), "sm_90a").image


@each({name: name for name in EXAMPLES if name != "clusters"})
def test_an_example_computes_the_same_when_it_is_emulated(name: str) -> None:
    x = inputs(name)
    out = torch.full_like(expected(name, x), -1.0).contiguous()
    run(made("emulated"), kernel_text(name), {"x": x, "out": out}, dims(x))
    assert torch.equal(out, expected(name, x))


@pytest.mark.gpu
@each({name: name for name in EXAMPLES})
def test_an_example_computes_what_its_description_says(name: str) -> None:
    device = made("cuda")
    if not EXAMPLES[name].on(device.info.arch):
        pytest.skip(f"{device.info.arch} lacks {name}")
    x = inputs(name)
    out = torch.full_like(expected(name, x), -1.0).contiguous()
    run(device, kernel_text(name), {"x": x, "out": out}, dims(x))
    assert torch.equal(out, expected(name, x))

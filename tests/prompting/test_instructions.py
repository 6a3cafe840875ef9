"""Instructions in prompts: examples compile, and are shown if the GPU has the instruction and the op can use it."""

import pytest
from each import each
from small_op import OP

from archive.binding import bind, parse_for
from archive.records import DeviceInfo
from evolve.op_on_device import point, signature
from evolve.prompting.instructions import (
    IN_THE_KERNEL,
    INSTRUCTIONS,
    SHARED_ADDRESS,
    InstructionFamily,
    instructions_section,
)

# Code that an example needs: declarations before it in the kernel, and its result.
SETTING = {
    "cp.async": ("__shared__ alignas(16) x_t tile[2][8 * 128]; int stage = 0;", "tile[0][threadIdx.x]"),
    "cp.async.bulk": ("constexpr int COUNT = 256; int bytes = COUNT * sizeof(x_t);", "row[threadIdx.x]"),
    "tensor maps": ("const int row = 0, column = 0;", "tile[threadIdx.x]"),
    "clusters": ("__shared__ float part; float sum = threadIdx.x;", "sum"),
    "mma.sync": ("float d[4] = {}; unsigned a[4] = {}, b[2] = {}; mma(d, a, b);", "d[0] + d[3]"),
    "wgmma": (
        "__shared__ alignas(1024) x_t a_tile[64 * 64], b_tile[8 * 64];\nfloat d[4] = {};\n"
        "a_tile[threadIdx.x] = b_tile[threadIdx.x] = x[threadIdx.x];",
        "d[0] + d[3]",
    ),
}
MAP_NAMES = ("", '"x_map", ')


def kernel_text(one: InstructionFamily) -> str:
    helpers, _, body = one.example.partition(IN_THE_KERNEL)
    before, result = SETTING[one.name]
    cluster = "__cluster_dims__(SIZE, 1, 1) " if one.name == "clusters" else ""
    plan = (
        f'/*---\nop = "{OP.name}"\ndtypes = ["bfloat16"]\n\n[knobs]\nSIZE = [4, 2]\n\n{one.plan}'
        '[[launch]]\nentry = "f"\n'
        f'grid = [8]\nblock = [128]\nargs = [{MAP_NAMES[bool(one.plan)]}"x", "out"]\n---*/\n'
    )
    first = f"{one.parameter}, " if one.parameter else ""
    begin = f'extern "C" __global__ void {cluster}f({first}const x_t* x, out_t* out) {{\n{before}\n'
    entry = f"{begin}{body}out[threadIdx.x] = out_t({result});\n}}\n"
    return f"{plan}{SHARED_ADDRESS}{helpers}{entry}"


def architectures(one: InstructionFamily) -> list[str]:
    known = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
    return [arch for arch in known if one.on(arch)]


@each({one.name: one for one in INSTRUCTIONS})
def test_an_example_compiles_unchanged_on_every_architecture_it_is_shown_for(one: InstructionFamily) -> None:
    pytest.importorskip("cupy")
    from evolve.devices.cuda.compiler import compile_cubin

    workload = next(w for w in OP.gpu if w.dtype == "bfloat16")
    kernel = parse_for(kernel_text(one), signature(OP))
    for arch in architectures(one):
        device = DeviceInfo("cuda", "a GPU", arch, 132, 232448)
        assert compile_cubin(bind(kernel, point(OP, workload, device)), arch).image


@each(
    {
        f"{arch} products={products}": (arch, products)
        for arch in ("sm_75", "sm_80", "sm_90a", "sm_100a")
        for products in (True, False)
    }
)
def test_instructions_are_shown_where_the_gpu_has_them_and_the_op_has_a_use(arch: str, products: bool) -> None:
    said = instructions_section(arch, products=products, streams=not products)
    for one in INSTRUCTIONS:
        assert (f"- {one.name}: " in said) == (one.on(arch) and (one.use == "product") == products), one.name


def test_wgmma_is_only_for_hopper() -> None:
    assert "wgmma" in instructions_section("sm_90a", products=True, streams=False)
    assert "wgmma" not in instructions_section("sm_100a", products=True, streams=True)


def test_an_unknown_architecture_has_no_section() -> None:
    assert instructions_section("", products=True, streams=True) == ""


def test_reserved_grammar_is_not_mentioned() -> None:
    said = instructions_section("sm_90a", products=True, streams=True)
    assert not [word for word in ("library", "overlap") if word in said]

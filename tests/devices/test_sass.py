"""Traits read from the bits of machine code, compared with NVIDIA's disassembler."""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from chosen_ops import THOROUGH
from each import sampled

pytest.importorskip("cupy")

from archive.binding import IllegalError, accepts, bind
from archive.library import shipped
from archive.records import DeviceInfo
from evolve.devices.cuda import cubin
from evolve.devices.cuda.compiler import compile_cubin
from evolve.devices.cuda.cubin import Use, use
from evolve.devices.cuda.memory import compiled
from evolve.op_on_device import point
from reference_ops import catalog

GPU = DeviceInfo("cuda", "Some GPU", "sm_90a", 132, 232448)
NO_USE = Use(0, 0, tensor_cores=False, atomics=False)
TURING, AMPERE, ADA, HOPPER, BLACKWELL, GEFORCE = "sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"
EVERYWHERE = (TURING, AMPERE, ADA, HOPPER, BLACKWELL, GEFORCE)
F4 = '"=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(x + 4 * i)'
LDG_128 = f'asm volatile("ld.global.v4.f32 {{%0, %1, %2, %3}}, [%4];" : {F4});'
EIGHT = ", ".join(f"%{n}" for n in range(8))
EIGHT_IN = ", ".join(f'"f"(a + {n})' for n in range(8))
HMMA = (
    'asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, '
    '{%0, %1, %2, %3};" : "+f"(a), "+f"(b), "+f"(c), "+f"(d) : "r"(i), "r"(n), "r"(i ^ n)); y[i] = a;'
)
QMMA = (
    'asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %4}, {%5, %6}, '
    '{%0, %1, %2, %3};" : "+f"(a), "+f"(b), "+f"(c), "+f"(d) : "r"(i), "r"(n), "r"(i ^ n)); y[i] = a;'
)
WGMMA = (
    'asm volatile("wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, '
    '%4, %4, 1, 1, 1, 0, 0; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" '
    ': "+f"(a), "+f"(b), "+f"(c), "+f"(d) : "l"((long long)n)); y[i] = a;'
)
TENSOR_MEMORY = (
    'asm volatile("{.reg .pred p; setp.ne.b32 p, %1, 0; tcgen05.mma.cta_group::1.kind::f16 [%1], %0, %0, %1, p;}" '
    ':: "l"((long long)n), "r"(i));'
)
MMA_OF_VOLTA = (
    'asm volatile("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%0, %0, %0, %0}, {%1, %1}, {%1, %1}, '
    '{%0, %0, %0, %0};" : "+r"(u) : "r"(n)); y[i] = u;'
)
COPY = (
    "__shared__ float4 kept[64]; unsigned to = __cvta_generic_to_shared(kept + i); "
    'asm volatile("cp.async.ca.shared.global [%0], [%1], {n}; cp.async.wait_all;" :: "r"(to), "l"(x + 4 * i)); '
    "__syncthreads(); y[i] = kept[i ^ 1].x;"
)
# For each name: the code, the features that it uses, and the architectures to compile it for.
CASES = {
    "nothing": ("if (n > 1 << 30) __trap();", NO_USE, EVERYWHERE),
    "byte": ("((char*)y)[i] = ((const char*)x)[i + n];", Use(1, 1, False, False), EVERYWHERE),
    "half": ("((short*)y)[i] = ((const short*)x)[i + n];", Use(2, 2, False, False), EVERYWHERE),
    "word": ("y[i] = x[i + n];", Use(4, 4, False, False), EVERYWHERE),
    "pair": ("((float2*)y)[i] = ((const float2*)x)[i + n];", Use(8, 8, False, False), EVERYWHERE),
    "four": ("((float4*)y)[i] = __ldg((const float4*)x + i + n);", Use(16, 16, False, False), EVERYWHERE),
    "volatile_four": (f"{LDG_128} y[i] = a + b + c + d;", Use(16, 4, False, False), EVERYWHERE),
    "mixed": ("((float2*)y)[i] = ((const float2*)x)[i]; y[n] = x[n];", Use(8, 8, False, False), EVERYWHERE),
    "read_only": ("float2 v = ((const float2*)x)[i]; if (v.x == v.y) __trap();", Use(8, 0, False, False), EVERYWHERE),
    "generic": (
        'asm volatile("ld.v2.f32 {%0, %1}, [%2]; st.v4.f32 [%3], {%0, %1, %0, %1};" : "=f"(a), "=f"(b) '
        ': "l"(x + 2 * i), "l"(y + 4 * i));',
        Use(8, 16, False, False),
        EVERYWHERE,
    ),
    "shared_alone": (
        "__shared__ float4 kept[64]; kept[i] = {1, 2, 3, a}; __syncthreads(); y[i] = kept[i ^ n].x;",
        Use(0, 4, False, False),
        EVERYWHERE,
    ),
    "shared_atomic": (
        "__shared__ int kept[64]; kept[i] = 0; __syncthreads(); atomicAdd(kept + n, i); __syncthreads(); "
        "y[i] = kept[i];",
        Use(0, 4, False, False),
        EVERYWHERE,
    ),
    "reduction": ("atomicAdd(y + n, 1.f);", Use(0, 0, False, True), EVERYWHERE),
    "integer_reduction": ("atomicMax((int*)y + n, i);", Use(0, 0, False, True), EVERYWHERE),
    "atomic": ("((int*)y)[i] = atomicAdd((int*)y + n, i);", Use(0, 4, False, True), EVERYWHERE),
    "float_atomic": ("y[i] = atomicAdd(y + n, 2.f);", Use(0, 4, False, True), EVERYWHERE),
    "compare_and_swap": ("((int*)y)[i] = atomicCAS((int*)y + n, i, 7);", Use(0, 4, False, True), EVERYWHERE),
    "generic_atomic": (
        'asm volatile("atom.add.u32 %0, [%1], %2;" : "=r"(u) : "l"(y + n), "r"(i)); y[i] = u;',
        Use(0, 4, False, True),
        EVERYWHERE,
    ),
    "generic_reduction": (
        'asm volatile("red.add.u32 [%0], %1;" :: "l"(y + n), "r"(i));',
        Use(0, 0, False, True),
        EVERYWHERE,
    ),
    "hmma": (HMMA, Use(0, 4, True, False), EVERYWHERE),
    "hmma_of_volta": (MMA_OF_VOLTA, Use(0, 4, True, False), (TURING,)),
    "imma": (
        'asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %0}, {%1}, {%1}, {%0, %0};" '
        ': "+r"(u) : "r"(n)); y[i] = u;',
        Use(0, 4, True, False),
        EVERYWHERE,
    ),
    "dmma": (
        'double e = n; asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %0}, {%0}, {%0}, {%0, %0};" '
        ': "+d"(e)); y[i] = e;',
        Use(0, 4, True, False),
        (AMPERE, ADA, HOPPER, BLACKWELL, GEFORCE),
    ),
    "qmma": (QMMA, Use(0, 4, True, False), (ADA, GEFORCE)),
    "wgmma": (WGMMA, Use(0, 4, True, False), (HOPPER,)),
    "tensor_memory": (TENSOR_MEMORY, Use(0, 0, True, False), (BLACKWELL,)),
    "copy_4": (COPY.replace("{n}", "4"), Use(4, 4, False, False), EVERYWHERE[1:]),
    "copy_8": (COPY.replace("{n}", "8"), Use(8, 4, False, False), EVERYWHERE[1:]),
    "copy_16": (COPY.replace("{n}", "16"), Use(16, 4, False, False), EVERYWHERE[1:]),
    "eight": (
        f'asm volatile("st.global.v8.f32 [%8], {{{EIGHT}}};" :: {EIGHT_IN}, "l"(y + 8 * i));',
        Use(0, 32, False, False),
        (BLACKWELL, GEFORCE),
    ),
}  # fmt: skip
NEITHER = "unsigned u = 0; float a = n, b = 1, c = 2, d = 3; int i = threadIdx.x;"


@cache
def machine_code(arch: str) -> bytes:
    entries = [
        f'extern "C" __global__ void {name}(const float* x, float* y, int n) {{ {NEITHER} {code} }}'
        for name, (code, _, archs) in CASES.items()
        if arch in archs
    ]
    return compiled("\n".join(entries), arch)


def found(image: bytes, arch: str) -> dict[str, Use]:
    codes = cubin.codes(image, tuple(cubin.entries(image)))
    return {name: use(code.instructions, arch) for name, code in codes.items()}


@pytest.mark.parametrize("arch", EVERYWHERE)
def test_the_features_that_code_uses_are_read_from_its_bits(arch: str) -> None:
    assert found(machine_code(arch), arch) == {name: uses for name, (_, uses, archs) in CASES.items() if arch in archs}


def nvdisasm() -> str:
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    folders = [os.environ.get("PATH", ""), str(wheel), "/usr/local/cuda/bin"]
    return shutil.which("nvdisasm", path=os.pathsep.join(folders)) or ""


def disassembled(image: bytes, file: Path) -> dict[str, Use]:
    file.write_bytes(image)
    text = subprocess.run([nvdisasm(), "-c", str(file)], capture_output=True, text=True, check=True).stdout
    return {name: of_text(code) for name, code in functions(text)}


def functions(text: str) -> Iterator[tuple[str, str]]:
    pieces = re.split(r"\.section\s+(\S+?),.*\n", text)
    for name, code in zip(pieces[1::2], pieces[2::2], strict=True):
        if name.startswith(".text."):
            yield name.removeprefix(".text."), code


def of_text(code: str) -> Use:
    names = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?PT?\w*\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)", code)
    split = [(name.split(".")[0], set(name.split(".")[1:])) for name in names]
    assert split
    return Use(
        max([width(marks) for name, marks in split if name in ("LD", "LDG", "LDGSTS")], default=0),
        max([width(marks) for name, marks in split if name in ("ST", "STG")], default=0),
        any(name.endswith("MMA") for name, _ in split),
        any(name in ("ATOM", "ATOMG", "RED", "REDG") for name, _ in split),
    )


def width(marks: set[str]) -> int:
    sizes = {"256": 32, "128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
    return next((size for mark, size in sizes.items() if mark in marks), 4)


@pytest.mark.skipif(not nvdisasm(), reason="nvdisasm is not installed")
@pytest.mark.parametrize("arch", EVERYWHERE)
def test_the_disassembler_agrees(arch: str, tmp_path: Path) -> None:
    image = machine_code(arch)
    assert found(image, arch) == disassembled(image, tmp_path / "cubin")


@pytest.mark.skipif(not nvdisasm(), reason="nvdisasm is not installed")
@pytest.mark.parametrize("name", sampled(THOROUGH, quick=THOROUGH[:1]))
def test_the_disassembler_agrees_on_the_shipped_kernels(name: str, tmp_path: Path) -> None:
    op = catalog.load(name)
    for kernel in shipped(name):
        for workload in op.gpu:
            at = point(op, workload, GPU)
            try:
                if not accepts(kernel, at):
                    continue
                bound = bind(kernel, at)
            except IllegalError:
                continue
            image = compile_cubin(bound, GPU.arch).image
            assert found(image, GPU.arch) == disassembled(image, tmp_path / "cubin")
            break

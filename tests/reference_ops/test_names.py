"""Names of tasks: those that CUDA C++ declares are replaced, so that a kernel can declare every size as a constant."""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from device_kernels import made

from archive.binding import bind
from archive.kernel import Kernel, parse
from archive.records import DeviceInfo
from evolve.devices.prelude import cuda_include_dirs
from evolve.op_on_device import point
from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.names import TAKEN
from reference_ops.op import Op
from reference_ops.precision import TORCH_DTYPES

GPU = DeviceInfo("cuda", "a GPU", "sm_90a", 132, 232_448)
AT_ONCE = 200  # number of constants that are compiled together
UNUSUAL = ("__", "_", "cu", "CU", "cuda", "nv", "NV")  # beginnings of names that no author of a task would choose
HEADERS = ("*.h", "*.hpp", "crt/*.h", "crt/*.hpp")
KERNELBENCH = os.environ.get("KERNELBENCH", "")  # a checkout of KernelBench, for the test of all its problems
PROBLEMS = sorted(Path(KERNELBENCH).glob("KernelBench/level[123]/*.py")) if KERNELBENCH else []

Compiles = Callable[[list[str]], set[int]]


def trivial(op: Op) -> Kernel:
    """Return a kernel that writes one zero to each output, and declares every size as a constant."""
    workload = op.listed[0]
    numbers = [name for name, value in workload.parameters if isinstance(value, int)]
    constants = ", ".join(f'"{name}"' for name in (*op.sizes(workload), *numbers))
    outputs = [spec.name for spec in op.outputs]
    args = ", ".join(f'"{name}"' for name in outputs)
    declared = ", ".join(f"{name}_t* out_{place}" for place, name in enumerate(outputs))
    body = " ".join(f"out_{place}[0] = {name}_t(0.0f);" for place, name in enumerate(outputs))
    return parse(
        f'/*---\nop = "{op.name}"\nspecialize = [{constants}]\n\n[[launch]]\nentry = "trivial_entry"\ngrid = [1]\n'
        f"block = [1]\nargs = [{args}]\n---*/\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
        f'extern "C" __global__ void trivial_entry({declared}) {{ {body} }}\n'
    )


def compile_and_run(op: Op) -> None:
    """Compile the trivial kernel for every listed workload, and run it at the smallest one on the emulated device."""
    from evolve.devices.cuda.compiler import compile_cubin

    kernel = trivial(op)
    for workload in op.listed:
        assert compile_cubin(bind(kernel, point(op, workload, GPU)), GPU.arch).image
    if not op.emulated:
        return
    device, workload = made("emulated"), min(op.emulated, key=op.nbytes)
    program = device.compile(bind(kernel, point(op, workload, device.info)))
    inputs = inputs_at(op, workload, 0, "cpu")
    outputs = {
        spec.name: torch.ones(op.shape(spec, workload), dtype=TORCH_DTYPES[spec.dtype or workload.dtype])
        for spec in op.outputs
    }
    device.run(program, {**inputs, **outputs})
    assert all(output.reshape(-1)[0] == 0 for output in outputs.values())


def test_a_task_may_use_names_of_cuda_for_its_sizes(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    path = tmp_path / "1_Names.py"
    path.write_text("""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, float4):
        return float4 * 2

dim3, norm, warpSize, double2 = 64, 32, 16, 8

def get_inputs():
    return [torch.rand(dim3, norm, warpSize, double2)]

def get_init_inputs():
    return []
""")
    op = catalog.load(str(path))
    assert [spec.dims for spec in op.inputs] == [("dim3_2", "norm_2", "warpsize", "double2_2")]
    compile_and_run(op)


@pytest.mark.exhaustive
def test_every_name_that_nvrtc_or_the_emulator_declares_is_taken() -> None:
    pytest.importorskip("cupy")
    words = {word for header in headers() for word in re.findall(r"\b[A-Za-z]\w{0,40}\b", header)}
    names = sorted(word for word in words if not word.startswith(UNUSUAL))
    refused = {name for compiles in (by_nvrtc, by_host) for name in refused_names(names, compiles)}
    assert sorted(refused - TAKEN) == []
    assert len(refused) > 400  # the compilers have refused some names


@pytest.mark.exhaustive
@pytest.mark.skipif(not PROBLEMS, reason="set KERNELBENCH to a checkout of KernelBench")
def test_a_trivial_kernel_compiles_and_runs_for_every_problem_of_kernelbench() -> None:
    pytest.importorskip("cupy")
    failed = {}
    for path in PROBLEMS:
        try:
            compile_and_run(catalog.load(str(path)))
        except Exception as error:  # noqa: BLE001 - reported with those of the other problems
            if "No module named" not in str(error):  # two problems need einops
                failed[path.name] = str(error)[:300]
    assert failed == {}


def headers() -> Iterator[str]:
    for folder in cuda_include_dirs():
        for pattern in HEADERS:
            for file in folder.glob(pattern):
                yield file.read_text(errors="replace")


def refused_names(names: list[str], compiles: Compiles) -> set[str]:
    """Return the names that a compiler refuses for a constant. Names outside the list are also tried alone."""
    refused: set[str] = set()
    waiting = [names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE)]
    while waiting:
        part = waiting.pop()
        lines = compiles([f"constexpr int {name} = 1;" for name in part])
        if lines and len(part) == 1:
            refused.update(part)
        elif lines & set(range(len(part))):
            found = [part[place] for place in sorted(lines) if 0 <= place < len(part)]
            refused.update(TAKEN.intersection(found))
            waiting += [[name] for name in found if name not in TAKEN]
            waiting.append([name for name in part if name not in found])
        elif lines:  # the error is reported elsewhere
            waiting += [part[: len(part) // 2], part[len(part) // 2 :]]
    return refused


def numbered(lines: list[str]) -> str:
    return "".join(f'#line {place + 1} "names"\n{line}\n' for place, line in enumerate(lines)) + '#line 1 "end"\n'


def by_nvrtc(lines: list[str]) -> set[int]:
    from cupy.cuda import nvrtc

    from evolve.devices.cuda.translation import EMPTY_HEADERS, PRELUDE

    source = f'{PRELUDE}#include <cuda_fp8.h>\n{numbered(lines)}extern "C" __global__ void evolve_end() {{}}\n'
    names = [name.encode() for name in EMPTY_HEADERS]
    program = nvrtc.createProgram(source, "kernel.cu", (b"",) * len(names), names)
    try:
        folders = [f"-I{folder}" for folder in cuda_include_dirs()]
        once = ["--pch"] if nvrtc.getVersion() >= (12, 8) else []  # the headers are compiled once
        nvrtc.compileProgram(program, ["-arch=compute_90a", "-std=c++17", "-default-device", *once, *folders])
    except nvrtc.NVRTCError:
        return found_in(r"^names\((\d+)\): error", nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)
    return set()


def by_host(lines: list[str]) -> set[int]:
    from evolve.devices.emulated import compiler

    command = compiler._command(compiler.find_toolchain(), cooperative=False, fp8=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "names.cpp"
        file.write_text(f'#include "{compiler.HEADER}"\n{numbered(lines)}')
        (Path(folder) / f"{compiler.HEADER}.gch").write_bytes(compiler.precompiled_header(command))
        done = subprocess.run(
            [*command, "-fsyntax-only", str(file)], capture_output=True, text=True, check=False, timeout=300
        )
    return found_in(r"^names:(\d+):\d+: error", done.stderr) if done.returncode else set()


def found_in(pattern: str, log: str) -> set[int]:
    """Return the places of the lines with errors; -1 if all errors are elsewhere."""
    return {int(line) - 1 for line in re.findall(pattern, log, re.MULTILINE)} or {-1}

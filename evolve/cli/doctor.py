"""`evolve doctor`: the devices and tools of this machine, and how to install missing ones."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.text import Text

from archive import ArchiveError
from archive.kernel import Kernel
from archive.library import shipped
from archive.records import DeviceInfo, Evaluation
from evolve import wiring
from evolve.cli.options import ArchiveOption, JsonOption, op_names
from evolve.devices import choose
from evolve.devices.choose import policy_of
from evolve.devices.cuda import profiler, sanitizer, torch_sees_gpu
from evolve.devices.cuda.compiler import nvrtc_version
from evolve.devices.emulated.compiler import find_compiler
from evolve.devices.prelude import cuda_include_dirs
from evolve.engines.sandbox import gaps
from evolve.errors import UserError
from evolve.report.words import console, counted, hanging, listed, print_json, say

OK, MISSING, OPTIONAL = "ok", "missing", "not set"
STYLES = {OK: "green", MISSING: "red", OPTIONAL: "yellow"}
SMI_SECONDS = 20
CLONE = "in the folder of the clone of this repository"
CUDA_WHEELS = f"pip install -e '.[cuda13]'   (or cuda12; {CLONE})"
EXTRAS = {  # extras of this package that add commands or options, with the modules that they need
    "web": (("starlette", "uvicorn"), "`evolve serve`; `evolve report` works without it"),
    "ray": (("ray",), "`--engine ray`, which evaluates kernels on the machines of a Ray cluster"),
}
TESTED = re.compile(r"([a-z-]+?)(?:-cuda\d+x)?(?:==|<=)(\S+)")


@dataclass(frozen=True)
class Finding:
    """The result of one check; `remedy` is a command or a sentence that says how to install the missing part."""

    name: str
    state: str
    found: str
    remedy: str = ""


def doctor(archive: ArchiveOption = None, as_json: JsonOption = False) -> None:
    """Show the devices and tools of this machine, and how to install missing ones."""
    with console(stderr=True).status("checking this machine"):
        findings = list(_findings(archive))
    states = {finding.name: finding.state for finding in findings}
    usable = [kind for kind in choose.kinds() if states[f"device {kind}"] == OK]
    if as_json:
        print_json({"usable": usable, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings, usable)
    if not usable:
        raise typer.Exit(1)


def _print(findings: list[Finding], usable: list[str]) -> None:
    output = console()
    names, states = (max(map(len, column)) for column in zip(*((f.name, f.state) for f in findings), strict=True))
    for finding in findings:
        begin = Text.assemble(f"{finding.name:<{names}}  ", (f"{finding.state:<{states}}", STYLES[finding.state]), "  ")
        output.print(*hanging(begin, finding.found, output.width), sep="\n", soft_wrap=True)
    remedies = [finding for finding in findings if finding.remedy]
    if remedies:
        output.print("\nhow to set up what is missing", style="bold")
        for finding in remedies:
            say(output, f"{finding.name}: {finding.remedy}", begin="  ", indent=4)
    if usable:
        where = "" if any(policy_of(kind).times_are_gpu_times for kind in usable) else f"   (on the {usable[0]} device)"
        output.print()
        say(output, f"evolve run softmax{where}", begin="next: ")
    else:
        output.print("\nNo device can run kernels on this machine yet.", style="red")


def _findings(archive: Path | None) -> Iterator[Finding]:
    yield Finding("Python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    parts = [_torch(), _gpu(), _cupy(), _nvrtc(), _headers(), _compiler()]
    yield from parts
    present = {part.name for part in parts if part.state == OK}
    for kind in choose.kinds():
        ready = present.issuperset(policy_of(kind).needs)
        yield Finding(f"device {kind}", OK if ready else MISSING, "ready" if ready else _lacking(kind, present))
    yield _sanitizer()
    yield _profiler()
    yield from (Finding("isolation", OPTIONAL, gap) for gap in gaps())
    yield _model()
    yield from map(_extra, EXTRAS)
    yield from _archive(archive)
    kernels = {name: len(shipped(name)) for name in op_names()}
    yield Finding(
        "shipped kernels", OK,
        f"{sum(kernels.values())} kernels for {sum(map(bool, kernels.values()))} of {counted(len(kernels), 'op')}",
    )  # fmt: skip


def _lacking(kind: str, present: set[str]) -> str:
    return f"needs {listed([need for need in policy_of(kind).needs if need not in present])}"


def compared_with_tested(project: str, installed: str, constraints: Iterable[str]) -> str:
    """Return the installed version, with a remark if a constraints file, given as lines, names an older version."""
    newest = {found[1]: found[2] for line in constraints if (found := TESTED.match(line))}.get(project)
    if newest and _release(installed) > _release(newest):
        return f"{installed} (newer than {newest}, the newest tested)"
    return installed


def _release(number: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 2.13.0+cu130, without trailing zeros."""
    found = re.match(r"[\d.]*", number)
    numbers = [int(part) for part in (found[0] if found else "").split(".") if part]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _tested_versions() -> list[str]:
    return resources.files("evolve").joinpath("tested_versions.txt").read_text(encoding="utf-8").splitlines()


def _torch() -> Finding:
    try:
        return Finding("PyTorch", OK, compared_with_tested("torch", version("torch"), _tested_versions()))
    except PackageNotFoundError:
        return Finding("PyTorch", MISSING, "not installed", "pip install torch")


def _gpu() -> Finding:
    if not (smi := _smi()):
        remedy = "install NVIDIA's driver, so that nvidia-smi shows the GPU; without a GPU, use the emulated device"
        return Finding("GPU", MISSING, "no NVIDIA GPU found", remedy)
    try:
        if torch_sees_gpu():
            return Finding("GPU", OK, smi)
        fault = f"PyTorch {version('torch')} cannot use it"
    except (ImportError, PackageNotFoundError) as error:
        fault = f"PyTorch cannot be imported: {error}"
    return Finding("GPU", MISSING, f"{smi}, but {fault}", "pip install --force-reinstall torch   (a build with CUDA)")


def _smi() -> str:
    """Return the first GPU and its driver as nvidia-smi prints them, or an empty string if there is no GPU."""
    if not (smi := shutil.which("nvidia-smi")):
        return ""
    query = [smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(
            query, capture_output=True, text=True, timeout=SMI_SECONDS, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return ""
    if not gpus:
        return ""
    name, driver, memory = (part.strip() for part in gpus[0].split(",", 2))
    return f"{name}, driver {driver}, {memory}" + (f", the first of {len(gpus)}" if len(gpus) > 1 else "")


def _cupy() -> Finding:
    named = [d for d in distributions() if (d.metadata["Name"] or "").lower().startswith("cupy")]
    if named and find_spec("cupy"):
        versions = [(d.metadata["Name"], compared_with_tested("cupy", d.version, _tested_versions())) for d in named]
        return Finding("CuPy", OK, ", ".join(f"{name} {installed}" for name, installed in versions))
    return Finding("CuPy", MISSING, "not installed", CUDA_WHEELS)


def _nvrtc() -> Finding:
    try:
        return Finding("NVRTC", OK, compared_with_tested("cuda-toolkit", nvrtc_version(), _tested_versions()))
    except Exception as error:  # noqa: BLE001 - CuPy raises different errors for a missing library
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Finding("NVRTC", MISSING, first[:120], CUDA_WHEELS)


def _headers() -> Finding:
    if folders := cuda_include_dirs():
        return Finding("CUDA headers", OK, str(folders[0]))
    remedy = "pip install 'cuda-toolkit[cudart,crt,cccl]==13.*', or set CUDA_HOME to an installed toolkit"
    return Finding("CUDA headers", MISSING, "no cuda_fp16.h found", remedy)


def _compiler() -> Finding:
    if command := find_compiler():
        return Finding("C++ compiler", OK, "ziglang" if "ziglang" in command else command[0])
    remedy = "apt install g++, or pip install ziglang"
    return Finding("C++ compiler", MISSING, "no g++, clang++ or ziglang", remedy)


def _sanitizer() -> Finding:
    if find_spec("cupy") and (found := sanitizer.command()):
        return Finding(sanitizer.NAME, OK, str(found))
    remedy = "pip install 'cuda-toolkit[sanitizer]==13.*'"
    return Finding(sanitizer.NAME, OPTIONAL, "not found: champions are confirmed without the sanitizer", remedy)


def _profiler() -> Finding:
    if not find_spec("cupy"):
        return Finding("ncu", OPTIONAL, "CuPy is missing: prompts will contain no counters", CUDA_WHEELS)
    tool = profiler.command()
    if tool is None:
        remedy = "apt install nsight-compute, or install NVIDIA's CUDA toolkit"
        return Finding("ncu", OPTIONAL, "not found: prompts will contain no counters", remedy)
    found, permitted = f"{tool} {profiler.version(tool)}".strip(), profiler.permitted()
    if permitted is False:
        return Finding("ncu", OPTIONAL, f"{found}, but this user may not read the GPU's counters", profiler.PERMIT)
    return Finding("ncu", OK, found if permitted is None else f"{found}, and this user may read the GPU's counters")


def _model() -> Finding:
    given = [name for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL") if os.environ.get(name)]
    if given:
        return Finding("language model", OK, f"{listed(given)} set")
    remedy = "set OPENAI_API_KEY, or OPENAI_BASE_URL for another server; without a model, the offline proposer runs"
    return Finding("language model", OPTIONAL, "neither OPENAI_API_KEY nor OPENAI_BASE_URL is set", remedy)


def _extra(name: str) -> Finding:
    """Return whether the modules of an extra of this package are installed. They are not imported."""
    modules, purpose = EXTRAS[name]
    if absent := [module for module in modules if not find_spec(module)]:
        remedy = f"pip install -e '.[{name}]'   ({CLONE})"
        return Finding(f"extra {name}", OPTIONAL, f"{listed(absent)} not installed: needed for {purpose}", remedy)
    installed = ", ".join(f"{module} {version(module)}" for module in modules)
    return Finding(f"extra {name}", OK, f"{installed}, for {purpose.partition(';')[0].partition(',')[0]}")


def _archive(requested: Path | None) -> Iterator[Finding]:
    """Yield the archive's counts, and the rates that evaluations have measured on each GPU."""
    path = wiring.archive_path(requested)
    if not path.exists():
        yield Finding("archive", OPTIONAL, f"{path} does not exist yet", "`evolve run softmax` creates it")
        return
    try:
        with closing(wiring.archive(requested, read_only=True)) as store:
            kernels, evaluations = sum(store.count(Kernel, "op").values()), sum(store.count(Evaluation, "op").values())
            newest = {info.key: info for info in store.find(DeviceInfo)}
    except (UserError, ArchiveError) as error:
        yield Finding("archive", MISSING, str(error), "name another archive with --archive or EVOLVE_ARCHIVE")
        return
    held = f"{counted(kernels, 'kernel')}, {counted(evaluations, 'evaluation')}"
    devices = ", ".join(sorted({info.name for info in newest.values()}))
    yield Finding("archive", OK, f"{path}: {held}{f' on {devices}' if devices else ''}")
    for _, info in sorted(newest.items()):
        if measured := _rates(info):
            yield Finding("measured rates", OK, f"{info.name}: {', '.join(measured)}")


def _rates(info: DeviceInfo) -> Iterable[str]:
    """Return the known rates and costs of a device."""
    named = {
        f"copy {info.copy_gb_s:.0f} GB/s": info.copy_gb_s,
        f"L2 {info.l2_gb_s:.0f} GB/s": info.l2_gb_s,
        f"launch {info.launch_us:.1f} us": info.launch_us,
        f"grid barrier {info.grid_barrier_us:.1f} us": info.grid_barrier_us,
    }
    known = [text for text, value in named.items() if value]
    return [*known, *(f"{dtype} products {rate:.0f} TFLOP/s" for dtype, rate in info.tflops)]

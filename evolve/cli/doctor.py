"""`evolve doctor`: what was found on this machine, and how to get what is missing."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path

import typer

from archive.kernel import Kernel
from archive.library import shipped
from archive.records import Evaluation
from archive.store import ArchiveError
from evolve import wiring
from evolve.cli.options import ArchiveOption, JsonOption, op_names
from evolve.engines.sandbox import gaps
from evolve.errors import UserError
from evolve.report.tables import fitted, plain_table
from evolve.report.words import console, counted, print_json

OK, MISSING, OPTIONAL = "ok", "missing", "not set"
STYLES = {OK: "green", MISSING: "red", OPTIONAL: "yellow"}
SMI_SECONDS = 20
CUDA_WHEELS = "pip install -e '.[cuda13]'   (or cuda12; where evolve was cloned)"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for. `remedy` is a command, or a sentence, for where it is missing."""

    name: str
    state: str
    found: str
    remedy: str = ""


def doctor(archive: ArchiveOption = None, as_json: JsonOption = False) -> None:
    """Show what this machine has, and how to install what is missing."""
    with console(stderr=True).status("looking round"):
        findings = list(_findings(archive))
    states = {finding.name: finding.state for finding in findings}
    usable = [kind for kind in wiring.DEVICE_KINDS if states[f"device {kind}"] == OK]
    if as_json:
        print_json({"usable": usable, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings, usable)
    if not usable:
        raise typer.Exit(1)


def _print(findings: list[Finding], usable: list[str]) -> None:
    shown = console()
    table = plain_table("", "", "")
    table.show_header = False
    for finding in findings:
        table.add_row(fitted(finding.name), fitted(finding.state, STYLES[finding.state]), finding.found)
    shown.print(table)
    remedies = [finding for finding in findings if finding.remedy]
    if remedies:
        shown.print("\nto put right what is missing", style="bold")
        for finding in remedies:
            shown.print(f"  {finding.name}: {finding.remedy}", soft_wrap=True)
    if usable:
        shown.print(f"\nnext: evolve run softmax{'' if 'cuda' in usable else '   (on the emulated device)'}")
    else:
        shown.print("\nNothing can run here yet.", style="red")


def _findings(archive: Path | None) -> Iterator[Finding]:
    yield Finding("Python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    torch, gpu = _torch(), _gpu()
    nvrtc, headers, compiler = _nvrtc(), _headers(), _compiler()
    yield from (torch, gpu, _cupy(), nvrtc, headers, compiler)
    cuda = all(finding.state == OK for finding in (torch, gpu, nvrtc, headers))
    emulated = all(finding.state == OK for finding in (torch, headers, compiler))
    yield Finding("device cuda", OK if cuda else MISSING, "ready" if cuda else "cannot run, see above")
    yield Finding("device emulated", OK if emulated else MISSING, "ready" if emulated else "cannot run, see above")
    yield _sanitizer()
    yield _profiler()
    yield from (Finding("isolation", OPTIONAL, gap) for gap in gaps())
    yield _model()
    yield _archive(archive)
    kernels = {name: len(shipped(name)) for name in op_names()}
    yield Finding(
        "shipped kernels", OK,
        f"{sum(kernels.values())} for {sum(map(bool, kernels.values()))} of {counted(len(kernels), 'op')}",
    )  # fmt: skip


def _torch() -> Finding:
    try:
        return Finding("PyTorch", OK, version("torch"))
    except PackageNotFoundError:
        return Finding("PyTorch", MISSING, "not installed", "pip install torch")


def _gpu() -> Finding:
    if not (smi := _smi()):
        remedy = "needs an NVIDIA GPU with its driver (nvidia-smi shows it); without one, the emulated device runs"
        return Finding("GPU", MISSING, "no NVIDIA GPU found", remedy)
    try:
        if wiring.torch_sees_gpu():
            return Finding("GPU", OK, smi)
        fault = f"PyTorch {version('torch')} cannot use it"
    except (ImportError, PackageNotFoundError) as error:
        fault = f"PyTorch cannot be imported: {error}"
    return Finding("GPU", MISSING, f"{smi}, but {fault}", "pip install --force-reinstall torch   (a build with CUDA)")


def _smi() -> str:
    """The first GPU and its driver, in the words of NVIDIA's own tool."""
    if not (smi := shutil.which("nvidia-smi")):
        return ""
    query = [smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        said = subprocess.run(
            query, capture_output=True, text=True, timeout=SMI_SECONDS, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return ""
    if not said:
        return ""
    name, driver, memory = (part.strip() for part in said[0].split(",", 2))
    return f"{name}, driver {driver}, {memory}" + (f", the first of {len(said)}" if len(said) > 1 else "")


def _cupy() -> Finding:
    named = [d for d in distributions() if (d.metadata["Name"] or "").lower().startswith("cupy")]
    if named and find_spec("cupy"):
        return Finding("CuPy", OK, ", ".join(f"{d.metadata['Name']} {d.version}" for d in named))
    return Finding("CuPy", MISSING, "not installed", CUDA_WHEELS)


def _nvrtc() -> Finding:
    try:
        from evolve.devices.cuda.compiler import nvrtc_version

        return Finding("NVRTC", OK, nvrtc_version())
    except Exception as error:  # noqa: BLE001 - CuPy raises whatever the missing library makes it raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Finding("NVRTC", MISSING, first[:120], CUDA_WHEELS)


def _headers() -> Finding:
    from evolve.devices.prelude import cuda_include_dirs

    if folders := cuda_include_dirs():
        return Finding("CUDA headers", OK, str(folders[0]))
    remedy = "pip install 'cuda-toolkit[cudart,crt,cccl]==13.*', or set CUDA_HOME to an installed toolkit"
    return Finding("CUDA headers", MISSING, "no cuda_fp16.h found", remedy)


def _compiler() -> Finding:
    from evolve.devices.emulated.compiler import find_compiler

    if command := find_compiler():
        return Finding("C++ compiler", OK, "ziglang" if "ziglang" in command else command[0])
    remedy = "apt install g++, or pip install ziglang"
    return Finding("C++ compiler", MISSING, "no g++, clang++ or ziglang", remedy)


def _sanitizer() -> Finding:
    """Without it champions are confirmed all the same, but nobody looks for races."""
    try:
        from evolve.devices.cuda.sanitizer import NAME, command

        if found := command():
            return Finding(NAME, OK, str(found))
    except ImportError:  # without CuPy it has nothing to look at
        pass
    said = "not found: champions are confirmed without it"
    return Finding("compute-sanitizer", OPTIONAL, said, "pip install 'cuda-toolkit[sanitizer]==13.*'")


def _profiler() -> Finding:
    """Without it prompts hold no counters, and everything else is as it was."""
    try:
        from evolve.devices.cuda import profiler
    except ImportError:  # without CuPy it has nothing to look at
        return Finding("ncu", OPTIONAL, "needs CuPy: prompts will hold no counters", CUDA_WHEELS)
    found = profiler.command()
    if found is None:
        said = "not found: prompts will hold no counters"
        return Finding("ncu", OPTIONAL, said, "apt install nsight-compute, or install NVIDIA's CUDA toolkit")
    said, may = f"{found} {profiler.version(found)}".strip(), profiler.permitted()
    if may is False:
        return Finding("ncu", OPTIONAL, f"{said}, but this user may not read the GPU's counters", profiler.PERMIT)
    return Finding("ncu", OK, said if may is None else f"{said}, and counters may be read")


def _model() -> Finding:
    given = [name for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL") if os.environ.get(name)]
    if given:
        return Finding("language model", OK, f"{' and '.join(given)} set")
    remedy = "set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own; until then the offline proposer works"
    return Finding("language model", OPTIONAL, "neither OPENAI_API_KEY nor OPENAI_BASE_URL is set", remedy)


def _archive(requested: Path | None) -> Finding:
    path = wiring.archive_path(requested)
    if not path.exists():
        return Finding("archive", OPTIONAL, f"{path} does not exist yet", "`evolve run softmax` makes it")
    try:
        with closing(wiring.archive(requested, read_only=True)) as store:
            kernels, evaluations = store.find(Kernel), store.find(Evaluation)
    except (UserError, ArchiveError) as error:
        return Finding("archive", MISSING, str(error), "--archive or EVOLVE_ARCHIVE names another")
    held = f"{counted(len(kernels), 'kernel')}, {counted(len(evaluations), 'evaluation')}"
    devices = ", ".join(sorted({evaluation.device.name for evaluation in evaluations}))
    return Finding("archive", OK, f"{path}: {held}{f' on {devices}' if devices else ''}")

"""NVIDIA's compute-sanitizer over one run of a kernel: out of bounds, races, uninitialised reads, wrong barriers."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from math import ceil
from pathlib import Path

import torch

from archive.binding import Bound
from archive.records import Sanitized
from evolve.devices.cuda import parcel
from evolve.devices.cuda.compiler import Cubin
from evolve.devices.cuda.parcel import Buffer, Parcel, Step

NAME = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Calls of the CUDA API fail for reasons that have nothing to do with the kernel; only its own errors count.
OPTIONS = (
    "--target-processes", "application-only", "--launch-timeout", "30", "--check-exit-code", "no",
    "--show-backtrace", "device", "--print-limit", "10",
)  # fmt: skip
OF_ONE_TOOL = {"memcheck": ("--report-api-errors", "no", "--padding", "65536")}
ROOT = Path(__file__).parents[3]
REPORT_CHARACTERS = 2000
SUMMARY = re.compile(
    r"(?:RACECHECK SUMMARY: .*\((\d+) errors?, \d+ warnings?\)|ERROR SUMMARY: (\d+) errors?)\s*$", re.MULTILINE
)
NOISE = re.compile(r"COMPUTE-SANITIZER|.*SUMMARY: |\s*Saved host backtrace|\s*Host Frame|Target application returned")


@cache
def command() -> Path | None:
    """Where the tool is: on the PATH, in an installed toolkit, or in NVIDIA's wheel."""
    return next((path for path in _candidates() if os.access(path, os.X_OK)), None)


def sanitize(
    bound: Bound, cubin: Cubin, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, int], seconds: float
) -> tuple[Sanitized, ...]:
    """One entry per tool, or none where compute-sanitizer is not installed; `outputs` are sizes in bytes."""
    tool = command()
    if tool is None:
        return ()
    with tempfile.TemporaryDirectory(prefix="evolve-sanitizer-") as name:
        folder = Path(name)
        parcel.write(packed(bound, cubin, inputs, outputs), folder)
        processes = {check: _started(tool, check, folder, seconds) for check in TOOLS}
        deadline = time.monotonic() + seconds
        try:
            return tuple(_finished(check, process, folder, deadline, seconds) for check, process in processes.items())
        finally:
            for process in processes.values():
                process.kill()
                process.wait()


def packed(bound: Bound, cubin: Cubin, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, int]) -> Parcel:
    """Inputs hold their values and zeroed workspaces zeros; nothing else holds anything."""
    buffers = [Buffer(name, tensor.nbytes, contents=_bytes(tensor)) for name, tensor in inputs.items()]
    buffers += [Buffer(name, nbytes) for name, nbytes in outputs.items()]
    buffers += [Buffer(workspace.name, workspace.nbytes, workspace.zero) for workspace in bound.workspace]
    static = {entry.entry: entry.shared_bytes for entry in cubin.resources}
    steps = [
        Step(launch, cubin.entries[launch.entry].parameter_bytes, static.get(launch.entry, 0))
        for launch in bound.launches
    ]
    device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    return Parcel(cubin.image, tuple(steps), tuple(buffers), device)


def judged(tool: str, log: str, said: str, *, finished: bool) -> Sanitized:
    """What the tool's log amounts to; `said` is what the kernel's process wrote, `finished` that it came to its end."""
    counts = [int(hazards or errors) for hazards, errors in SUMMARY.findall(log)]
    if any(counts):
        return Sanitized(tool, max(counts), _report(log))
    if finished and counts:
        return Sanitized(tool, 0)
    last = said.strip().splitlines()[-1:]  # of a traceback, the error itself
    words = _without_paths("\n".join([*last, _report(log)]).strip())
    return Sanitized(tool, None, f"could not be run to its end: {words or 'no word of why'}"[:REPORT_CHARACTERS])


def _started(tool: Path, check: str, folder: Path, seconds: float) -> "subprocess.Popen[bytes]":
    options = [*OPTIONS, *OF_ONE_TOOL.get(check, ()), "--tool", check, "--log-file", str(_log(folder, check))]
    process = [sys.executable, "-m", "evolve.devices.cuda.sanitized", str(folder), _mark(check), str(ceil(seconds))]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (folder / f"{check}.out").open("wb") as said:
        return subprocess.Popen(
            [str(tool), *options, *process],
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip


def _finished(
    check: str, process: "subprocess.Popen[bytes]", folder: Path, deadline: float, seconds: float
) -> Sanitized:
    try:
        process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Sanitized(check, None, f"took more than {seconds:.0f} s")
    log = _log(folder, check)
    return judged(
        check,
        log.read_text(errors="replace") if log.exists() else "",
        (folder / f"{check}.out").read_text(errors="replace"),
        finished=(folder / _mark(check)).exists(),
    )


def _log(folder: Path, check: str) -> Path:
    return folder / f"{check}.log"


def _mark(check: str) -> str:
    return f"{check}.{parcel.DONE}"


def _report(log: str) -> str:
    """The tool's words about the first few errors."""
    lines = (line.removeprefix("=========").rstrip() for line in log.splitlines() if line.startswith("========="))
    kept = (line[1:] if line.startswith(" ") else line for line in lines)
    return _without_paths("\n".join(line for line in kept if line and not NOISE.match(line)))[:REPORT_CHARACTERS]


def _without_paths(text: str) -> str:
    return re.sub(r"/\S*/(?=[\w.])", "", text)


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _candidates() -> Iterator[Path]:
    if found := shutil.which(NAME):
        yield Path(found)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "bin" / NAME
    yield Path("/usr/local/cuda/bin") / NAME
    for key in ("purelib", "platlib"):
        for version in ("cu13", "cuda_sanitizer_api"):
            yield Path(sysconfig.get_path(key)) / "nvidia" / version / "bin" / NAME
            yield Path(sysconfig.get_path(key)) / "nvidia" / version / NAME / NAME

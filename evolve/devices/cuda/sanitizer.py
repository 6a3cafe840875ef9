"""One run of a kernel under NVIDIA's compute-sanitizer: finds accesses out of bounds, races and wrong barriers."""

import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from archive.binding import Bound
from archive.records import Sanitized
from evolve.devices.cuda import replay
from evolve.devices.cuda.compiler import Cubin

if TYPE_CHECKING:
    import torch

NAME = "compute-sanitizer"
WHEELS = ("cu13", "cuda_sanitizer_api")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Errors of CUDA API calls are not reported: they have nothing to do with the kernel.
OPTIONS = (
    "--target-processes", "application-only", "--launch-timeout", "30", "--check-exit-code", "no",
    "--show-backtrace", "device", "--print-limit", "10",
)  # fmt: skip
OF_ONE_TOOL = {"memcheck": ("--report-api-errors", "no", "--padding", "65536")}
PACKED_BYTES = 2**26  # of each input: it passes through a file
REPORT_CHARACTERS = 2000
SUMMARY = re.compile(
    r"(?:RACECHECK SUMMARY: .*\((\d+) errors?, \d+ warnings?\)|ERROR SUMMARY: (\d+) errors?)\s*$", re.MULTILINE
)
NOISE = re.compile(r"COMPUTE-SANITIZER|.*SUMMARY: |\s*Saved host backtrace|\s*Host Frame|Target application returned")


@cache
def command() -> Path | None:
    return replay.tool(NAME, WHEELS)


def sanitize(
    bound: Bound, cubin: Cubin, inputs: "Mapping[str, torch.Tensor]", outputs: Mapping[str, int], seconds: float
) -> tuple[Sanitized, ...]:
    """Return one report per tool, or none if compute-sanitizer is not installed; `outputs` are sizes in bytes."""
    tool = command()
    if tool is None:
        return ()
    with tempfile.TemporaryDirectory(prefix="evolve-sanitizer-") as name:
        folder = Path(name)
        replay.write(replay.packed(bound, cubin, inputs, outputs, PACKED_BYTES), folder)
        processes = {check: _started(tool, check, folder, seconds) for check in TOOLS}
        deadline = time.monotonic() + seconds
        try:
            return tuple(_finished(check, process, folder, deadline, seconds) for check, process in processes.items())
        finally:
            for process in processes.values():
                replay.end(process)


def judged(tool: str, log: str, output: str, *, finished: bool) -> Sanitized:
    """Return the report for a tool's log; `output` is that of the kernel's process."""
    counts = [int(hazards or errors) for hazards, errors in SUMMARY.findall(log)]
    if any(counts):
        return Sanitized(tool, max(counts), _report(log))
    if finished and counts:
        return Sanitized(tool, 0)
    last = output.strip().splitlines()[-1:]  # the error itself, if it is a traceback
    words = _without_paths("\n".join([*last, _report(log)]).strip())
    return Sanitized(tool, None, f"did not finish: {words or 'no reason given'}"[:REPORT_CHARACTERS])


def _started(tool: Path, check: str, folder: Path, seconds: float) -> "subprocess.Popen[bytes]":
    options = [*OPTIONS, *OF_ONE_TOOL.get(check, ()), "--tool", check, "--log-file", str(_log(folder, check))]
    return replay.started([str(tool), *options], folder, _mark(check), seconds)


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
        replay.printed(folder, _mark(check)).read_text(errors="replace"),
        finished=(folder / _mark(check)).exists(),
    )


def _log(folder: Path, check: str) -> Path:
    return folder / f"{check}.log"


def _mark(check: str) -> str:
    return f"{check}.{replay.DONE}"


def _report(log: str) -> str:
    """Return the tool's text about the first few errors."""
    lines = (line.removeprefix("=========").rstrip() for line in log.splitlines() if line.startswith("========="))
    kept = (line[1:] if line.startswith(" ") else line for line in lines)
    return _without_paths("\n".join(line for line in kept if line and not NOISE.match(line)))[:REPORT_CHARACTERS]


def _without_paths(text: str) -> str:
    return re.sub(r"/\S*/(?=[\w.])", "", text)

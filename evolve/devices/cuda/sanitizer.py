"""Runs of a kernel under NVIDIA's compute-sanitizer: finds accesses out of bounds, races and wrong barriers."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from archive.records import TOO_LONG, Sanitized
from evolve.devices import turns as turns_of_workers
from evolve.devices.cuda import replay
from evolve.devices.cuda.replay import PackedRun

NAME = "compute-sanitizer"
WHEELS = ("cu13", "cuda_sanitizer_api")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Errors of CUDA API calls are not reported: they have nothing to do with the kernel.
OPTIONS = (
    "--target-processes", "application-only", "--launch-timeout", "30", "--check-exit-code", "no",
    "--show-backtrace", "device", "--print-limit", "10",
)  # fmt: skip
OF_ONE_TOOL = {"memcheck": ("--report-api-errors", "no", "--padding", "65536")}
SECONDS_TOGETHER = 120.0  # time limit for all runs in one process of a tool
ALONE_AT_ONCE = 2  # number of runs that are examined at the same time, each by a process of every tool that is left
PACKED_BYTES = 2**26  # limit on each input, which is passed through a file
REPORT_CHARACTERS = 2000
SUMMARY = re.compile(
    r"(?:RACECHECK SUMMARY: .*\((\d+) errors?, \d+ warnings?\)|ERROR SUMMARY: (\d+) errors?)\s*$", re.MULTILINE
)
# The tool counts its own failures as errors, for example if other processes hold the GPU's memory.
OWN_FAILURES = ("Device not supported", "Internal", "Out of memory")
NOISE = re.compile(r"COMPUTE-SANITIZER|.*SUMMARY: |\s*Saved host backtrace|\s*Host Frame|Target application returned")


@cache
def command() -> Path | None:
    return replay.tool(NAME, WHEELS)


def sanitize(runs: Sequence[PackedRun], seconds: float) -> list[tuple[Sanitized, ...]]:
    """Return a report per tool for each run, or none if compute-sanitizer is not installed.

    A tool takes seconds to start, so one process of it does all runs. If it reports an error, it starts again for each
    run alone, within `seconds`, until one shows the error. If none does, but not all finish, the first run gets the
    report on all runs. No limit counts the time for which a process waits until another worker has timed a kernel.
    """
    tool = command()
    if tool is None:
        return [() for _ in runs]
    needed = [check for check in TOOLS if check != "racecheck" or any(map(_shares_memory, runs))]
    together = _examined(tool, needed, runs, SECONDS_TOGETHER) if len(runs) > 1 else ()
    clean = [report for report in together if report.errors == 0]
    left = [check for check in needed if check not in {report.tool for report in clean}]
    alone = _examined_alone(tool, left, runs, seconds)
    if not _has_errors(alone):
        open_still = {report.tool for own in alone for report in own if report.errors is None}
        kept = [report for report in together if report.errors and report.tool in open_still]
        alone[0] = (*(own for own in alone[0] if own.tool not in {report.tool for report in kept}), *kept)
    return [tuple(sorted((*clean, *own), key=lambda report: TOOLS.index(report.tool))) for own in alone]


def _examined_alone(
    tool: Path, checks: Sequence[str], runs: Sequence[PackedRun], seconds: float
) -> list[tuple[Sanitized, ...]]:
    """Return reports on each run alone. After a run with an error, the reports on later runs are empty.

    Only a few runs are examined at once: dozens of processes on one GPU would slow each other beyond their limits.
    """
    found: list[tuple[Sanitized, ...]] = []
    with ThreadPoolExecutor(ALONE_AT_ONCE) as pool:
        for first in range(0, len(runs), ALONE_AT_ONCE):
            if _has_errors(found):
                break
            few = runs[first : first + ALONE_AT_ONCE]
            found += pool.map(lambda run: _examined(tool, checks, [run], seconds), few)
    return [*found, *(() for _ in runs[len(found) :])]


def _has_errors(reports: Iterable[Sequence[Sanitized]]) -> bool:
    return any(report.errors for own in reports for report in own)


def _shares_memory(run: PackedRun) -> bool:
    """Return whether a launch has shared memory. Racecheck examines nothing else."""
    return any(step.static_shared or step.launch.shared for step in run.steps)


def _examined(tool: Path, checks: Sequence[str], runs: Sequence[PackedRun], seconds: float) -> tuple[Sanitized, ...]:
    """Return a report for each of these checks on all runs."""
    if not checks:
        return ()
    with tempfile.TemporaryDirectory(prefix="evolve-sanitizer-") as name:
        folder = Path(name)
        replay.write_all(runs, folder)
        processes = {check: _started(tool, check, folder, seconds) for check in checks}
        try:
            with ThreadPoolExecutor() as pool:
                return tuple(pool.map(lambda each: _finished(each[0], each[1], folder, seconds), processes.items()))
        finally:
            for process in processes.values():
                replay.end(process)


def judged(tool: str, log: str, output: str, *, finished: bool) -> Sanitized:
    """Return the report for a tool's log; `output` is that of the kernel's process."""
    counts = [int(hazards or errors) for hazards, errors in SUMMARY.findall(log)]
    failed_itself = any(f"Error: {failure}" in log for failure in OWN_FAILURES)
    if any(counts) and not failed_itself:
        return Sanitized(tool, max(counts), _report(log))
    if finished and counts and not failed_itself:
        return Sanitized(tool, 0)
    last = output.strip().splitlines()[-1:]  # the last line, which is the error if the output is a traceback
    words = _without_paths("\n".join([*last, _report(log)]).strip())
    return Sanitized(tool, None, f"did not finish: {words or 'no reason given'}"[:REPORT_CHARACTERS])


def _started(tool: Path, check: str, folder: Path, seconds: float) -> "subprocess.Popen[bytes]":
    options = [*OPTIONS, *OF_ONE_TOOL.get(check, ()), "--tool", check, "--log-file", str(_log(folder, check))]
    turns = os.environ.get(turns_of_workers.FOLDER, "")
    return replay.started([str(tool), *options], folder, _mark(check), seconds, turns=turns)


def _finished(check: str, process: "subprocess.Popen[bytes]", folder: Path, seconds: float) -> Sanitized:
    if not replay.ended(process, folder, _mark(check), seconds):
        return Sanitized(check, None, f"{TOO_LONG} {seconds:.0f} s")
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

"""One run of a kernel under NVIDIA's profiler `ncu`: collects one set of counters for all its launches."""

import csv
import math
import re
import site
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from archive.kernel import Bound
from evolve.devices.counters import COUNTERS, PER_LAUNCH, of_launch
from evolve.devices.cuda import replay
from evolve.devices.cuda.compiler import Cubin
from evolve.devices.device import Counted

if TYPE_CHECKING:
    import torch

NAME = "ncu"
WHEELS = ("cu13", "nsight_compute")
DURATION = "gpu__time_duration.sum"
VERSION_SECONDS = 20.0
GRACE_SECONDS = 5.0  # time for the profiler to finish after the deadline of the kernel's process
FAULT_CHARACTERS = 400
# Clocks are not fixed and caches are cold, as in timings of kernels.
OPTIONS = (
    "--target-processes", "application-only", "--csv", "--page", "raw", "--print-units", "base",
    "--clock-control", "none", "--cache-control", "all", "--replay-mode", "kernel",
)  # fmt: skip
# Units that some versions print in spite of `--print-units base`.
SCALES = {
    "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9,
    "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
}  # fmt: skip
UNKNOWN = re.compile(r"Failed to find metric (\S+)")
BUSY = "driver resource was unavailable"  # a missing permission may also cause this message
NOT_PERMITTED = re.compile(r"ERR_NVGPUCTRPERM|does not have permission")
BROKEN = re.compile(r"not compatible with Nsight|failed to connect to the CUDA driver|Driver could not be loaded", re.I)
ERROR = re.compile(r"^==ERROR== *(.*?)\.?$", re.MULTILINE)
RESTRICTION = Path("/proc/driver/nvidia/params")
OWN_STATUS = Path("/proc/self/status")
CAP_SYS_ADMIN = 1 << 21
PERMIT = (
    "run as root (in a container with --cap-add=SYS_ADMIN), or give the nvidia module the option "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
Launch = Mapping[str, float]


@cache
def command() -> Path | None:
    folders = [
        *Path("/usr/local").glob("cuda-*/bin"),
        *Path("/opt/nvidia/nsight-compute").glob("*"),
    ]
    return replay.tool(NAME, WHEELS, (folder / NAME for folder in sorted(folders, key=_newest, reverse=True)))


def _newest(folder: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", str(folder))]


def version(tool: Path) -> str:
    """Return the tool's version, or an empty string."""
    try:
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"Version (\S+)", said.stdout)
    return found[1] if found else ""


def permitted() -> bool | None:
    """Return whether this user may read the GPU's counters; None if the driver does not say."""
    try:
        restricted = re.search(r"RmProfilingAdminOnly: *1", RESTRICTION.read_text())
        held = re.search(r"CapEff:\s*(\w+)", OWN_STATUS.read_text())
    except OSError:
        return None
    return not restricted or bool(held and int(held[1], 16) & CAP_SYS_ADMIN)


class Ncu:
    """The tool, and the counters that it supports on this GPU."""

    def __init__(self, tool: Path) -> None:
        self._tool = tool
        self._names = [counter[0] for counter in COUNTERS]

    def count(
        self,
        bound: Bound,
        cubin: Cubin,
        inputs: "Mapping[str, torch.Tensor]",
        outputs: Mapping[str, int],
        seconds: float,
    ) -> Counted:
        """Return the counters of one run of the kernel, without unknown ones; `outputs` are sizes in bytes."""
        if not bound.launches:
            return Counted(fault="the kernel launches nothing here")
        deadline, counted = time.monotonic() + seconds, Counted()
        with tempfile.TemporaryDirectory(prefix="evolve-profiler-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            try:
                replay.write(replay.packed(bound, cubin, inputs, outputs), folder)
                while not counted.counters and (left := deadline - time.monotonic()) > 0:
                    log, output, finished = self._run(bound, folder, left)
                    counted = judged(log, output, len(bound.launches), finished=finished)
                    if not self._drop_unknown(log):
                        break
            except OSError as error:  # for example, the disk may be too full for gigabytes of inputs
                return Counted(fault=f"the profiler cannot be run: {error.strerror}")
        overdue = not counted.counters and time.monotonic() >= deadline
        return Counted(fault=f"took more than {seconds:.0f} s") if overdue else counted

    def _drop_unknown(self, log: str) -> bool:
        """Drop the counters that the log reports as unknown; return whether some were dropped and others remain."""
        known = [name for name in self._names if not _unknown(name, log)]
        dropped = 0 < len(known) < len(self._names)
        self._names = known if dropped else self._names
        return dropped

    def _run(self, bound: Bound, folder: Path, seconds: float) -> tuple[str, str, bool]:
        """Return the profiler's log, the output of the kernel's process, and whether that process succeeded."""
        log, done = folder / "counters.csv", folder / replay.DONE
        for file in (log, done):  # remove what an earlier run has written
            file.unlink(missing_ok=True)
        variables = {
            # folder of the profiler's lock file; in /tmp, another user's profiler may hold the lock
            "TMPDIR": str(folder),
            "HOME": str(folder),  # the profiler copies its section files there
            "PYTHONUSERBASE": site.getuserbase(),  # lets the kernel's process find CuPy if it is installed for the user
            "LC_ALL": "C",  # determines the format of numbers
            # A worker's sandbox allows no other kind of socket to the kernel's process.
            "NV_COMPUTE_PROFILER_LOCAL_CONNECTION_OVERRIDE": "uds",
        }
        command = command_line(self._tool, self._names, bound, log)
        process = replay.started(command, folder, replay.DONE, seconds, variables=variables)
        try:
            process.wait(timeout=seconds + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            replay.end(process)
        output = replay.printed(folder, replay.DONE).read_text(errors="replace")
        return log.read_text(errors="replace") if log.exists() else "", output, done.exists()


def _unknown(name: str, log: str) -> bool:
    """Return whether the log reports a counter as unknown. The log shows a name without a suffix as a pattern."""
    reported = (text.removeprefix("regex:^").replace("\\", "").rstrip(",.;$") for text in UNKNOWN.findall(log))
    return any(text == name or text.startswith(f"{name}.(") for text in reported)


def command_line(tool: Path, names: Sequence[str], bound: Bound, log: Path) -> list[str]:
    """Return the command that profiles each of the plan's launches once."""
    entries = "|".join(dict.fromkeys(launch.entry for launch in bound.launches))
    which = ("--kernel-name", f"regex:^({entries})$", "--launch-count", str(len(bound.launches)))
    return [str(tool), *OPTIONS, *which, "--metrics", ",".join(names), "--log-file", str(log)]


def judged(log: str, output: str, launches: int, *, finished: bool) -> Counted:
    """Return the counters of a run, or the reason why there are none."""
    counted = rows(log)
    if finished and len(counted) == launches and (found := combined(counted)):
        return Counted(found)
    if NOT_PERMITTED.search(log) and BUSY not in log:
        return Counted(fault=f"this user may not read the GPU's counters: {PERMIT}", lasting=True)
    if BUSY in log:
        return Counted(fault=f"another tool holds the GPU's counters (DCGM?), or this user may not read them: {PERMIT}")
    # the last line of a traceback
    last = [line for line in output.strip().splitlines() if not line.startswith("==")][-1:]
    words = "; ".join(dict.fromkeys([*ERROR.findall(output), *ERROR.findall(log), *last]))
    words = words or f"{len(counted)} of {launches} launches were counted"
    fault = f"ncu failed: {words}"[:FAULT_CHARACTERS]
    return Counted(fault=fault, lasting=bool(BROKEN.search(log + output)))


def rows(log: str) -> list[Launch]:
    """Return the counters of each launch in base units, without unavailable ones."""
    table = csv.reader(line for line in log.splitlines() if line.startswith('"'))
    names: list[str] = []
    units: list[str] = []
    found: list[Launch] = []
    for row in table:
        if row[0] == "ID":
            names, units = row, []
        elif names and not row[0].isdigit():
            units = row
        elif names:
            scales = [SCALES.get(unit, 1.0) for unit in units] or [1.0] * len(row)
            pairs = zip(names, row, scales, strict=False)
            read = {name: (_number(text), scale) for name, text, scale in pairs if "__" in name}
            found.append({name: value * scale for name, (value, scale) in read.items() if value is not None})
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def combined(launches: Sequence[Launch]) -> tuple[tuple[str, float], ...]:
    """Combine the launches: add counts, average ratios weighted by time, and take launch facts from the longest one.

    If there are several launches, the most informative counters of each launch follow.
    """
    times = [launch.get(DURATION, 0.0) for launch in launches]
    longest = launches[times.index(max(times))]
    found = []
    for name, *_ in COUNTERS:
        held = [(launch[name], time or 1.0) for launch, time in zip(launches, times, strict=True) if name in launch]
        if name.startswith("launch__"):
            value = longest.get(name)
        elif name.endswith(".sum"):
            value = sum(count for count, _ in held) if len(held) == len(launches) else None
        else:
            value = sum(share * time for share, time in held) / sum(time for _, time in held) if held else None
        if value is not None:
            found.append((name, value))
    for number, launch in enumerate(launches, start=1) if len(launches) > 1 else ():
        found += [(of_launch(name, number), launch[name]) for name, *_ in PER_LAUNCH if name in launch]
    return tuple(found)

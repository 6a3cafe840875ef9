"""NVIDIA's profiler `ncu` over one run of a kernel: the counters of all its launches, as one set."""

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

from archive.binding import Bound
from evolve.devices.counters import COUNTERS
from evolve.devices.cuda import replay
from evolve.devices.cuda.compiler import Cubin
from evolve.devices.device import Counted

if TYPE_CHECKING:
    import torch

NAME = "ncu"
WHEELS = ("cu13", "nsight_compute")
DURATION = "gpu__time_duration.sum"
VERSION_SECONDS = 20.0
GRACE_SECONDS = 5.0  # for the profiler to wind up once its deadline has ended the process that it watches
FAULT_CHARACTERS = 400
# Our times are of a GPU at its own clocks whose caches are cold; so are these.
OPTIONS = (
    "--target-processes", "application-only", "--csv", "--page", "raw", "--print-units", "base",
    "--clock-control", "none", "--cache-control", "all", "--replay-mode", "kernel",
)  # fmt: skip
# What `--print-units base` should have spared us, and yet a version may print.
SCALES = {
    "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9,
    "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
}  # fmt: skip
UNKNOWN = re.compile(r"Failed to find metric (\S+)")
BUSY = "driver resource was unavailable"  # its words name the permission too, as the other thing it may be
NOT_PERMITTED = re.compile(r"ERR_NVGPUCTRPERM|does not have permission")
BROKEN = re.compile(r"not compatible with Nsight|failed to connect to the CUDA driver|Driver could not be loaded", re.I)
ERROR = re.compile(r"^==ERROR== *(.*?)\.?$", re.MULTILINE)
RESTRICTION = Path("/proc/driver/nvidia/params")
OURSELVES = Path("/proc/self/status")
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
    """As the tool tells it, or nothing."""
    try:
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"Version (\S+)", said.stdout)
    return found[1] if found else ""


def permitted() -> bool | None:
    """Whether this user may read the GPU's counters; None where the driver does not say."""
    try:
        restricted = re.search(r"RmProfilingAdminOnly: *1", RESTRICTION.read_text())
        held = re.search(r"CapEff:\s*(\w+)", OURSELVES.read_text())
    except OSError:
        return None
    return not restricted or bool(held and int(held[1], 16) & CAP_SYS_ADMIN)


class Ncu:
    """The tool, and the counters that it turned out not to know for this GPU."""

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
        """Of one run of the kernel; `outputs` are sizes in bytes. A counter nobody knows does not cost the others."""
        if not bound.launches:
            return Counted(fault="the kernel launches nothing here")
        deadline, counted = time.monotonic() + seconds, Counted()
        with tempfile.TemporaryDirectory(prefix="evolve-profiler-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            try:
                replay.write(replay.packed(bound, cubin, inputs, outputs), folder)
                while not counted.counters and (left := deadline - time.monotonic()) > 0:
                    log, said, finished = self._run(bound, folder, left)
                    counted = judged(log, said, len(bound.launches), finished=finished)
                    if not self._forgot(log):
                        break
            except OSError as error:  # inputs of gigabytes, and a disk without room for them
                return Counted(fault=f"the profiler cannot be run: {error.strerror}")
        overdue = not counted.counters and time.monotonic() >= deadline
        return Counted(fault=f"took more than {seconds:.0f} s") if overdue else counted

    def _forgot(self, log: str) -> bool:
        """Whether there were names that the log does not know, and others are left."""
        known = [name for name in self._names if not _unknown(name, log)]
        forgot = 0 < len(known) < len(self._names)
        self._names = known if forgot else self._names
        return forgot

    def _run(self, bound: Bound, folder: Path, seconds: float) -> tuple[str, str, bool]:
        """What the profiler and the kernel's process wrote, and whether the latter came to its end."""
        log, done = folder / "counters.csv", folder / replay.DONE
        for left in (log, done):  # by an earlier run
            left.unlink(missing_ok=True)
        own = {
            "TMPDIR": str(folder),  # its lock is a file there, which other users' profilers may hold in /tmp
            "HOME": str(folder),  # it copies its sections there
            "PYTHONUSERBASE": site.getuserbase(),  # for the kernel's process, where CuPy was installed for the user
            "LC_ALL": "C",  # numbers
            # How it speaks to the kernel's process: a worker's sandbox leaves no other sockets to it.
            "NV_COMPUTE_PROFILER_LOCAL_CONNECTION_OVERRIDE": "uds",
        }
        command = command_line(self._tool, self._names, bound, log)
        process = replay.started(command, folder, replay.DONE, seconds, own)
        try:
            process.wait(timeout=seconds + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            replay.end(process)
        said = replay.printed(folder, replay.DONE).read_text(errors="replace")
        return log.read_text(errors="replace") if log.exists() else "", said, done.exists()


def _unknown(name: str, log: str) -> bool:
    """Whether the log names it; a name without a suffix is told as the pattern of all names that it might stand for."""
    told = (text.removeprefix("regex:^").replace("\\", "").rstrip(",.;$") for text in UNKNOWN.findall(log))
    return any(text == name or text.startswith(f"{name}.(") for text in told)


def command_line(tool: Path, names: Sequence[str], bound: Bound, log: Path) -> list[str]:
    """Only the plan's own launches are profiled, each once."""
    entries = "|".join(dict.fromkeys(launch.entry for launch in bound.launches))
    which = ("--kernel-name", f"regex:^({entries})$", "--launch-count", str(len(bound.launches)))
    return [str(tool), *OPTIONS, *which, "--metrics", ",".join(names), "--log-file", str(log)]


def judged(log: str, said: str, launches: int, *, finished: bool) -> Counted:
    """What a run amounts to: counters, or the reason why there are none."""
    counted = rows(log)
    if finished and len(counted) == launches and (found := combined(counted)):
        return Counted(found)
    if NOT_PERMITTED.search(log) and BUSY not in log:
        return Counted(fault=f"this user may not read the GPU's counters: {PERMIT}", lasting=True)
    if BUSY in log:
        return Counted(fault=f"another tool holds the GPU's counters (DCGM?), or this user may not read them: {PERMIT}")
    last = [line for line in said.strip().splitlines() if not line.startswith("==")][-1:]  # of a traceback, the error
    words = "; ".join(dict.fromkeys([*ERROR.findall(said), *ERROR.findall(log), *last]))
    words = words or f"{len(counted)} of {launches} launches were counted"
    fault = f"ncu came to nothing: {words}"[:FAULT_CHARACTERS]
    return Counted(fault=fault, lasting=bool(BROKEN.search(log + said)))


def rows(log: str) -> list[Launch]:
    """The counters of each launch, in base units; what was not available is left out."""
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
    """One set for all launches: counts add up, ratios are weighted by time, a launch's own facts are the longest's."""
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
    return tuple(found)

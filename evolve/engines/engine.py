"""The contract of an engine: it evaluates jobs on one device and yields evaluations in the order they finish."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve.evaluation.requests import TimingRequest, TimingResult


@dataclass(frozen=True)
class Job:
    """A kernel to evaluate. `op` is what the catalog loads: a name, or the absolute path of a file."""

    kernel: Kernel
    op: str
    bars: tuple[tuple[str, float], ...] = ()  # time to beat on each workload, in us: timing stops early far above it
    confirm: bool = False  # in a fresh process, on held-out shapes, in duels with the baselines, under the sanitizer
    # None to accept duplicates. Where kernels are compiled ahead, a kernel that repeats another's machine code is not
    # run. The emulated device runs it all the same: that costs no more than compiling it ahead would.
    duplicates: "FindsDuplicates | None" = field(default=None, compare=False, repr=False)


class FindsDuplicates(Protocol):
    """What an engine asks about a kernel it has compiled."""

    def by_code(self, kernel_id: str, code: str) -> str:
        """Return a log that names another kernel with this machine code, or an empty string."""


class Engine(Protocol):
    @property
    def info(self) -> DeviceInfo:
        """The device that evaluations are made on."""

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        """Yield one evaluation per job, also for a job that kills or hangs its worker."""

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        """Return what the device's profiler counts, or None if it cannot. Not called during evaluations."""

    @property
    def unprofiled(self) -> str:
        """Why the last `profile` returned None; empty if it did not."""

    def close(self) -> None:
        """Stop everything that runs. May be called at any moment, and twice."""


@runtime_checkable
class TimesPyTorch(Protocol):
    """An engine that can also time PyTorch itself, which needs no kernel."""

    def time_pytorch(self, request: TimingRequest) -> TimingResult:
        """Return PyTorch's times at one workload, or why there are none. Not called during evaluations."""

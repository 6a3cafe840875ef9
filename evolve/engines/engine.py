"""The contract of an engine: evaluations in whatever order they finish, on one kind of device."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve.engines.messages import TimingRequest, TimingResult


@dataclass(frozen=True)
class Job:
    """A kernel to evaluate. `op` is what the catalog loads: a name, or the absolute path of a file."""

    kernel: Kernel
    op: str
    bars: tuple[tuple[str, float], ...] = ()  # the time to beat on each workload, in us: what is far off stops early
    confirm: bool = False  # in a fresh process, on held-out shapes, in duels with the baselines, under the sanitizer
    # Verdicts by the code of their traits; None to look for no duplicates. A kernel that compiles to what one of these
    # was given on, or another job with `known` before it, is not run where kernels are compiled ahead. The emulated
    # device runs it all the same: that costs no more than a compiler ahead of it would.
    known: Mapping[str, Evaluation] | None = field(default=None, compare=False, repr=False)


class Engine(Protocol):
    @property
    def info(self) -> DeviceInfo:
        """The device that the evaluations will be made on."""

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        """One evaluation per job. A job that kills or hangs its worker gets one too."""

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        """What the device's profiler counts, or None where it cannot; never called while evaluations are under way."""

    @property
    def unprofiled(self) -> str:
        """Why the last `profile` came to nothing, for a person; empty where it did not."""

    def close(self) -> None:
        """Stop whatever is running; safe to call at any moment."""


@runtime_checkable
class TimesPyTorch(Protocol):
    """What an engine may offer besides: PyTorch's own times, which need no kernel."""

    def time_pytorch(self, wanted: TimingRequest) -> TimingResult:
        """Times at one workload, or why there are none. Never called while evaluations are under way."""

"""The contract of an engine: evaluations in whatever order they finish, on one kind of device."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation


@dataclass(frozen=True)
class Job:
    """A kernel to evaluate. `op` is what the catalog loads: a name, or the absolute path of a file."""

    kernel: Kernel
    op: str
    bars: tuple[tuple[str, float], ...] = ()  # the time to beat on each workload, in us: what is far off stops early
    confirm: bool = False  # in a fresh process, on held-out shapes, in duels with the baselines, under the sanitizer


class Engine(Protocol):
    @property
    def info(self) -> DeviceInfo:
        """The device that the evaluations will be made on."""

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        """One evaluation per job. A job that kills or hangs its worker gets one too."""

    def close(self) -> None:
        """Stop whatever is running; safe to call at any moment."""

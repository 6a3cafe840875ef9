"""The contract of a device, and how one says no to a kernel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from archive.binding import Bound
from archive.records import Conditions, DeviceInfo, Outcome, Resources, Sanitized, Traits

GraphTime = Callable[[Sequence[Callable[[], object]]], float | None]


class RejectedError(Exception):
    """A kernel did not make it. Never leaves the evaluation, where it becomes an Evaluation."""

    def __init__(self, outcome: Outcome, log: str) -> None:
        super().__init__(f"{outcome}: {log}")
        self.outcome = outcome
        self.log = log


class Machined(Protocol):
    """What came out of a compiler."""

    @property
    def traits(self) -> Traits | None:
        """What the kernel became on one workload; None where there is no machine code of a GPU to look at."""


class Program(Machined, Protocol):
    """A kernel compiled for one workload, ready to run."""

    bound: Bound
    resources: tuple[Resources, ...]
    log: str  # the compiler's warnings

    def launch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Enqueue every launch of the plan; `tensors` holds the inputs, outputs and workspace by name."""


class Sanitizer(Protocol):
    def __call__(
        self, bound: Bound, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, int], seconds: float
    ) -> tuple[Sanitized, ...]:
        """Run the kernel once under each of its tools, in processes of their own; `outputs` are sizes in bytes."""


@dataclass(frozen=True)
class Counted:
    """What a profiler counted, or why it could not; `lasting` where no other kernel would fare better."""

    counters: tuple[tuple[str, float], ...] = ()
    fault: str = ""
    lasting: bool = False


class Profiler(Protocol):
    def __call__(
        self, bound: Bound, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, int], seconds: float
    ) -> Counted:
        """Run the kernel once under a profiler, in a process of its own; `outputs` are sizes in bytes."""


class Device(Protocol):
    """Compiles, runs and times kernels; see `tests/conformance` for what every device must do."""

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def torch_device(self) -> str:
        """Where the tensors that programs run on must live."""

    @property
    def conditions(self) -> Conditions | None:
        """Clocks and temperature at this moment, where the device can tell."""

    @property
    def graph_time(self) -> GraphTime | None:
        """Microseconds per call, of several that the device runs by itself one after the other; None if it cannot."""

    @property
    def sanitizer(self) -> Sanitizer | None: ...

    @property
    def profiler(self) -> Profiler | None: ...

    def compile(self, bound: Bound) -> Program:
        """Raises RejectedError when the kernel does not compile, or its entries do not fit the plan."""

    def run(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
        """Launch and wait; nothing of earlier runs is left for the kernel to find.

        Raises RejectedError when a launch fails or faults, or when the kernel left something for its next call.
        """

    def time(self, call: Callable[[], object]) -> float:
        """Microseconds that one call takes on the device, caches cold."""

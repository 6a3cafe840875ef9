"""The contract of a device: it compiles, runs and times kernels, and rejects those that fail."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from archive.binding import Bound
from archive.records import Conditions, DeviceInfo, Outcome, Resources, Sanitized, Traits

if TYPE_CHECKING:
    import torch


class Device(Protocol):
    """Compiles, runs and times kernels; `tests/conformance` checks what every device must do."""

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def torch_device(self) -> str:
        """Where the tensors that programs run on must be."""

    @property
    def tools(self) -> "Tools":
        """What this device offers beyond compiling, running and timing."""

    def compile(self, bound: Bound) -> "Program":
        """Raises RejectedError when the kernel does not compile, or its entries do not fit the plan."""

    def run(self, program: "Program", tensors: "Mapping[str, torch.Tensor]") -> None:
        """Launch and wait; the kernel finds nothing that earlier runs left behind.

        Raises RejectedError when a launch fails or faults, or when the kernel left something for its next call.
        """

    def time(self, call: Callable[[], object]) -> float:
        """Microseconds that one call takes on the device, caches cold."""


class RejectedError(Exception):
    """A kernel failed. It never leaves the evaluation, where it becomes an Evaluation."""

    def __init__(self, outcome: Outcome, log: str) -> None:
        super().__init__(f"{outcome}: {log}")
        self.outcome = outcome
        self.log = log


class CompileResult(Protocol):
    """The output of a compiler."""

    @property
    def traits(self) -> Traits | None:
        """Traits of the kernel's machine code for one workload; None without machine code of a GPU."""


class Program(CompileResult, Protocol):
    """A kernel compiled for one workload, ready to run."""

    bound: Bound
    resources: tuple[Resources, ...]
    log: str  # the compiler's warnings

    def launch(self, tensors: "Mapping[str, torch.Tensor]") -> None:
        """Enqueue every launch of the plan; `tensors` holds the inputs, outputs and workspace by name."""


# Microseconds per call, of several calls that the device runs one after the other without the host; None if it cannot.
GraphTime = Callable[[Sequence[Callable[[], object]]], float | None]


class Sanitizer(Protocol):
    def __call__(
        self, bound: Bound, inputs: "Mapping[str, torch.Tensor]", outputs: Mapping[str, int], seconds: float
    ) -> tuple[Sanitized, ...]:
        """Run the kernel once under each tool, in separate processes; `outputs` are sizes in bytes."""


@dataclass(frozen=True)
class Counted:
    """What a profiler counted, or why it could not; `lasting` if it would fail for every other kernel too."""

    counters: tuple[tuple[str, float], ...] = ()
    fault: str = ""
    lasting: bool = False


class Profiler(Protocol):
    def __call__(
        self, bound: Bound, inputs: "Mapping[str, torch.Tensor]", outputs: Mapping[str, int], seconds: float
    ) -> Counted:
        """Run the kernel once under a profiler, in a separate process; `outputs` are sizes in bytes."""


@dataclass(frozen=True)
class Tools:
    """Optional abilities of a device; None where it lacks one."""

    conditions: Callable[[], Conditions | None] | None = None  # clocks and temperature at this moment
    graph_time: GraphTime | None = None
    sanitizer: Sanitizer | None = None
    profiler: Profiler | None = None

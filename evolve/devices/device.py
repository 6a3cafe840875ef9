"""Contract of a device, which compiles, runs and times kernels, and rejects those that fail."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from archive.kernel import Bound, BoundMap
from archive.records import Conditions, DeviceInfo, Outcome, Resources, Sanitized, Traits
from evolve.devices.error_passes import ErrorPasses

if TYPE_CHECKING:
    import torch


class Device(Protocol):
    """A device that compiles, runs and times kernels. `tests/conformance` checks what every device must do."""

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def torch_device(self) -> str:
        """PyTorch's name of the device that must hold the programs' tensors."""

    @property
    def tools(self) -> "Tools":
        """Optional abilities beyond compiling, running and timing."""

    def compile(self, bound: Bound) -> "Program":
        """Compile a kernel. Raises RejectedError if it does not compile or its entries do not fit the plan."""

    def run(self, program: "Program", tensors: "Mapping[str, torch.Tensor]") -> None:
        """Launch the kernel and wait. It must not find data of earlier runs.

        Raises RejectedError if a launch fails or faults, or if the kernel has kept state for its next call.
        """

    def time(self, call: Callable[[], object]) -> float:
        """Return the time of one call on the device in microseconds, with cold caches."""


class RejectedError(Exception):
    """Raised when a kernel fails. The evaluator catches it and reports it as an Evaluation."""

    def __init__(self, outcome: Outcome, log: str) -> None:
        super().__init__(f"{outcome}: {log}")
        self.outcome = outcome
        self.log = log


def check_maps(bound: Bound, tensors: "Mapping[str, torch.Tensor]") -> None:
    """Raise a RejectedError unless each tensor that a tensor map describes has the elements that the map claims."""
    for launch in bound.launches:
        for value in launch.args:
            if isinstance(value, BoundMap) and value.elements > tensors[value.tensor].numel():
                sizes = f"{list(value.shape)}, `{value.tensor}` has {tensors[value.tensor].numel()} elements"
                message = f"launch {launch.index}: the tensor map `{value.name}` has the shape {sizes}"
                raise RejectedError(Outcome.MALFORMED, message)


class CompileResult(Protocol):
    """Result of a compilation."""

    @property
    def log(self) -> str:
        """The compiler's warnings."""

    @property
    def traits(self) -> Traits | None:
        """Traits of the kernel's machine code for one workload; None if it was not compiled for a GPU."""


class Program(CompileResult, Protocol):
    """A kernel compiled for one workload, ready to run."""

    bound: Bound
    resources: tuple[Resources, ...]

    def launch(self, tensors: "Mapping[str, torch.Tensor]") -> None:
        """Enqueue every launch of the plan; `tensors` holds the inputs, outputs and workspace by name."""


# Returns the microseconds per call of a sequence of calls that the device runs without the host; None if that is
# impossible.
GraphTime = Callable[[Sequence[Callable[[], object]]], float | None]
Capture = Callable[[Callable[[], object]], Callable[[], object] | None]
Fenced = Callable[[int], "torch.Tensor | None"]  # returns at least this many bytes; any access after them faults


@dataclass(frozen=True)
class SeparateRun:
    """One run of a kernel in a separate process; `outputs` are sizes in bytes."""

    bound: Bound
    inputs: "Mapping[str, torch.Tensor]"
    outputs: Mapping[str, int]


class Sanitizer(Protocol):
    def __call__(self, runs: Sequence[SeparateRun], seconds: float) -> Sequence[tuple[Sanitized, ...]]:
        """Execute each run once under each tool, in separate processes. Return the tools' reports for each run."""


@dataclass(frozen=True)
class Counted:
    """A profiler's counters, or the reason why there are none; `lasting` if every other kernel would fail too."""

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
    """Optional abilities of a device; None for those that it lacks."""

    card: str = ""  # name of the card in all processes of this machine; empty if each process has its own
    memory_bytes: int = 0  # size of the device's own memory
    free_bytes: Callable[[], int] | None = None  # how much of that memory is free now
    conditions: Callable[[], Conditions | None] | None = None  # current clocks and temperature
    # makes a call as `time` does, but does not time it
    call_as_timed: Callable[[Callable[[], object]], None] | None = None
    graph_time: GraphTime | None = None
    # captures a call in a CUDA graph and returns a function that replays it, or None if the call cannot be captured
    capture: Capture | None = None
    fenced: Fenced | None = None
    # takes less time than `compile`, for workloads where traits are not needed
    compile_without_traits: "Callable[[Bound], Program] | None" = None
    sanitizer: Sanitizer | None = None
    profiler: Profiler | None = None
    errors: ErrorPasses | None = None

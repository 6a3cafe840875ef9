"""The contract of a device, and how one says no to a kernel."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from archive.binding import Bound
from archive.records import DeviceInfo, Outcome, Resources


class RejectedError(Exception):
    """A kernel did not make it. Never leaves the evaluation, where it becomes an Evaluation."""

    def __init__(self, outcome: Outcome, log: str) -> None:
        super().__init__(f"{outcome}: {log}")
        self.outcome = outcome
        self.log = log


class Program(Protocol):
    """A kernel compiled for one workload."""

    bound: Bound
    resources: tuple[Resources, ...]
    log: str  # the compiler's warnings

    def launch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Enqueue every launch of the plan; `tensors` holds the inputs, outputs and workspace by name."""


class Device(Protocol):
    """Compiles, runs and times kernels; see `tests/conformance` for what every device must do."""

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def torch_device(self) -> str:
        """Where the tensors that programs run on must live."""

    def compile(self, bound: Bound) -> Program:
        """Raises RejectedError when the kernel does not compile, or its entries do not fit the plan."""

    def run(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
        """Launch and wait. Raises RejectedError when a launch fails or faults."""

    def time(self, call: Callable[[], object]) -> float:
        """Microseconds that one call takes on the device, caches cold."""

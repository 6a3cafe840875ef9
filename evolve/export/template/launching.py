"""Compilation of a bound kernel, and launches on the caller's GPU and stream. The first kernel imports CuPy."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from archive.binding import Bound
from archive.records import DeviceInfo, Outcome
from evolve.devices.device import Program, RejectedError
from evolve.export.template.calls import NoKernelError
from reference_ops.op import Op, Workload
from reference_ops.precision import TORCH_DTYPES


class KernelError(RuntimeError):
    """The chosen kernel does not compile or load on this machine. PyTorch does not run instead."""


@cache
def present(device: torch.device) -> DeviceInfo:
    """Return the facts about a GPU that plans and the compiler need."""
    properties: Any = torch.cuda.get_device_properties(device)
    suffix = "a" if properties.major >= 9 else ""
    return DeviceInfo(
        kind="cuda",
        name=properties.name,
        arch=f"sm_{properties.major}{properties.minor}{suffix}",
        sms=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,
    )


@dataclass(frozen=True)
class Buffer:
    """A tensor that each call allocates."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Ready:
    """A kernel compiled for one workload on one GPU."""

    program: Program
    bind_context: Callable[[int], None]
    device: torch.device
    inputs: tuple[str, ...]
    outputs: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def launch(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Enqueue the kernel on the current stream of the inputs' GPU."""
        with torch.cuda.device(self.device):
            outputs = [self._allocated(buffer) for buffer in self.outputs]
            tensors = dict(zip(self.inputs, inputs, strict=True))
            tensors.update((buffer.name, out) for buffer, out in zip(self.outputs, outputs, strict=True))
            tensors.update((buffer.name, self._allocated(buffer)) for buffer in self.workspace)
            self.bind_context(self.device.index)
            with self.lock:  # threads share one parameter block until the launch is enqueued
                self.program.launch(tensors)
        return tuple(outputs)

    def _allocated(self, buffer: Buffer) -> torch.Tensor:
        return torch.empty(buffer.shape, dtype=buffer.dtype, device=self.device)


def prepare(op: Op, workload: Workload, bound: Bound, device: torch.device) -> Ready:
    """Compile and load a kernel. Raise a NoKernelError if these sizes exceed a limit of the GPU."""
    from evolve.devices.cuda.compiler import compile_cubin
    from evolve.devices.cuda.program import CudaProgram, bind_context

    info = present(device)
    try:
        cubin = compile_cubin(bound, info.arch)
        with torch.cuda.device(device):
            bind_context(device.index)
            program = CudaProgram(bound, cubin, info.sms)
    except RejectedError as error:
        if error.outcome is Outcome.ILLEGAL:
            raise NoKernelError(error.log) from error
        raise KernelError(f"kernel {bound.kernel.id} of {op.name} at {workload.key}: {error}") from error
    return Ready(
        program=program,
        bind_context=bind_context,
        device=device,
        inputs=tuple(spec.name for spec in op.inputs),
        outputs=tuple(
            Buffer(spec.name, op.shape(spec, workload), TORCH_DTYPES[spec.dtype or workload.dtype])
            for spec in op.outputs
        ),
        workspace=tuple(Buffer(w.name, (w.elements,), TORCH_DTYPES[w.dtype]) for w in bound.workspace),
    )

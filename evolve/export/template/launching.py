"""Compilation of a bound kernel, and launches on the caller's GPU and stream."""

import itertools
import math
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from archive.kernel import Bound
from archive.records import DeviceInfo, Outcome
from evolve.export.template.calls import ALIGNMENT, MissingError, NoKernelError
from evolve.export.template.free import Slot, slots
from evolve.export.template.manifest import ShippedCubin
from evolve.export.template.opaque_costs import HOST_US
from evolve.export.template.plans import Launchable
from evolve.export.template.unrolled import (
    Run,
    Source,
    Written,
    aligned,
    allocator,
    defined,
    launches,
    numbered,
    on_device,
    reading,
)
from reference_ops.op import Number, Op, TensorSpec, Workload
from reference_ops.precision import TORCH_DTYPES

if TYPE_CHECKING:
    from evolve.devices.device import RejectedError
    from evolve.export.template.driver import Program

Tensors = tuple[torch.Tensor, ...]
APART = 512  # alignment of tensors that share an allocation, the same as that of PyTorch's allocator
HOST_CALLS, DEVICE_CALLS = 5, 9
CAPTURING = (
    "PyTorch runs, because a CUDA graph is being captured, and drivers before CUDA 12.3 cannot load a kernel during a "
    "capture; make the call once before the capture"
)


class KernelError(RuntimeError):
    """Raised when the chosen kernel does not compile or load on this machine. PyTorch does not run instead."""


class Machine(Protocol):
    """The devices of one type on which kernels run."""

    @property
    def device_type(self) -> str: ...

    @property
    def host_us(self) -> Callable[[Callable[[], object]], float]:
        """Return the time that the host needs to enqueue a call."""

    @property
    def device_us(self) -> Callable[[Callable[[], object], torch.device], float]:
        """Return the time between the start and the end of a call on a device. It may include waiting for the host."""

    @property
    def opaque_us(self) -> float:
        """The host's time for an opaque op of a graph, less that for a kernel of the compiler."""

    def described(self, device: torch.device) -> str:
        """Return the facts on which times depend: the device, the driver, PyTorch's version and the package's."""

    def info(self, device: torch.device) -> DeviceInfo:
        """Return the facts about a device that plans, the compiler and the table use."""

    def capturing(self, device: torch.device) -> bool:
        """Return whether a graph of this device is being captured, during which nothing can be timed."""

    def prepare(self, op: Op, workload: Workload, bound: Bound, device: torch.device) -> Launchable:
        """Compile and load a kernel. Raise a NoKernelError if these sizes exceed a limit of the device."""


@dataclass(frozen=True)
class Buffer:
    """A tensor that each call allocates."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    zero: bool = False
    # the input with the same shape and dtype, because allocating a tensor like another one takes half as long
    like: int | None = None

    def allocated(self, inputs: Tensors, device: torch.device) -> torch.Tensor:
        if self.like is not None:
            return torch.empty_like(
                inputs[self.like], memory_format=torch.contiguous_format
            )  # a dim of size 1 may have any stride
        allocate = torch.zeros if self.zero else torch.empty
        return allocate(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Buffers:
    """The tensors of a kernel by name: inputs from a call, and tensors that the call allocates."""

    inputs: tuple[str, ...]
    outputs: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]

    @classmethod
    def of(cls, op: Op, workload: Workload, bound: Bound) -> "Buffers":
        def kind(spec: TensorSpec) -> tuple[tuple[int, ...], torch.dtype]:
            return op.shape(spec, workload), TORCH_DTYPES[spec.dtype or workload.dtype]

        given = [kind(spec) for spec in op.inputs]
        alike = [given.index(kind(spec)) if kind(spec) in given else None for spec in op.outputs]
        return cls(
            inputs=tuple(spec.name for spec in op.inputs),
            outputs=tuple(
                Buffer(spec.name, *kind(spec), like=like) for spec, like in zip(op.outputs, alike, strict=True)
            ),
            workspace=tuple(Buffer(w.name, (w.elements,), TORCH_DTYPES[w.dtype], w.zero) for w in bound.workspace),
        )

    def allocated(self, inputs: Tensors, device: torch.device) -> tuple[dict[str, torch.Tensor], Tensors]:
        """Return all tensors of a call by name, and its outputs."""
        outputs = tuple(buffer.allocated(inputs, device) for buffer in self.outputs)
        tensors = dict(zip(self.inputs, inputs, strict=True))
        tensors.update((buffer.name, out) for buffer, out in zip(self.outputs, outputs, strict=True))
        tensors.update((buffer.name, buffer.allocated(inputs, device)) for buffer in self.workspace)
        return tensors, outputs


class Ready:
    """A kernel compiled for one workload on one GPU."""

    def __init__(self, program: "Program", device: torch.device, buffers: Buffers, slots: tuple[Slot, ...]) -> None:
        self._program = program
        self._device = device
        self._outputs = buffers.outputs
        self._workspace = buffers.workspace
        self._slots = slots
        self._inputs = len(buffers.inputs)
        order = [*buffers.inputs, *(buffer.name for buffer in (*buffers.outputs, *buffers.workspace))]
        self._order = [order.index(name) for name in program.block.names]
        self._lock = threading.Lock()

    def launch(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        if torch._C._cuda_getDevice() == self._device.index:  # noqa: SLF001 - the public way takes a microsecond
            return self._launched(inputs, parameters)
        with torch.cuda.device(self._device):
            return self._launched(inputs, parameters)

    def _launched(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        outputs = tuple([buffer.allocated(inputs, self._device) for buffer in self._outputs])
        tensors = (*inputs, *outputs, *[buffer.allocated(inputs, self._device) for buffer in self._workspace])
        addresses = [tensors[at].data_ptr() for at in self._order]
        with self._lock:  # threads share the memory of the arguments until the launches are enqueued
            for slot in self._slots:
                self._program.block.set(slot.launch, slot.position, parameters[slot.parameter])
            self._program.enqueue(addresses, self._device.index)
        return outputs

    def planned(self, sources: Sequence[Source], outputs: Sequence[Written], parameters: Mapping[str, Number]) -> Run:
        def arguments() -> tuple[Any, ...]:
            program = self._program.again()
            for slot in self._slots:
                program.block.set(slot.launch, slot.position, parameters[slot.parameter])
            return program.arguments()

        spare: list[tuple[Any, ...]] = []
        values = {
            "current": torch._C._cuda_getDevice,  # noqa: SLF001 - the public way takes a microsecond
            "stream": torch._C._cuda_getCurrentRawStream,  # noqa: SLF001 - the public way takes 20 times as long
            "index": self._device.index,
            "elsewhere": partial(on_device, self._device),
            "arguments": arguments,
            "pop": spare.pop,
            "append": spare.append,
            "aligned": partial(aligned, tuple(sources)),
            "enqueue": self._program.call,
            "again": self._program.call_again,
            **{f"f{at}": function for at, function in enumerate(self._program.functions)},
        }
        values |= {f"copied{at}": one.copied for at, one in enumerate(sources)}
        read = [f"p{at}" for at in range(len(sources))]
        allocations, written = self._allocations(outputs, values)
        addresses = [*read, *written]
        given = f"{numbered('t', range(1 + max((one.tensor for one in sources), default=-1)))}*others"
        wanted = [at for at, out in enumerate(outputs) if out.is_wanted]
        lines = [
            f"def call({given}):",
            f"    if current() != index:\n            return elsewhere(call, {given})",
            *itertools.starmap(reading, enumerate(sources)),
            f"    if ({' | '.join(read) or 0}) & {ALIGNMENT - 1}:",
            f"        {numbered('p', range(len(sources)))}copies = aligned({given.rpartition('*')[0]})",
            *allocations,
            *launches(
                len(self._program.functions),
                [addresses[at] for at in self._order],
                [at for at, _ in self._program.block.maps],
            ),
            f"    return b{wanted[0]}" if len(wanted) == 1 else f"    return ({numbered('b', wanted)})",
        ]
        return defined(lines, values)

    def _allocations(self, outputs: Sequence[Written], values: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return the lines that allocate outputs and workspace, and their addresses.

        Add the values of the names to `names`. Tensors that are not returned to the caller share one allocation.
        """
        values |= {"empty": allocator(self._device), "byte": torch.uint8}
        lines, addresses, room = [], [], 0
        every: list[Written | Buffer] = [*outputs, *self._workspace]
        for at, one in enumerate(every):
            if isinstance(one, Written) and one.is_wanted:
                values |= {f"shape{at}": one.shape, f"stride{at}": one.stride, f"dtype{at}": one.dtype}
                lines.append(f"    b{at} = empty(shape{at}, stride{at}, dtype{at})")
                addresses.append(f"b{at}.data_ptr()")
            elif isinstance(one, Buffer) and one.zero:
                values[f"zeros{at}"] = partial(one.allocated, (), self._device)
                lines.append(f"    b{at} = zeros{at}()")
                addresses.append(f"b{at}.data_ptr()")
            else:
                addresses.append(f"rest + {room}")
                room += math.ceil(math.prod(one.shape) * one.dtype.itemsize / APART) * APART
        if any(address.startswith("rest") for address in addresses):  # a workspace may have no elements at these sizes
            lines += [f"    scratch = empty(({room},), (1,), byte)", "    rest = scratch.data_ptr()"]
        return lines, addresses


@dataclass(frozen=True)
class Gpus:
    """The NVIDIA GPUs of this machine, and the compiled kernels of a package."""

    cubins: Mapping[str, ShippedCubin] = field(default_factory=dict)
    folder: Path = Path()
    version: str = ""  # version of the package
    device_type: str = "cuda"

    def info(self, device: torch.device) -> DeviceInfo:
        return _present(device)

    @property
    def host_us(self) -> Callable[[Callable[[], object]], float]:
        return host_us

    @property
    def device_us(self) -> Callable[[Callable[[], object], torch.device], float]:
        return device_us

    @property
    def opaque_us(self) -> float:
        return HOST_US

    def described(self, device: torch.device) -> str:
        from evolve.export.template.driver import version

        return f"{self.info(device).name}, driver {version()}, PyTorch {torch.__version__}, package {self.version}"

    def capturing(self, device: torch.device) -> bool:
        if torch._C._cuda_getDevice() == device.index:  # noqa: SLF001 - the public way takes a microsecond
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(device):
            return torch.cuda.is_current_stream_capturing()

    def prepare(self, op: Op, workload: Workload, bound: Bound, device: torch.device) -> Launchable:
        # The first kernel imports the code that drives the GPU.
        from evolve.devices.cuda.translation import source
        from evolve.devices.device import RejectedError
        from evolve.export.template.cubins import Cubins
        from evolve.export.template.driver import (
            DriverError,
            despite_captures,
            driver,
            loads_in_captures,
            program,
            use_context,
        )
        from evolve.export.template.nvrtc import CompileError

        info = self.info(device)
        driver()
        if self.capturing(device) and not loads_in_captures():
            warnings.warn(f"{op.name}: {CAPTURING}", stacklevel=2)
            raise MissingError(CAPTURING)
        try:
            images = Cubins(self.folder, self.cubins).images(source(bound), info.arch)
            with torch.cuda.device(device), despite_captures():
                use_context(device.index)
                loaded = program(bound, images, info.sms)
        except RejectedError as error:
            raise refusal(error, op, workload, bound) from error
        except (CompileError, DriverError) as error:
            raise KernelError(f"kernel {bound.kernel.id} of {op.name} at {workload.key}: {error}") from error
        return Ready(loaded, device, Buffers.of(op, workload, bound), slots(op, bound.kernel))


def host_us(call: Callable[[], object]) -> float:
    """Return the shortest of a few times in microseconds; the device need not finish the enqueued work."""
    times = []
    for _ in range(HOST_CALLS):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return min(times) / 1000


def device_us(call: Callable[[], object], device: torch.device) -> float:
    """Return the median of a few times in microseconds between events around a call."""
    times: list[float] = []
    with torch.cuda.device(device):
        call()
        for _ in range(DEVICE_CALLS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(1000 * start.elapsed_time(end))
    return statistics.median(times)


def refusal(error: "RejectedError", op: Op, workload: Workload, bound: Bound) -> Exception:
    """Return the error to raise if a kernel cannot be prepared."""
    if error.outcome is Outcome.ILLEGAL:
        return NoKernelError(error.log)
    return KernelError(f"kernel {bound.kernel.id} of {op.name} at {workload.key}: {error}")


@cache
def _present(device: torch.device) -> DeviceInfo:
    properties: Any = torch.cuda.get_device_properties(device)
    suffix = "a" if properties.major >= 9 else ""
    return DeviceInfo(
        kind="cuda",
        name=properties.name,
        arch=f"sm_{properties.major}{properties.minor}{suffix}",
        sms=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,
    )

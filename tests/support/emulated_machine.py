"""A machine on which the kernels of a package run on CPU tensors, through the emulated device."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from gpu_records import H200, duel, times

from archive import library
from archive.kernel import Bound, BoundLaunch, Kernel
from archive.records import DeviceInfo
from evolve.devices.device import RejectedError
from evolve.devices.emulated.device import EmulatedDevice, EmulatedProgram
from evolve.export.package import defaults
from evolve.export.template.calls import ALIGNMENT
from evolve.export.template.deciding import by_pytorch
from evolve.export.template.dispatch import Primitive, gradients_of
from evolve.export.template.free import Slot, slots
from evolve.export.template.launching import Buffers, Machine, Tensors, refusal
from evolve.export.template.manifest import ExportedEntry, Measured, Shipped
from evolve.export.template.plans import Launchable
from evolve.export.template.unrolled import Run, Source, Written
from reference_ops import catalog
from reference_ops.op import Number, Op, Workload

DEVICE = EmulatedDevice()
MAPS = Path("/proc/self/maps")
MOST_MAPS = 40_000  # Linux allows a process 65,530 mappings; a cooperative kernel's stacks need over a thousand
COMPILED: list[EmulatedProgram] = []  # a library stays loaded while a program uses it, so no kernel is compiled twice


@dataclass(frozen=True)
class Emulated:
    """A kernel compiled for the CPU."""

    bound: Bound
    buffers: Buffers
    slots: tuple[Slot, ...]
    launched: list[str]
    planned_launches: list[str]
    instead: Op | None = None  # an op whose reference runs in place of the kernel

    def launch(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        if self.instead is not None:
            assert all(x.is_contiguous() and not x.data_ptr() % ALIGNMENT for x in inputs)
            self.launched.append(self.bound.kernel.id)
            with torch.autocast("cpu", enabled=False):  # autocast does not change a kernel's dtypes either
                found = by_pytorch(self.instead, inputs, parameters)
            assert [tuple(x.shape) for x in found] == [one.shape for one in self.buffers.outputs]
            return tuple(out.clone(memory_format=torch.contiguous_format) for out in found)
        given = {(slot.launch, slot.position): parameters[slot.parameter] for slot in self.slots}

        def filled(launch: BoundLaunch) -> BoundLaunch:
            places = ((launch.index, at) for at in range(len(launch.args)))
            pairs = zip(places, launch.args, strict=True)
            # A number is written in place of a float or an integer.
            args = tuple(type(value)(given[place]) if place in given else value for place, value in pairs)  # type: ignore[arg-type, call-arg]
            return replace(launch, args=args)

        launches = tuple(map(filled, self.bound.launches))
        tensors, outputs = self.buffers.allocated(inputs, torch.device("cpu"))
        for buffer in (*outputs, *(tensors[one.name] for one in self.buffers.workspace)):
            buffer.reshape(-1).view(torch.uint8).fill_(0xA5)
        DEVICE.compile(replace(self.bound, launches=launches)).launch(tensors)
        self.launched.append(self.bound.kernel.id)
        return outputs

    def planned(self, sources: Sequence[Source], outputs: Sequence[Written], parameters: Mapping[str, Number]) -> Run:
        def run(*tensors: torch.Tensor) -> Any:
            inputs = tuple(_read(tensors[one.tensor], one).view(one.shape) for one in sources)
            self.planned_launches.append(self.bound.kernel.id)
            pairs = zip(self.launch(inputs, parameters), outputs, strict=True)
            found = tuple(_placed(out, wanted) for out, wanted in pairs if wanted.is_wanted)
            return found[0] if len(found) == 1 else found

        return run


def _read(x: torch.Tensor, source: Source) -> torch.Tensor:
    """Return the values of a tensor's memory, without a copy if it is contiguous and aligned."""
    offset = x.storage_offset() + source.offset // x.dtype.itemsize
    if source.view or (x.data_ptr() + source.offset) % ALIGNMENT:
        return source.copied(x)
    return x.as_strided(source.shape, torch.empty(source.shape, device="meta").stride(), offset)


def _placed(out: torch.Tensor, wanted: Written) -> torch.Tensor:
    """Return an output with the layout in which a kernel writes the caller's result."""
    result = torch.empty_strided(wanted.shape, wanted.stride, dtype=wanted.dtype, device="cpu")
    result.as_strided(out.shape, out.stride()).copy_(out)
    return result


@dataclass(frozen=True)
class EmulatedMachine:
    """The CPU presented as a GPU. `launched` lists the kernels that ran.

    With `by_reference`, PyTorch runs in place of each kernel, which takes a thousandth of the time.
    """

    device_type: str = "cpu"
    name: str = H200.name
    by_reference: bool = False
    launched: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)  # one kernel for each workload
    planned_launches: list[str] = field(default_factory=list)  # launches of calls that were recognised by their key
    # The host's time is made up, because calls of the emulated device are not launches.
    host_us: Callable[[Callable[[], object]], float] = field(default=lambda _: 5.0)
    device_us: Callable[[Callable[[], object], torch.device], float] = field(default=lambda *_: 5.0)
    opaque_us: float = 0.0

    def info(self, _device: torch.device) -> DeviceInfo:
        return replace(H200, name=self.name, sms=4, shared_bytes=DEVICE.info.shared_bytes)

    def described(self, device: torch.device) -> str:
        return f"emulated on {device}"

    def capturing(self, _device: torch.device) -> bool:
        return False

    def prepare(self, op: Op, workload: Workload, bound: Bound, _device: torch.device) -> Launchable:
        buffers = Buffers.of(op, workload, bound)
        self.prepared.append(bound.kernel.id)
        if self.by_reference:
            return Emulated(bound, buffers, (), self.launched, self.planned_launches, op)
        try:
            if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
                COMPILED.clear()
            COMPILED.append(DEVICE.compile(bound))
        except RejectedError as error:
            raise refusal(error, op, workload, bound) from error
        return Emulated(bound, buffers, slots(op, bound.kernel), self.launched, self.planned_launches)


def primitives(names: Iterable[str], folder: Path, machine: Machine) -> dict[str, Primitive]:
    """Return primitives with a kernel each, which wins at every workload that the op's file lists."""
    ops = [catalog.load(name) for name in names]
    known = {op.name: op for op in ops}
    for op in ops:
        known.update({name: catalog.load(name) for name in op.backward})
    found = {op.name: Primitive(op, winning(op, portable(op.name), folder), folder, machine) for op in ops}
    for one in found.values():
        one.gradients = gradients_of(one.op, known, found, machine)
    return found


def portable(op: str) -> Kernel:
    """Return the op's shipped kernel that accepts all sizes and that the emulated device can run."""
    return next(one for one in library.shipped(op) if not one.plan.when and "asm" not in one.source)


def winning(op: Op, kernel: Kernel, folder: Path) -> ExportedEntry:
    """Write a kernel into a folder, and return the entry of an op in which it wins at every listed workload.

    All dims are 1, because times are scaled down for sizes below those that were measured.
    """
    file = f"{kernel.id}.cu"
    (folder / file).write_text(kernel.text)
    digest = hashlib.sha256(kernel.text.encode()).hexdigest()
    rows = tuple(
        Measured(H200.name, H200.arch, one.dtype, dims, dict(one.parameters), at, 0, True, duel(at))
        for one in op.listed
        for at, dims in [(times(one.key, 50.0), dict.fromkeys(dict(one.dims), 1))]
    )
    shipped = Shipped(kernel.id, file, digest, "", kernel.plan.when, kernel.plan.dtypes, rows)
    return ExportedEntry("", (), (), dict(defaults(op)), (shipped,), ())

"""A machine on which the kernels of a package run on CPU tensors, through the emulated device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from gpu_records import H200, archive_of, confirmed, everywhere, ops

from archive.binding import Bound
from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation
from evolve.devices.device import RejectedError
from evolve.devices.emulated.device import EmulatedDevice
from evolve.export.package import export
from evolve.export.template import manifest
from evolve.export.template.dispatch import Primitive
from evolve.export.template.free import Slot, slots
from evolve.export.template.launching import Buffers, Launchable, Tensors, refusal
from reference_ops import catalog
from reference_ops.op import Number, Op, Workload

DEVICE = EmulatedDevice()


@dataclass(frozen=True)
class Emulated:
    """A kernel compiled for the CPU."""

    bound: Bound
    buffers: Buffers
    slots: tuple[Slot, ...]
    launched: list[str]

    def launch(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        given = {(slot.launch, slot.position): parameters[slot.parameter] for slot in self.slots}
        launches = tuple(
            replace(one, args=tuple(given.get((one.index, at), value) for at, value in enumerate(one.args)))
            for one in self.bound.launches
        )
        tensors, outputs = self.buffers.allocated(inputs, torch.device("cpu"))
        for buffer in (*outputs, *(tensors[one.name] for one in self.buffers.workspace)):
            buffer.view(torch.uint8).fill_(0xA5)
        DEVICE.compile(replace(self.bound, launches=launches)).launch(tensors)
        self.launched.append(self.bound.kernel.id)
        return outputs


@dataclass(frozen=True)
class EmulatedMachine:
    """The CPU under the name of a GPU. `launched` lists the kernels that ran."""

    device_type: str = "cpu"
    launched: list[str] = field(default_factory=list)

    def info(self, _device: torch.device) -> DeviceInfo:
        return replace(H200, sms=4, shared_bytes=DEVICE.info.shared_bytes)

    def capturing(self) -> bool:
        return False

    def prepare(self, op: Op, workload: Workload, bound: Bound, _device: torch.device) -> Launchable:
        try:
            DEVICE.compile(bound)
        except RejectedError as error:
            raise refusal(error, op, workload, bound) from error
        return Emulated(bound, Buffers.of(op, workload, bound), slots(op, bound.kernel), self.launched)


def primitive(kernel: Kernel, folder: Path, machine: EmulatedMachine) -> Primitive:
    """Return the primitive of an op with one kernel that wins on every workload."""
    op = catalog.load(kernel.op)
    records: list[Kernel | Evaluation] = [kernel, confirmed(kernel, everywhere(op, 50.0))]
    folder.mkdir(parents=True, exist_ok=True)
    export(archive_of(folder, *records), ops(op.name), folder / "out")
    package = folder / "out/primitives"
    return Primitive(op, manifest.read(package)[op.name], package, machine)

"""Does a program compute what the op says, and nothing else? One workload, on inputs nobody could foresee."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from archive.records import Outcome
from evolve.devices.device import Device, Program, RejectedError
from evolve.evaluation import compare
from evolve.evaluation.buffers import POISONS, Buffer, filled, poisoned
from reference_ops.op import DTYPES, Op, Tensors, Workload


@dataclass(frozen=True)
class Task:
    """One op at one workload, with the seed of its inputs."""

    op: Op
    workload: Workload
    seed: int


def check(device: Device, program: Program, task: Task) -> bool:
    """Run twice on poisoned memory and judge both results; whether they agree to the bit. Raises RejectedError.

    The expected values come into being only after the last run, from inputs drawn afresh.
    """
    rng = random.Random(task.seed)
    first, second = (_run(device, program, task, poison, rng) for poison in POISONS)
    judge(task, first, device)
    judge(task, second, device)
    return all(torch.equal(_bits(a.tensor), _bits(b.tensor)) for a, b in zip(first, second, strict=True))


def judge(task: Task, outputs: tuple[Buffer, ...], device: Device) -> None:
    """Raise RejectedError unless the outputs are right."""
    inputs = task.op.inputs_at(task.workload, task.seed, device.torch_device)
    expected = task.op.call(_in_float64(inputs), task.workload)
    theirs = task.op.call(inputs, task.workload)
    for spec, buffer, wanted, own in zip(task.op.outputs, outputs, expected, theirs, strict=True):
        if fault := compare.fault(buffer.tensor, own, wanted, task.op.tolerance):
            raise RejectedError(Outcome.WRONG, f"{task.workload.key}: `{spec.name}`: {fault}{_unwritten(buffer)}")


def fresh_outputs(task: Task, device: Device, poison: int, rng: random.Random) -> dict[str, Buffer]:
    """Poisoned buffers for the outputs."""
    op, workload = task.op, task.workload
    return {
        spec.name: poisoned(
            op.shape(spec, workload), DTYPES[spec.dtype or workload.dtype], device.torch_device, poison, rng
        )
        for spec in op.outputs
    }


def fresh_workspace(program: Program, device: Device, poison: int, rng: random.Random) -> dict[str, Buffer]:
    """Poisoned buffers for the plan's workspace."""
    return {
        w.name: poisoned((w.elements,), DTYPES[w.dtype], device.torch_device, poison, rng)
        for w in program.bound.workspace
    }


def _run(device: Device, program: Program, task: Task, poison: int, rng: random.Random) -> tuple[Buffer, ...]:
    inputs = {
        name: filled(values, poison, rng)
        for name, values in task.op.inputs_at(task.workload, task.seed, device.torch_device).items()
    }
    outputs = fresh_outputs(task, device, poison, rng)
    buffers = {**inputs, **outputs, **fresh_workspace(program, device, poison, rng)}
    device.run(program, {name: buffer.tensor for name, buffer in buffers.items()})
    _check_bounds(buffers, task.workload)
    _check_inputs(inputs, task, device)
    return tuple(outputs.values())


def _check_bounds(buffers: Mapping[str, Buffer], workload: Workload) -> None:
    for name, buffer in buffers.items():
        if damage := buffer.damage():
            raise RejectedError(Outcome.OUT_OF_BOUNDS, f"{workload.key}: `{name}`: {damage}")


def _check_inputs(inputs: Mapping[str, Buffer], task: Task, device: Device) -> None:
    for name, values in task.op.inputs_at(task.workload, task.seed, device.torch_device).items():
        changed = _bits(inputs[name].tensor) != _bits(values)
        if bool(changed.any()):
            message = f"{task.workload.key}: {int(changed.sum())} bytes of the input `{name}` were changed"
            raise RejectedError(Outcome.CHANGED_INPUT, message)


def _in_float64(inputs: Tensors) -> Tensors:
    return {name: values.double() if values.is_floating_point() else values for name, values in inputs.items()}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _unwritten(buffer: Buffer) -> str:
    count = int(buffer.poisoned().sum())
    return f" ({count} elements still hold the poison they were filled with: never written)" if count else ""

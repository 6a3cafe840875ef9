"""Check of a champion on a tensor of more than 2**31 elements, where indices of 32 bits overflow.

Where rows are independent, the inputs of few rows are repeated, so that only they need expected values: memory for one
set of buffers suffices. Elsewhere the check needs what any huge workload needs. A kernel that accepts no such workload,
or none that fits into memory, is bound by the envelope of what was tested.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from archive.binding import IllegalError
from archive.kernel import Kernel
from archive.records import Check, Outcome
from evolve.devices.device import Program, RejectedError
from evolve.evaluation.buffers import POISONS, bits, bytes_held, damaged
from evolve.evaluation.check import Draw, Inspector, layout
from evolve.evaluation.compiling import bound_at
from evolve.evaluation.truth import Truth, defined, truth
from evolve.op_on_device import all_flops
from reference_ops.op import NORMAL, Op, Tensors, TensorSpec, Workload
from reference_ops.shapes import beyond, prime_below, with_rows

ROWS_ALONE, WHOLE = 0.8, 0.6  # share of the device's memory for repeated rows, and for all that a reference needs
LONGEST_SECONDS = 1.5  # that the kernel may need there, judging by its time at the workloads that were measured
LEAST_ROWS = 3


@dataclass(frozen=True)
class Beyond:
    """What a check beyond the usual sizes may use."""

    elements: int  # a tensor must have more
    memory_bytes: int
    measured: tuple[tuple[Workload, float], ...] = ()  # the kernel's times in seconds
    repeated: int = 2**25  # elements of the rows that are repeated: so many are compared at once

    def allows(self, op: Op, workload: Workload) -> bool:
        by_rows = repeats_rows(op, workload)
        needed = op.nbytes(workload) if by_rows else bytes_held(op, workload)
        seconds = min((taken * _growth(op, known, workload) for known, taken in self.measured), default=0.0)
        return needed <= self.memory_bytes * (ROWS_ALONE if by_rows else WHOLE) and seconds <= LONGEST_SECONDS


def check_beyond(inspector: Inspector, kernel: Kernel, op: Op, limits: Beyond) -> tuple[Workload, ...]:
    """Check the kernel once beyond so many elements. Return the workload, or nothing if it can be checked at none.

    Raises RejectedError if it is wrong there.
    """
    for workload in (one for one in beyond(op, limits.elements) if limits.allows(op, one)):
        few = with_rows(op, workload, LEAST_ROWS)
        if not (op.is_valid(few) and defined(op, few, inspector.device.torch_device)):
            continue
        if (program := _compiled(inspector, kernel, op, workload)) is None:
            continue
        inspector.watch("time")  # alone on the device, because little memory is left for others
        try:
            if repeats_rows(op, workload):
                _check_rows(inspector, program, op, workload, limits.repeated)
            else:
                inspector.check_on(program, op, workload, (NORMAL,))
        except torch.OutOfMemoryError:
            return ()
        except RejectedError as error:
            if error.outcome is not Outcome.ILLEGAL:  # that is found only by launching, such as too large a grid
                raise
            continue
        finally:
            inspector.arena.release()
        return (workload,)
    return ()


def repeats_rows(op: Op, workload: Workload) -> bool:
    """Return whether each row of every output follows from the same row of the inputs and from what has no rows.

    An input without dims is the gradient of a mean, which depends on the number of rows.
    """
    rows, fewer = _rows(op), with_rows(op, workload, LEAST_ROWS)
    every = (*op.inputs, *op.outputs)
    return (
        op.by_rows
        and op.is_valid(fewer)
        and all(spec.dims for spec in op.inputs)
        and all(spec.dims[:1] == (rows,) for spec in op.outputs)
        and all(rows not in spec.dims[1:] for spec in every)
        and all(_row_shape(op, spec, fewer) == _row_shape(op, spec, workload) for spec in every)
    )


def _growth(op: Op, known: Workload, workload: Workload) -> float:
    """Return by how much the work exceeds that of a workload whose time is known."""
    return max(op.nbytes(workload) / op.nbytes(known), all_flops(op, workload) / max(1, all_flops(op, known)))


def _rows(op: Op) -> str:
    return op.varied[0].dims[0]


def _row_shape(op: Op, spec: TensorSpec, workload: Workload) -> tuple[int, ...]:
    shape = op.shape(spec, workload)
    return shape[1:] if spec.dims[:1] == (_rows(op),) else shape


def _compiled(inspector: Inspector, kernel: Kernel, op: Op, workload: Workload) -> Program | None:
    """Return the program, or None if the kernel is not for so large a workload: then it claims a bound."""
    inspector.watch("compile")
    try:
        return inspector.device.compile(bound_at(kernel, op, workload, inspector.device.info))
    except (IllegalError, RejectedError):  # `when`, the grid's limits, or a parameter too narrow for the size
        return None


def _check_rows(inspector: Inspector, program: Program, op: Op, workload: Workload, repeated: int) -> None:
    """Check rows that are repeated an odd number of rows apart, so that an index 2**32 too low meets another row."""
    count = dict(workload.dims)[_rows(op)]
    period = max(LEAST_ROWS, prime_below(repeated * count // op.largest_tensor(workload)))
    few = with_rows(op, workload, period)
    draw = Draw(op, few, inspector.rng.randrange(2**31))
    buffers = inspector.arena.poisoned(layout(op, workload, program), POISONS[0], inspector.rng)
    tensors = {name: buffer.tensor for name, buffer in buffers.items()}
    inputs = draw.inputs(inspector.device)
    for name, at, values in _repeated(op, inputs, count):
        tensors[name][at].copy_(values)
    inspector.device.run(program, tensors)
    changed = [name for name, at, values in _repeated(op, inputs, count) if _differ(tensors[name][at], values)]
    if changed:
        raise RejectedError(Outcome.CHANGED_INPUT, f"{workload.key}: the input `{changed[0]}` was changed")
    if damaged(buffers.values()) or inspector.arena.strayed():
        raise RejectedError(Outcome.OUT_OF_BOUNDS, f"{workload.key}: memory outside the buffers was overwritten")
    expected = truth(op, few, NORMAL, draw.seed, inputs)
    for index, spec in enumerate(op.outputs):
        for actual in tensors[spec.name].split(period):
            _judge(inspector, expected, index, actual, workload)


def _repeated(op: Op, inputs: Tensors, count: int) -> Iterator[tuple[str, slice, torch.Tensor]]:
    """Yield where each part of each input of so many rows is, and its values."""
    for spec in op.inputs:
        values = inputs[spec.name]
        if spec.dims[:1] != (_rows(op),):
            yield spec.name, slice(None), values
            continue
        for first in range(0, count, len(values)):
            part = values[: count - first]
            yield spec.name, slice(first, first + len(part)), part


def _differ(some: torch.Tensor, others: torch.Tensor) -> bool:
    return not torch.equal(bits(some.clone()), bits(others.clone()))  # copies are aligned alike


def _judge(inspector: Inspector, expected: Truth, index: int, actual: torch.Tensor, workload: Workload) -> None:
    """Judge some rows of an output; where they are fewer than the expected ones, PyTorch's stand for the others."""
    if len(actual) < len(expected.pytorch[index]):
        whole = expected.pytorch[index].clone()
        whole[: len(actual)] = actual
        actual = whole
    name = expected.op.outputs[index].name
    for group, found in expected.judged(index, actual):
        inspector.checks.append(Check(workload.key, group.values, name, found.error, found.pytorch_error, found.worst))
        if found.fault:
            raise RejectedError(Outcome.WRONG, f"{workload.key}: `{name}`: {found.fault}")

"""What the outputs for one set of inputs are judged against: PyTorch's at their dtype, and the truth in float64."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from evolve.evaluation.compare import FEW, FLOAT32_UNIT, SMALL, Comparison, Sums, compared, summed
from reference_ops.op import Op, Tensors, Workload
from reference_ops.values import RowGroup

SHAKES = 6
OTHERS = 16  # draws: hardly ever do they all happen to be zero
UNNOTICED = 12  # products, added one after another, are no more inexact than what rounded inputs lead to


@dataclass(frozen=True)
class Truth:
    """How the inputs were drawn, and all that follows from them."""

    op: Op
    workload: Workload
    values: str
    seed: int
    inputs: Tensors
    theirs: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...]

    def judged(self, index: int, actual: torch.Tensor) -> Iterator[tuple[RowGroup, Comparison]]:
        """One output, part by part."""
        # Small ones are looked at on the CPU, without a word to the GPU for each part.
        actual, theirs, expected = (
            values.cpu() if values.numel() <= SMALL else values
            for values in (actual, self.theirs[index], self.expected[index])
        )
        for part in self.parts(index):
            at = part.rows
            yield (
                part,
                compared(
                    *(actual[at], theirs[at], expected[at]),
                    self.op.tolerance,
                    exact=part.exact,
                    sums=self.sums(part),
                    shaken=partial(self._moves, index, part),
                ),
            )

    def fault(self, index: int, actual: torch.Tensor) -> str:
        """What an evaluation would find wrong with an output."""
        return next((found.fault for _, found in self.judged(index, actual) if found.fault), "")

    def parts(self, index: int) -> tuple[RowGroup, ...]:
        return self.op.parts(self.op.outputs[index], self.workload, self.values, self.seed)

    def sums(self, part: RowGroup) -> Sums:
        return summed(self.op.terms(self.workload, self.op.tolerance.sums), alike=part.alike)

    def exact(self, index: int, part: RowGroup) -> bool:
        return part.exact or self.op.tolerance.exact or not self.theirs[index].is_floating_point()

    def _moves(self, index: int, part: RowGroup) -> torch.Tensor:
        """How far arithmetic carries each result: of few at least as far as is usual there, as among many."""
        moves = self.shaken[index][part.rows]
        return moves.clamp(min=self.usual_errors.get((index, part), 0.0)) if moves.numel() < FEW else moves

    @cached_property
    def usual_errors(self) -> dict[tuple[int, RowGroup], float]:
        """PyTorch's beyond its roundings, and float32's, root mean squares, where other inputs are drawn alike.

        Of those parts of the outputs that are small; of none, where there is no memory left to find out.
        """
        parts = [(index, part) for index in range(len(self.expected)) for part in self.parts(index)]
        squares: dict[tuple[int, RowGroup], list[torch.Tensor]] = {
            (index, part): [] for index, part in parts if self.expected[index][part.rows].numel() < FEW
        }
        try:
            for seed in self.op.others_alike(self.seed, OTHERS):
                inputs = self.op.inputs_at(self.workload, seed, str(self.expected[0].device), self.values)
                theirs = self.op.call(inputs, self.workload)
                wanted = self.op.call_in_float64(inputs, self.workload)
                for (index, part), found in squares.items():
                    found.append(_squares(theirs[index][part.rows], wanted[index][part.rows]))
        except torch.OutOfMemoryError:
            return {}
        return {at: float(torch.stack(found).mean(0).max().sqrt()) for at, found in squares.items()}

    @property
    def shaken(self) -> tuple[torch.Tensor, ...]:
        """How far each result moves, root mean square, when the inputs are as inexact as float32's arithmetic.

        Nothing moves where there is no memory left to find out: then nothing is explained by it either.
        """
        if self._moved is None:
            return tuple(torch.zeros((), device=result.device).expand(result.shape) for result in self.expected)
        return self._moved

    @property
    def unexplained(self) -> bool:
        """Whether that was asked for, and there was no memory left to find out."""
        return "_moved" in vars(self) and self._moved is None

    @cached_property
    def _moved(self) -> tuple[torch.Tensor, ...] | None:
        try:
            return self._shaken()
        except torch.OutOfMemoryError:
            return None

    def _shaken(self) -> tuple[torch.Tensor, ...]:
        moved = [torch.zeros_like(expected, dtype=torch.float32) for expected in self.expected]
        torch_device = next(iter(self.inputs.values())).device
        generator = torch.Generator(torch_device).manual_seed(self.seed)
        in_turn = self.op.terms(self.workload, self.op.tolerance.in_turn)
        std = FLOAT32_UNIT * math.sqrt(max(1.0, in_turn / UNNOTICED))
        for _ in range(SHAKES):
            inputs = {
                name: values if name in self.op.tolerance.given else _shaken(values, std, generator)
                for name, values in self.inputs.items()
            }
            results = self.op.call_in_float64(inputs, self.workload)
            del inputs  # gigabytes each, where there is hardly room for what has to be there
            for total, result, expected in zip(moved, results, self.expected, strict=True):
                total.add_(_off(result, expected).square_().nan_to_num_(0.0, 0.0))
            del results
        return tuple(total.div_(SHAKES).sqrt_() for total in moved)


def truth(op: Op, workload: Workload, values: str, seed: int, inputs: Tensors) -> Truth:
    """Computed here, and so only ever after a candidate has run on the same inputs."""
    expected = op.call_in_float64(inputs, workload)
    return Truth(op, workload, values, seed, inputs, op.call(inputs, workload), expected)


def defined(op: Op, workload: Workload, torch_device: str) -> bool:
    """Whether the reference takes such sizes at all: an op's file may say nothing of those that it does not list."""
    try:
        op.call(op.inputs_at(workload, 0, torch_device), workload)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception:  # noqa: BLE001 - a task's own code, which refuses what it likes as it likes
        return False
    return True


def _squares(theirs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean squares of PyTorch's error beyond a rounding of its dtype, and of a rounding of float32."""
    rounding = torch.finfo(theirs.dtype).eps / 2 if theirs.is_floating_point() else 0.0
    wanted = wanted.double()
    excess = ((theirs.double() - wanted).abs() - rounding * wanted.abs()).clamp(min=0)
    both = torch.stack([excess, FLOAT32_UNIT * wanted])
    return torch.where(both.isfinite(), both, 0.0).square().reshape(2, -1).mean(1)


def _off(result: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return torch.sub(result, expected, out=torch.empty_like(expected, dtype=torch.float32))


def _shaken(values: torch.Tensor, std: float, generator: torch.Generator) -> torch.Tensor:
    if not values.is_floating_point():
        return values
    factors = torch.empty_like(values, dtype=torch.float64).normal_(1.0, std, generator=generator)
    return factors.mul_(values.double() if values.element_size() == 1 else values)  # PyTorch promotes none of 8 bits

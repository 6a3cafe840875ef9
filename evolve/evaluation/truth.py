"""Expected outputs for one set of inputs: PyTorch's results at the workload's dtype and in float64."""

import contextlib
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from evolve.devices.error_passes import ErrorPasses, Results
from evolve.evaluation import nearby
from evolve.evaluation.allowed_errors import (
    FEW,
    FLOAT32_UNIT,
    SMALL,
    Comparison,
    Sums,
    cut_off,
    lost_by_atomics,
    summed,
)
from evolve.evaluation.clearly_right import Rows, Rule, at_rows, clearly_right, on_the_cpu_if_small, right_in_turn
from evolve.evaluation.compare import Excuses, NotFinite, compared
from evolve.evaluation.gelu_of_infinity import GeluOfInfinity
from reference_ops.inputs import RowGroup, inputs_at, row_groups, similar_seeds
from reference_ops.op import (
    CLASHING,
    HEAVY_TAIL,
    INFINITE,
    INFINITE_WEIGHTS,
    MEETING,
    MINUS_INF,
    SAVED_INFINITE,
    SPECIAL_PAIRS,
    SUBNORMAL,
    Op,
    Tensors,
    Workload,
)
from reference_ops.precision import TORCH_DTYPES

PERTURBATIONS, REPETITIONS = 16, 16
MOST_AT_ONCE = 2**27  # number of elements that are compared at once
OTHER_DRAWS = 16  # enough draws that a result is not zero in all of them by chance
SAME = 1e-9  # relative difference of float64 results that differ in the order of additions alone
# Numbers that replace inputs that are not finite, in pairs. Small ones show what large ones hide by saturating a gate.
STAND_INS = ((500.0, -300.0), (1.0, -0.6))
PRODUCTS_IN_TURN = 12  # up to this many products added one after the other are no less exact than rounding the inputs
# Inputs that contain infinities, for which a result may be infinite in place of NaN.
WITH_INFINITIES = (INFINITE, MINUS_INF, CLASHING, SAVED_INFINITE, INFINITE_WEIGHTS, *MEETING)
WITH_NAN = (CLASHING, SPECIAL_PAIRS)  # inputs that contain infinities and NaN


@dataclass(frozen=True)
class Truth:
    """One set of inputs, how it was drawn, and the outputs expected for it."""

    op: Op
    workload: Workload
    values: str
    seed: int
    inputs: Tensors
    pytorch: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...]
    passes: ErrorPasses | None = None  # the device's own computation of errors, for large outputs

    def judged(self, index: int, actual: torch.Tensor) -> Iterator[tuple[RowGroup, Comparison]]:
        """Compare one output, one group of rows at a time."""
        results = on_the_cpu_if_small((actual, self.pytorch[index], self.expected[index]))
        parts = [(group, at) for group in self.groups(index) for at in _parts(group, results[2])]
        for (group, at), right in zip(parts, self._clearly_right(index, parts, results), strict=True):
            yield group, right or self._compared(index, group, at, results)

    def _compared(self, index: int, group: RowGroup, at: Rows, results: Results) -> Comparison:
        """Compare some rows of an output, whose errors may have to be explained."""
        excuses = Excuses(
            self.sums(index, group),
            perturbed=partial(self._moves, index, group, at),
            repeated=partial(self._repeated, index, at),
            not_finite=self.not_finite(index, group, at),
        )
        tolerance = replace(self.op.tolerance, exact=self.op.tolerance.exact or group.exact)
        return compared(*at_rows(results, at), tolerance, excuses)

    def _clearly_right(
        self, index: int, parts: list[tuple[RowGroup, Rows]], results: Results
    ) -> Sequence[Comparison | None]:
        """Return the comparisons of those parts of an output that are right without an explanation of their errors.

        They are computed together. None stands for the other parts, and for parts that need more than these results.
        """
        actual, tolerance = results[0], self.op.tolerance
        unclear: list[Comparison | None] = [None] * len(parts)
        if tolerance.exact or not actual.is_floating_point() or actual.element_size() == 1:
            return unclear
        rules = [Rule(self.sums(index, group), group.not_finite) for group, _ in parts]
        # the baseline also decides which results are left open if inputs are not finite
        left = [not (group.exact or (group.not_finite and self.op.baseline)) for group, _ in parts]
        if actual.numel() <= SMALL:
            if len(parts) == 1 and not parts[0][0].not_finite:
                return unclear  # `compared` takes as few operations
            found = right_in_turn(results, tolerance, rules)
            return [one if clear else None for one, clear in zip(found, left, strict=True)]
        if not (self.passes and any(left)):
            return unclear
        chosen = [at_rows(results, at) for _, at in itertools.compress(parts, left)]
        own = iter(clearly_right(chosen, tolerance, list(itertools.compress(rules, left)), self.passes))
        return [next(own) if clear else None for clear in left]

    def fault(self, index: int, actual: torch.Tensor) -> str:
        """Return the first fault that an evaluation would find in an output, or an empty string."""
        return next((found.fault for _, found in self.judged(index, actual) if found.fault), "")

    def is_open(self, index: int, group: RowGroup) -> bool:
        """Return whether PyTorch's own result would be wrong here, as when squares of subnormal numbers underflow."""
        return any(found.fault for own, found in self.judged(index, self.pytorch[index]) if own == group)

    def groups(self, index: int) -> tuple[RowGroup, ...]:
        return row_groups(self.op, self.op.outputs[index], self.workload, self.values, self.seed)

    def not_finite(self, index: int, group: RowGroup, rows: Rows) -> NotFinite | None:
        """Return the rule for NaN and infinities in the results if inputs are not finite; None if all are finite."""
        if not group.not_finite:
            return None
        return NotFinite(
            self.at_dtype(index, rows),
            infinite=group.values in WITH_INFINITIES,
            lenient=group.nan_is_open,
            of_weights=group.counts_where_it_matters,
            depends=None if self.op.nan_spreads and group.nan_alone else lambda: self.dependent[index][rows],
            lost=lambda: self._lost(index)[rows],
            of_nan=(lambda: self._of_nan_alone[index][rows]) if group.values in WITH_NAN else None,
        )

    def _lost(self, index: int) -> torch.Tensor:
        """Return in which rows another output with the same first dim is NaN."""
        own, spec = self.expected[index], self.op.outputs[index]
        lost = torch.zeros(len(own) if own.ndim else 1, dtype=torch.bool, device=own.device)
        for other, values in zip(self.op.outputs, self.expected, strict=True):
            if other is not spec and spec.dims and other.dims[:1] == spec.dims[:1]:
                lost |= values.isnan().reshape(len(values), -1).any(1)
        return lost.reshape(-1, *[1] * (own.ndim - 1)).expand_as(own)

    def at_dtype(self, index: int, rows: Rows) -> tuple[torch.Tensor, ...]:
        """Return PyTorch's results at the dtype: those of the reference, and of the function that a user would call."""
        device = self.expected[index].device
        different = (self.pytorch,) if self.baseline is self.pytorch else (self.pytorch, self.baseline)
        return tuple(outputs[index][rows].to(device) for outputs in different)

    @cached_property
    def dependent(self) -> tuple[torch.Tensor, ...]:
        """The elements of each result that change if the inputs that are not finite are replaced by other numbers."""

        def results(size: float) -> tuple[torch.Tensor, ...]:
            replaced = {name: _replaced(values, size, seed) for (name, values), seed in self._stand_ins()}
            return self.op.call_in_float64(replaced, self.workload)

        pairs = (tuple(map(_differ, results(one), results(other))) for one, other in STAND_INS)
        return tuple(torch.stack(found).any(0) for found in zip(*pairs, strict=True))

    def _stand_ins(self) -> Iterator[tuple[tuple[str, torch.Tensor], int]]:
        """Yield each input with a seed for its numbers.

        The numbers differ between inputs, because equal ones would cancel.
        """
        return zip(self.inputs.items(), itertools.count(self.seed), strict=False)

    @cached_property
    def _of_nan_alone(self) -> tuple[torch.Tensor, ...]:
        """The elements of each result that are NaN even if the infinities among the inputs are replaced by numbers."""
        finite = {name: _without_infinities(values, seed) for (name, values), seed in self._stand_ins()}
        return tuple(_is_nan(result) for result in self.op.call_in_float64(finite, self.workload))

    @cached_property
    def baseline(self) -> tuple[torch.Tensor, ...]:
        if not self.op.baseline:
            return self.pytorch
        with GeluOfInfinity():
            return self.op.call_baseline(self.inputs, self.workload)

    def sums(self, index: int, group: RowGroup) -> Sums:
        terms = self.op.terms(self.workload, self.op.tolerance.sums)
        if self.values in self.op.arranged:  # the draw may add everything up in one element
            terms = max(terms, *self.op.sizes(self.workload).values())
        first = self.op.varied[0]
        sequence = not self.op.by_rows and self.op.outputs[index].dims[:1] == first.dims[:1]
        steps = self.op.shape(first, self.workload)[0] if sequence and first.dims else 1
        # A small scale, which no distribution allows for, makes the terms of such a row alike except for a few large
        # ones. With a warp per row, the error was then 37 roundings of a sum of 5,768 terms.
        scaled = group.values == HEAVY_TAIL and self.op.has_unlisted_number(self.workload)
        found = summed(terms, alike=group.alike or scaled, running=self.op.tolerance.running)
        unit = max(found.unit, cut_off(self._products(index)))
        lost = lost_by_atomics(terms) if self.op.tolerance.sums and group.values == SUBNORMAL else 0.0
        recurrent = sequence and self.op.tolerance.recurrent
        dims = self.op.tolerance.independent
        independent = math.prod(self.op.sizes(self.workload)[dim] for dim in dims) if dims else 0
        return replace(
            found, unit=unit, vanishing=group.vanishing, steps=steps, lost=lost, recurrent=recurrent,
            independent=independent,
        )  # fmt: skip

    def _products(self, index: int) -> int:
        """Return how many products of 16 bits tensor cores may sum for a result of more bits."""
        of_16_bits = TORCH_DTYPES[self.workload.dtype].itemsize == 2 < self.pytorch[index].element_size()
        return self.op.terms(self.workload, self.op.tolerance.products) if of_16_bits else 0

    def exact(self, index: int, group: RowGroup) -> bool:
        return group.exact or self.op.tolerance.exact or not self.pytorch[index].is_floating_point()

    def _moves(self, index: int, group: RowGroup, rows: Rows) -> torch.Tensor:
        """Return the change of each result by rounding; in small groups, at least the usual error."""
        moves = self.perturbed[index][rows]
        return moves.clamp(min=self.usual_errors.get((index, group), 0.0)) if moves.numel() < FEW else moves

    def _repeated(self, index: int, rows: Rows) -> torch.Tensor:
        return self.repeated_errors[index][rows]

    @cached_property
    def repeated_errors(self) -> tuple[torch.Tensor, ...]:
        """Root mean square of PyTorch's error of each result on inputs near these.

        Zero if there is not enough memory.
        """
        squares = [torch.zeros_like(expected, dtype=torch.float32) for expected in self.expected]
        generator = torch.Generator(next(iter(self.inputs.values())).device).manual_seed(self.seed)
        try:
            for _ in range(REPETITIONS):
                inputs = {
                    name: values if name in self.op.tolerance.given else nearby.rounded(values, generator)
                    for name, values in self.inputs.items()
                }
                expected = self.op.call_in_float64(inputs, self.workload)
                for total, found, right in zip(squares, self.op.call(inputs, self.workload), expected, strict=True):
                    total.add_(_off(found, right).square_().nan_to_num_(0.0, 0.0))
        except torch.OutOfMemoryError:
            return tuple(torch.zeros((), device=one.device).expand(one.shape) for one in self.expected)
        return tuple(total.div_(REPETITIONS).sqrt_() for total in squares)

    @cached_property
    def usual_errors(self) -> dict[tuple[int, RowGroup], float]:
        """Root mean square error over other draws: the larger of PyTorch's error beyond its roundings and float32's.

        This is an upper estimate, because the mean of a few squares is below the true mean in half of all evaluations,
        and only half of the true mean in some. The dict contains only groups of few results, and is empty if memory is
        short.
        """
        groups = [(index, group) for index in range(len(self.expected)) for group in self.groups(index)]
        squares: dict[tuple[int, RowGroup], list[torch.Tensor]] = {
            (index, group): [] for index, group in groups if self.expected[index][group.rows].numel() < FEW
        }
        try:
            for seed in similar_seeds(self.op, self.seed, OTHER_DRAWS):
                inputs = inputs_at(self.op, self.workload, seed, str(self.expected[0].device), self.values)
                pytorch = self.op.call(inputs, self.workload)
                expected = self.op.call_in_float64(inputs, self.workload)
                for (index, group), found in squares.items():
                    found.append(_squares(pytorch[index][group.rows], expected[index][group.rows]))
        except torch.OutOfMemoryError:
            return {}
        return {at: _upper_mean(torch.stack(found)) ** 0.5 for at, found in squares.items()}

    @property
    def perturbed(self) -> tuple[torch.Tensor, ...]:
        """Root mean square of each result's change when the inputs are perturbed by float32's rounding.

        Zero if there is not enough memory: then it explains no error.
        """
        if self._root_mean_square_moves is None:
            return tuple(torch.zeros((), device=result.device).expand(result.shape) for result in self.expected)
        return self._root_mean_square_moves

    @property
    def short_of_memory(self) -> bool:
        """Whether `perturbed` was needed but there was not enough memory for it."""
        return "_root_mean_square_moves" in vars(self) and self._root_mean_square_moves is None

    @cached_property
    def _root_mean_square_moves(self) -> tuple[torch.Tensor, ...] | None:
        try:
            return self._perturbed()
        except torch.OutOfMemoryError:
            return None

    def _perturbed(self) -> tuple[torch.Tensor, ...]:
        moved = [torch.zeros_like(expected, dtype=torch.float32) for expected in self.expected]
        generator = torch.Generator(next(iter(self.inputs.values())).device).manual_seed(self.seed)
        in_turn = self.op.terms(self.workload, self.op.tolerance.in_turn)
        std = FLOAT32_UNIT * math.sqrt(max(1.0, in_turn / PRODUCTS_IN_TURN))
        perturbed = partial(nearby.perturbed, std=std, of_16_bits=nearby.factors((2**16,), std, generator))
        chance, given = random.Random(self.seed), self.op.tolerance.given
        for _ in range(PERTURBATIONS):
            inputs = {name: x if name in given else perturbed(x, generator, chance) for name, x in self.inputs.items()}
            results = self.op.call_in_float64(inputs, self.workload)
            del inputs  # large ops barely fit into memory
            for total, result, expected in zip(moved, results, self.expected, strict=True):
                total.add_(_off(result, expected).square_().nan_to_num_(0.0, 0.0))
            del results
        return tuple(total.div_(PERTURBATIONS).sqrt_() for total in moved)


def truth(
    op: Op, workload: Workload, values: str, seed: int, inputs: Tensors, passes: ErrorPasses | None = None
) -> Truth:
    """Compute the expected outputs. Called only after the candidate has run on the same inputs."""
    with faults_named(workload):
        expected = op.call_in_float64(inputs, workload)
        with GeluOfInfinity():
            pytorch = op.call(inputs, workload)
    return Truth(op, workload, values, seed, inputs, pytorch, expected, passes)


def defined(op: Op, workload: Workload, torch_device: str, *, finite: bool = False) -> bool:
    """Return whether the reference accepts these sizes and parameters, which its file need not list.

    With `finite`, its results must be finite as well: a division by zero does not show that a parameter is used.
    """
    try:
        with faults_named(workload):
            outputs = op.call(inputs_at(op, workload, 0, torch_device), workload)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception:  # noqa: BLE001 - a user's reference may refuse sizes with any exception
        return False
    return not finite or all(bool(nearby.of_more_bits(output).isfinite().all()) for output in outputs)


@contextlib.contextmanager
def faults_named(workload: Workload) -> Iterator[None]:
    """Add a note to a GPU's fault in the body: PyTorch's own kernels crash at some sizes."""
    try:
        yield
    except torch.AcceleratorError as error:
        error.add_note(f"while PyTorch computed the expected results at {workload.key}")
        raise


def _differ(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return where two results differ by more than another order of additions can explain."""
    if not some.is_floating_point():
        return some != others
    near = (some - others).abs() <= SAME * torch.maximum(some.abs(), others.abs())
    return ~((some == others) | (near & some.isfinite() & others.isfinite()))


def _replaced(values: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    """Return the values with random numbers of this sign and size in place of those that are not finite."""
    if not values.is_floating_point() or values.element_size() == 1:  # PyTorch has few operations on 8-bit floats
        return values
    return torch.where(values.isfinite(), values, _numbers_like(values, size, seed))


def _without_infinities(values: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the values with random numbers in place of infinities."""
    if not values.is_floating_point() or values.element_size() == 1:
        return values
    return torch.where(values.isinf(), _numbers_like(values, STAND_INS[0][0], seed), values)


def _numbers_like(values: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    generator = torch.Generator(values.device).manual_seed(seed)
    return torch.empty_like(values).uniform_(0.5, 1, generator=generator).mul_(size)


def _is_nan(values: torch.Tensor) -> torch.Tensor:
    return values.isnan() if values.is_floating_point() else torch.zeros_like(values, dtype=torch.bool)


def _parts(group: RowGroup, values: torch.Tensor) -> Iterator[Rows]:
    """Yield the rows of a group, in parts whose comparison takes little memory."""
    if values.numel() <= MOST_AT_ONCE or not values.ndim:
        yield group.rows
        return
    rows = range(group.start, len(values), group.step)
    count = max(1, MOST_AT_ONCE * len(values) // values.numel())
    for first in range(0, len(rows), count):
        part = rows[first : first + count]
        yield slice(part[0], part[-1] + 1, group.step)


def _squares(pytorch: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the mean squares of PyTorch's error beyond a rounding of its dtype, and of a float32 rounding."""
    rounding = torch.finfo(pytorch.dtype).eps / 2 if pytorch.is_floating_point() else 0.0
    expected = expected.double()
    excess = ((pytorch.double() - expected).abs() - rounding * expected.abs()).clamp(min=0)
    both = torch.stack([excess, FLOAT32_UNIT * expected])
    return torch.where(both.isfinite(), both, 0.0).square().reshape(2, -1).mean(1)


def _upper_mean(squares: torch.Tensor) -> float:
    """Return the largest of the columns' means plus twice their standard errors."""
    return float((squares.mean(0) + 2 * squares.std(0) / math.sqrt(len(squares))).max())


def _off(result: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return torch.sub(result, expected, out=torch.empty_like(expected, dtype=torch.float32))

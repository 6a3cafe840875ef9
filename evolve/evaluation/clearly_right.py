"""Comparison of all groups of rows of an output at once, in the usual case in which no error must be explained.

Figures of all groups are fetched from the device together, because each transfer waits for the device. Where a result
is the same infinity in all three results, or NaN in all of them, it is left out, as in `compared`; what is not clear
here is compared there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
import torch

from evolve.devices.error_passes import Allowance, ErrorPasses, Results
from evolve.evaluation.allowed_errors import (
    SMALL,
    Comparison,
    Limits,
    Scale,
    Sums,
    largest_factor,
    limits_of,
    relative_allowance,
)
from reference_ops.op import Tolerance

Rows = slice | EllipsisType  # the index of some rows of an output, which may have no dims


@dataclass(frozen=True)
class Rule:
    """What is allowed in one group of rows."""

    sums: Sums
    not_finite: bool = False  # whether results may be infinite or NaN


def on_the_cpu_if_small(results: Results) -> Results:
    """Return results of few elements on the CPU, which saves GPU launches for each group, in a single transfer."""
    if any(values.numel() > SMALL for values in results):
        return results
    if results[0].device.type == "cpu" or not all(values.is_floating_point() for values in results):
        actual, pytorch, expected = (values.cpu() for values in results)
        return actual, pytorch, expected
    together = torch.cat([values.double().reshape(-1) for values in results]).cpu()  # float64 holds all their numbers
    parts = together.split([values.numel() for values in results])
    actual, pytorch, expected = (
        part.to(values.dtype).reshape(values.shape) for part, values in zip(parts, results, strict=True)
    )
    return actual, pytorch, expected


def at_rows(results: Results, at: Rows) -> Results:
    actual, pytorch, expected = (values[at] for values in results)
    return actual, pytorch, expected


def clearly_right(
    groups: Sequence[Results], tolerance: Tolerance, rules: Sequence[Rule], passes: ErrorPasses
) -> list[Comparison | None]:
    """Compare the groups of a large output by the same rules as `compared`, without storing errors.

    None stands for a group that is not right by the strictest of the rules.
    """
    taken = [turn for turn, results in enumerate(groups) if same_shapes(results) and passes.takes(results)]
    if tolerance.exact or not taken:
        return [None] * len(groups)
    dtype = groups[0][0].dtype
    rounding = Scale(dtype, 1, rules[0].sums, None).rounding
    facts = passes.norms([groups[turn] for turn in taken], rounding)
    found: list[Comparison | None] = [None] * len(groups)
    left: dict[int, _Facts] = {}
    for turn, figures in zip(taken, facts, strict=True):
        if one := _Facts.of(figures, groups[turn][0].numel(), dtype, rules[turn], tolerance):
            left[turn] = one
    if left:
        allowances = [one.allowances(tolerance) for one in left.values()]
        ratios = passes.worst([groups[turn] for turn in left], rounding, allowances)
        for (turn, one), worst in zip(left.items(), ratios, strict=True):
            found[turn] = one.verdict(worst)
    return found


@dataclass(frozen=True)
class _Facts:
    """The limits of a group whose mean error is allowed and whose infinities and NaN are right."""

    count: int  # number of finite results
    scale: Scale
    limits: Limits

    @classmethod
    def of(
        cls, figures: Sequence[float], numel: int, dtype: torch.dtype, rule: Rule, tolerance: Tolerance
    ) -> "_Facts | None":
        """Return the facts for the figures that `ErrorPasses.norms` returns, or None unless the group may be right."""
        *norms, skipped = figures
        if skipped and not rule.not_finite:
            return None
        count = numel - int(skipped)
        scale = Scale(dtype, max(1, count), rule.sums, None)
        limits = limits_of(norms, tolerance, scale)
        # Near the largest number, rounding decides whether a result is infinite.
        near_the_largest = rule.not_finite and norms[4] > torch.finfo(dtype).max / 2
        right = limits.finite and not near_the_largest
        return cls(count, scale, limits) if right and limits.error <= _most(limits, dtype, tolerance) else None

    def allowances(self, tolerance: Tolerance) -> list[Allowance]:
        return [self.limits.allowance, *([relative_allowance(self.scale)] if tolerance.relative else [])]

    def verdict(self, worst: Sequence[float]) -> Comparison | None:
        if not self.count:
            return Comparison("")
        right = all(ratio <= 1 for ratio in worst)
        return Comparison("", self.limits.error, self.limits.yardstick, worst[0]) if right else None


def _most(limits: Limits, dtype: torch.dtype, tolerance: Tolerance) -> float:
    return largest_factor(dtype, tolerance) * limits.yardstick


def right_in_turn(results: Results, tolerance: Tolerance, rules: Sequence[Rule]) -> list[Comparison | None]:
    """Compare the groups of a small output as `compared` would: row i belongs to group i modulo the number of groups.

    All groups together take as many operations as a single group. None stands for a group that is not right by the
    strictest of these rules.
    """
    if not same_shapes(results):
        return [None] * len(rules)
    actual, pytorch, expected = (values.reshape(len(values) if values.ndim else 1, -1) for values in results)
    turns, dtype = np.arange(len(actual)) % len(rules), actual.dtype
    rounding = Scale(dtype, 1, rules[0].sums, None).rounding
    magnitude = expected.float().abs_()
    off, pytorch_error = (torch.sub(one, expected).float().abs_() for one in (actual, pytorch))
    skipped = np.zeros(len(rules))
    if any(rule.not_finite for rule in rules):
        skip = _same_and_not_finite(actual, pytorch, expected)
        skipped += np.bincount(turns, skip.sum(1).numpy(), len(rules))
        for one in (magnitude, off, pytorch_error):
            one.masked_fill_(skip, 0.0)
    excess = torch.sub(pytorch_error, magnitude, alpha=rounding).clamp_(min=0)
    each = (magnitude, off, pytorch_error, excess)
    squares = (torch.linalg.vector_norm(one, dim=1, dtype=torch.float64).square() for one in each)
    norms = [np.sqrt(np.bincount(turns, of_rows.numpy(), len(rules))) for of_rows in squares]
    figures = np.stack([*norms, _most_of_each(magnitude.amax(1), turns, len(rules)), skipped], 1).tolist()
    counts = (np.bincount(turns, minlength=len(rules)) * actual.shape[1]).tolist()
    facts = [
        _Facts.of(own, count, dtype, rule, tolerance) for own, count, rule in zip(figures, counts, rules, strict=True)
    ]
    nothing = [Allowance(1.0, 0.0), relative_allowance(Scale(dtype, 1, rules[0].sums, None))]
    allowances = [one.allowances(tolerance) if one else nothing for one in facts]
    worst = [
        _most_of_each(off.div(_allowed_of_rows(each_group, turns, magnitude, excess)).amax(1), turns, len(rules))
        for each_group in zip(*allowances, strict=False)  # the second ones only if all groups have them
    ]
    ratios = [[float(of_groups[turn]) for of_groups in worst] for turn in range(len(rules))]
    return [one.verdict(own) if one else None for one, own in zip(facts, ratios, strict=True)]


def _same_and_not_finite(*results: torch.Tensor) -> torch.Tensor:
    """Return where the last of the results is infinite or NaN, and all others are the same."""
    *others, expected = results
    nan, found = expected.isnan(), ~expected.isfinite()
    for one in others:
        found &= (one == expected) | (one.isnan() & nan)
    return found


def _most_of_each(values: torch.Tensor, turns: np.ndarray, groups: int) -> np.ndarray:
    """Return the largest value of each group; NaN is the largest."""
    most = np.zeros(groups)
    np.maximum.at(most, turns, values.numpy())
    return most


def _allowed_of_rows(
    allowances: Sequence[Allowance], turns: np.ndarray, magnitude: torch.Tensor, excess: torch.Tensor
) -> torch.Tensor:
    constants, of_result = (
        torch.tensor(found, dtype=torch.float32)[turns].unsqueeze(1)
        for found in ([one.constant for one in allowances], [one.of_result for one in allowances])
    )
    allowed = torch.addcmul(constants, magnitude, of_result)
    share = allowances[0].of_excess  # equal in all allowances
    return allowed.add_(excess, alpha=share) if share else allowed


def same_shapes(results: Results) -> bool:
    return results[0].shape == results[1].shape == results[2].shape

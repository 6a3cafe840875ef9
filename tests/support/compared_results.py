"""Comparison of a result with PyTorch's and with the exact result, for tests of the comparison."""

import torch

from evolve.evaluation.allowed_errors import NO_SUMS, Sums
from evolve.evaluation.compare import Excuses, compared
from reference_ops.op import Tolerance


def fault(
    actual: torch.Tensor,
    pytorch: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
    sums: Sums = NO_SUMS,
) -> str:
    return compared(actual, pytorch, expected, tolerance, Excuses(sums=sums)).fault

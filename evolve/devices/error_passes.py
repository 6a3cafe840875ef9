"""Contract of a device's own computation of errors, which reads large outputs in few passes over memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

Results = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]  # the output, PyTorch's result and the float64 result


@dataclass(frozen=True)
class Allowance:
    """The allowed error of an element: a constant, a share of the result and a multiple of PyTorch's excess."""

    constant: float
    of_result: float
    of_excess: float = 0.0


class ErrorPasses(Protocol):
    """Computes errors of large outputs in few passes over memory; see `Errors` of the evaluation for their meaning.

    It takes all groups of rows of an output at once, so that their figures need a single transfer from the device.
    Elements at which all three results are the same infinity or all are NaN have no error; they are skipped.
    """

    def takes(self, results: Results) -> bool: ...

    def norms(self, groups: Sequence[Results], rounding: float) -> list[list[float]]:
        """Return six numbers for each group.

        They are the norms of the result, of the output's error, of PyTorch's error and of its excess over a rounding,
        the largest magnitude of a result, and the number of skipped elements. If a result is not finite at an element
        that is not skipped, one of the other numbers is not finite.
        """

    def worst(
        self, groups: Sequence[Results], rounding: float, allowances: Sequence[Sequence[Allowance]]
    ) -> list[list[float]]:
        """Return, for each group and each of its allowances, the largest error relative to the allowed one."""

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
    """Computes errors of large outputs in few passes over memory; see `Errors` of the evaluation for their meaning."""

    def takes(self, results: Results) -> bool: ...

    def norms(self, results: Results, rounding: float) -> list[float]: ...

    def worst(self, results: Results, rounding: float, allowances: Sequence[Allowance]) -> list[float]: ...

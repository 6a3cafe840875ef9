"""The basis of speedups: PyTorch's times on a GPU, and the times of the op's first kernel elsewhere."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from archive.records import Evaluation, Measurement
from archive.summaries import EvaluationSummary, RankedTimes, Timing
from evolve.devices.choose import policy_of


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean of positive numbers, or None if there are none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class Basis:
    """The times that count as 1.00x. PyTorch's times are measured beside each kernel, so they are not repeated here.

    The emulator simulates each thread of a kernel, but PyTorch runs natively, so a ratio of the two is meaningless.
    """

    # times of the first kernel by workload; None: PyTorch's times are the basis
    first_us: Mapping[str, float] | None = None

    @property
    def is_pytorch(self) -> bool:
        return self.first_us is None

    def ratio(self, timed: Measurement | Timing) -> float | None:
        """Return a kernel's speedup over the basis; None if no first kernel is known."""
        if self.first_us is None:
            return timed.speedup
        first = self.first_us.get(timed.workload)
        return first / timed.median_us if first else None

    def ratios(self, verdict: Evaluation | EvaluationSummary | RankedTimes) -> list[float]:
        return [ratio for timed in verdict.measurements if (ratio := self.ratio(timed)) is not None]

    def mean(self, verdict: Evaluation | EvaluationSummary) -> float | None:
        """Return the geometric mean of the ratios over the timed workloads."""
        return geometric_mean(max(ratio, 1e-9) for ratio in self.ratios(verdict))

    def best(self, verdict: Evaluation | EvaluationSummary | RankedTimes) -> float | None:
        return max(self.ratios(verdict), default=None)


PYTORCH, UNKNOWN = Basis(), Basis({})


def known_basis(kind: str) -> Basis:
    """Return the basis on a device of this kind, as far as it is known without an archive."""
    return PYTORCH if policy_of(kind).times_are_gpu_times else UNKNOWN

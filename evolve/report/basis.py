"""The times that a kernel's times are compared with: PyTorch's on a GPU, elsewhere those of the op's first kernel."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from archive.records import DeviceInfo, Evaluation, Measurement
from archive.store import Store
from archive.summaries import EvaluationSummary, KernelSummary, RankedTimes, Timing
from evolve.devices.choose import policy_of


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean of positive numbers, or None if there are none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class Basis:
    """The times that count as 1.00x. PyTorch's are measured beside each kernel, so they are not repeated here.

    The emulator simulates each thread of a kernel, but not PyTorch, so that a ratio of the two says nothing.
    """

    first_us: Mapping[str, float] | None = None  # of the first kernel, by workload; None: PyTorch's times count

    @property
    def is_pytorch(self) -> bool:
        return self.first_us is None

    def ratio(self, timed: Measurement | Timing) -> float | None:
        """Return how many times as fast as the basis a kernel is; None where no first kernel is known."""
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
READ_AT_ONCE = 500  # kernels; the first few have usually passed on every workload


def known_basis(kind: str) -> Basis:
    """Return the basis on a device of this kind as far as it is known without an archive."""
    return PYTORCH if policy_of(kind).times_are_gpu_times else UNKNOWN


def basis_of(store: Store, op: str, device: DeviceInfo, passed: Sequence[RankedTimes] | None = None) -> Basis:
    """Return the basis of an op on a device; `passed` are the times that rank its kernels, if they are read already."""
    if policy_of(device.kind).times_are_gpu_times:
        return PYTORCH
    return first_kernel(store, op, store.find(RankedTimes, op, device=device.key) if passed is None else passed)


def first_kernel(store: Store, op: str, ranked: Iterable[RankedTimes]) -> Basis:
    """Return the basis of a device without GPU times: on each workload, the first kernel added of those that passed."""
    by_kernel = {one.kernel_id: one for one in ranked if one.times}
    workloads = {workload for keys in {one.workloads for one in by_kernel.values()} for workload in keys.split("\n")}
    first: dict[str, float] = {}
    last = 0
    while len(first) < len(workloads):
        kernels = store.find(KernelSummary, op, ids=by_kernel.keys(), after=last, oldest=READ_AT_ONCE)
        if not kernels:
            break
        for kernel in kernels:
            for timed in by_kernel[kernel.id].measurements:
                first.setdefault(timed.workload, timed.median_us)
        last = kernels[-1].number
    return Basis(first)

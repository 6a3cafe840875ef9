"""What became of earlier proposals, for whoever decides what to try next: who gained how much, at what cost.

A design's gain is that of its best setting, also where the tuner found it: the model that wrote it gets the credit.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import Evaluation, Measurement
from evolve.request import Trial


def trials(
    proposals: Sequence[Proposal], kernels: Mapping[str, Kernel], verdicts: Mapping[str, Evaluation]
) -> tuple[Trial, ...]:
    """One per proposal that is judged already or held no kernel, oldest first."""
    gains = _gains(kernels, verdicts)
    first: dict[str, str] = {}  # the proposal that brought a kernel first; whoever repeats it gains nothing
    for proposal in proposals:
        first.setdefault(proposal.kernel_id, proposal.id)
    found = []
    for proposal in proposals:
        verdict = verdicts.get(proposal.kernel_id)
        if verdict or not proposal.kernel:
            new = first[proposal.kernel_id] == proposal.id
            passed = verdict is not None and verdict.passed and new
            gain = gains.get(proposal.kernel_id, 0.0) if passed else 0.0
            found.append(Trial(proposal.operator, proposal.proposer, proposal.cost, passed, gain))
    return tuple(found)


def _gains(kernels: Mapping[str, Kernel], verdicts: Mapping[str, Evaluation]) -> dict[str, float]:
    """By kernel: how much faster it made the best known, or for the first of a design the whole design."""
    in_order = sorted(verdicts.values(), key=lambda verdict: verdict.created)
    best: dict[str, Measurement] = {}
    of_kernel: dict[str, dict[str, float]] = {}
    founder: dict[str, str] = {}
    before_founder: dict[str, dict[str, Measurement]] = {}
    members = defaultdict[str, list[Evaluation]](list)
    for verdict in in_order:
        kernel = kernels.get(verdict.kernel_id)
        if not kernel or not verdict.passed:
            continue
        if kernel.family not in founder:
            founder[kernel.family], before_founder[kernel.family] = verdict.kernel_id, dict(best)
        members[kernel.family].append(verdict)
        of_kernel[verdict.kernel_id] = _faster([verdict], best)
        for measurement in verdict.measurements:
            held = best.get(measurement.workload)
            if held is None or measurement.median_us < held.median_us:
                best[measurement.workload] = measurement
    for family, kernel_id in founder.items():
        of_kernel[kernel_id] = _faster(members[family], before_founder[family])
    workloads = max(len(best), 1)
    return {kernel_id: sum(logs.values()) / workloads for kernel_id, logs in of_kernel.items()}


def _faster(verdicts: Sequence[Evaluation], before: Mapping[str, Measurement]) -> dict[str, float]:
    """By workload: the log of how many times faster than what was best before, or else than PyTorch.

    Only what clears both intervals counts: luck is no improvement.
    """
    gained: dict[str, float] = {}
    for measurement in (m for verdict in verdicts for m in verdict.measurements):
        held = before.get(measurement.workload)
        if held is not None and measurement.high_us >= held.low_us:
            continue
        old_us = held.median_us if held else measurement.baseline_us
        gain = max(0.0, math.log(old_us / measurement.median_us))
        gained[measurement.workload] = max(gained.get(measurement.workload, 0.0), gain)
    return gained

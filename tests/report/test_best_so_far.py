"""The best so far by cost."""

import math
import random
from collections.abc import Sequence

import pytest
from records import GPU, kernel, passed, proposal
from standings import archive_of

from archive.summaries import BriefProposal, Judged, RankedTimes
from evolve.report.basis import PYTORCH, Basis
from evolve.report.best_so_far import largest_ratio, moments, rises

A, B = "rows=8 float32", "rows=9 float32"


def test_the_best_never_falls_and_counts_every_workload() -> None:
    store = archive_of(
        *(proposal(kernel(number)) for number in range(3)),
        passed(kernel(0).id, GPU, 1.0, **{A: 50.0, B: 100.0}),
        passed(kernel(1).id, GPU, 2.0, **{A: 200.0}),
        passed(kernel(2).id, GPU, 3.0, **{B: 25.0}),
    )
    ranked, verdicts = store.find(RankedTimes, "softmax"), store.find(Judged, "softmax")
    found = moments(ranked, verdicts, store.find(BriefProposal, "softmax"), PYTORCH, 9)
    assert [one.kernel_id for one in found] == [kernel(number).id for number in range(3)]
    assert [round(one.best, 6) for one in found] == [round(2**0.5, 6), round(2**0.5, 6), round(8**0.5, 6)]
    assert [round(one.ratio, 6) for one in found] == [round(2**0.5, 6), 0.5, 4.0]
    assert [one.spent[0] for one in found] == [1.0, 2.0, 3.0]


def test_the_curve_has_the_first_kernel_each_improvement_and_the_last_kernel() -> None:
    times = [(50.0, 100.0), (60.0, 100.0), (50.0, 20.0), (40.0, 30.0), (90.0, 90.0), (99.0, 99.0)]
    store = archive_of(*(passed(kernel(n).id, GPU, 1.0 + n, **{A: a, B: b}) for n, (a, b) in enumerate(times)))
    ranked, verdicts = store.find(RankedTimes, "softmax"), store.find(Judged, "softmax")
    every = [(one.spent[0], one.best) for one in moments(ranked, verdicts, [], PYTORCH, 9)]
    found = rises(ranked, verdicts, PYTORCH)
    assert [round(best, 6) for _, best in found] == [round(every[place][1], 6) for place in (0, 2, 3, 5)]
    assert [spent for spent, _ in found] == [1.0, 3.0, 4.0, 6.0]


def plain_rises(ranked: Sequence[RankedTimes], basis: Basis) -> list[tuple[float, float]]:
    """Return the time and the best so far of the first kernel, each kernel that raised it, and the last kernel."""
    best, every = {timed.workload: 1.0 for one in ranked for timed in one.measurements}, list[tuple[float, float]]()
    for one in sorted(ranked, key=lambda one: one.created):
        best |= {timed.workload: max(best[timed.workload], basis.ratio(timed) or 0.0) for timed in one.measurements}
        every.append((one.created, math.prod(best.values()) ** (1 / len(best))))
    ends = {0, len(every) - 1}
    return [one for place, one in enumerate(every) if place in ends or one[1] > every[place - 1][1] + 1e-12]


@pytest.mark.parametrize("seed", range(20))
def test_improvements_and_the_largest_ratio_equal_those_found_kernel_by_kernel(seed: int) -> None:
    rng, sets = random.Random(seed), ((A, B), (B, A), (A,), (B, "rows=1 float32"))
    times = [{workload: rng.uniform(5, 300) for workload in rng.choice(sets)} for _ in range(15)]
    moments_judged = rng.sample(range(1, 99), 15)
    store = archive_of(*(passed(kernel(n).id, GPU, float(at), **times[n]) for n, at in enumerate(moments_judged)))
    ranked, verdicts = store.find(RankedTimes, "softmax"), store.find(Judged, "softmax")
    for basis in (PYTORCH, Basis({A: 90.0, B: 120.0})):
        expected = [(sorted(moments_judged).index(round(at)) + 1, best) for at, best in plain_rises(ranked, basis)]
        found = rises(ranked, verdicts, basis)
        assert [spent for spent, _ in found] == [spent for spent, _ in expected]
        assert [best for _, best in found] == pytest.approx([best for _, best in expected])
        ratios = [basis.ratio(timed) or 0.0 for one in ranked for timed in one.measurements]
        assert largest_ratio(ranked, basis) == max(ratios)
    assert (rises([], [], PYTORCH), largest_ratio([], PYTORCH)) == ((), 0.0)


def test_without_gpu_times_the_first_kernel_counts_as_one() -> None:
    store = archive_of(proposal(kernel()), passed(kernel().id, GPU, **{A: 50.0}))
    (found,) = moments(store.find(RankedTimes, "softmax"), [], [], Basis({A: 100.0}), 9)
    assert (round(found.ratio, 6), round(found.best, 6)) == (2.0, 2.0)


def test_only_kernels_that_raised_the_best_and_some_others_are_kept() -> None:
    times = [90.0 if number != 5 else 20.0 for number in range(12)]
    store = archive_of(*(passed(kernel(n).id, GPU, 1.0 + n, **{A: us}) for n, us in enumerate(times)))
    found = moments(store.find(RankedTimes, "softmax"), [], [], PYTORCH, 3)
    assert [one.kernel_id for one in found] == [kernel(number).id for number in (0, 4, 5, 8)]

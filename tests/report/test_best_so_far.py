"""The best so far over what was spent."""

from records import GPU, kernel, passed, proposal
from standings import archive_of

from archive.summaries import BriefEvaluation, BriefProposal, RankedTimes
from evolve.report.basis import PYTORCH, Basis
from evolve.report.best_so_far import moments, rises

A, B = "rows=8 float32", "rows=9 float32"


def test_the_best_never_falls_and_counts_every_workload() -> None:
    store = archive_of(
        *(proposal(kernel(number)) for number in range(3)),
        passed(kernel(0).id, GPU, 1.0, **{A: 50.0, B: 100.0}),
        passed(kernel(1).id, GPU, 2.0, **{A: 200.0}),
        passed(kernel(2).id, GPU, 3.0, **{B: 25.0}),
    )
    ranked, evaluations = store.find(RankedTimes, "softmax"), store.find(BriefEvaluation, "softmax")
    found = moments(ranked, evaluations, store.find(BriefProposal, "softmax"), PYTORCH, 9)
    assert [one.kernel_id for one in found] == [kernel(number).id for number in range(3)]
    assert [round(one.best, 6) for one in found] == [round(2**0.5, 6), round(2**0.5, 6), round(8**0.5, 6)]
    assert [round(one.ratio, 6) for one in found] == [round(2**0.5, 6), 0.5, 4.0]
    assert [one.spent[0] for one in found] == [1.0, 2.0, 3.0]


def test_the_curve_has_the_first_kernel_each_rise_and_the_last_kernel() -> None:
    times = [(50.0, 100.0), (60.0, 100.0), (50.0, 20.0), (40.0, 30.0), (90.0, 90.0), (99.0, 99.0)]
    store = archive_of(*(passed(kernel(n).id, GPU, 1.0 + n, **{A: a, B: b}) for n, (a, b) in enumerate(times)))
    ranked, evaluations = store.find(RankedTimes, "softmax"), store.find(BriefEvaluation, "softmax")
    every = [(one.spent[0], one.best) for one in moments(ranked, evaluations, [], PYTORCH, 9)]
    found = rises(ranked, evaluations, PYTORCH)
    assert [round(best, 6) for _, best in found] == [round(every[place][1], 6) for place in (0, 2, 3, 5)]
    assert [spent for spent, _ in found] == [1.0, 3.0, 4.0, 6.0]


def test_without_gpu_times_the_first_kernel_counts_as_one() -> None:
    store = archive_of(proposal(kernel()), passed(kernel().id, GPU, **{A: 50.0}))
    (found,) = moments(store.find(RankedTimes, "softmax"), [], [], Basis({A: 100.0}), 9)
    assert (round(found.ratio, 6), round(found.best, 6)) == (2.0, 2.0)


def test_of_many_kernels_those_that_raised_the_best_and_some_others_are_kept() -> None:
    times = [90.0 if number != 5 else 20.0 for number in range(12)]
    store = archive_of(*(passed(kernel(n).id, GPU, 1.0 + n, **{A: us}) for n, us in enumerate(times)))
    found = moments(store.find(RankedTimes, "softmax"), [], [], PYTORCH, 3)
    assert [one.kernel_id for one in found] == [kernel(number).id for number in (0, 4, 5, 8)]

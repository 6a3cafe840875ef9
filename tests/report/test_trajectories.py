"""Trajectories of runs: the quality of the best kernels as a function of the cost."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from records import GPU, brief_evaluation, brief_proposal, failed, kernel, passed, proposal
from standings import archive_of

from archive.kernel import Proposal
from archive.records import Evaluation, Leg
from archive.runs import Cost, Run
from archive.summaries import RankedTimes
from evolve.budget import History, Spent
from evolve.report import runs
from evolve.report.basis import PYTORCH, Basis
from evolve.report.runs import Curve, Trajectory, common, compared, plot, thinned

W, V = "rows=8 cols=16 float32", "rows=2 cols=512 float32"
RUN, OTHER = Run("run", "softmax", GPU.key, "a model", 0, 0.0), Run("other", "softmax", GPU.key, "offline", 0, 0.0)


def proposed(number: int, at: float, run: str = "run") -> Proposal:
    return replace(proposal(kernel(number), run=run), created=at, cost=Cost(80, 20, usd=0.5))


def judged(number: int, at: float, **times: float) -> Evaluation:
    return passed(kernel(number).id, GPU, at, **times)  # PyTorch takes 100 us


Records = Sequence[Proposal | Evaluation]


def evaluations(records: Records) -> list[Evaluation]:
    return [record for record in records if isinstance(record, Evaluation)]


def past(records: Records) -> History:
    proposals = [brief_proposal(record) for record in records if isinstance(record, Proposal)]
    return History([Leg("run", 0.0), Leg("other", 0.0)], proposals, [*map(brief_evaluation, evaluations(records))])


def trajectory(run: Run, records: Records, basis: Basis = PYTORCH) -> Trajectory:
    ranked = archive_of(*records).find(RankedTimes, "softmax")
    workloads = list(dict.fromkeys(timed.workload for one in evaluations(records) for timed in one.measurements))
    return runs.trajectory(run, past(records), ranked, workloads, basis)


TWO_KERNELS: Records = (
    proposed(1, 1.0), judged(1, 2.0, **{W: 50.0, V: 200.0}), proposed(2, 3.0), judged(2, 4.0, **{W: 80.0, V: 12.5})
)  # fmt: skip


def test_the_quality_is_the_geometric_mean_of_the_best_speedups_or_1_where_pytorch_is_faster() -> None:
    points = trajectory(RUN, TWO_KERNELS).points
    assert points[0].quality is None  # no kernel has passed yet
    assert [point.quality for point in points[1:]] == pytest.approx([2**0.5, 2**0.5, 4.0])
    assert points[-1].spent == Spent(2, 200, 1.0)


def test_the_best_quality_so_far_is_looked_up_by_the_amount_spent() -> None:
    one = trajectory(RUN, TWO_KERNELS)
    assert one.quality("evals", 0) is None
    assert [one.quality("evals", amount) for amount in (1, 2, 99)] == pytest.approx([2**0.5, 4.0, 4.0])
    assert one.quality("tokens", 100) == pytest.approx(2**0.5)
    assert one.quality("usd", 0.4) is None


def test_a_refused_workload_counts_once_and_with_the_time_of_pytorch() -> None:
    picky = replace(judged(1, 2.0, **{W: 25.0}), skipped=(f"{V}: not accepted by the kernel's `when` or `dtypes`",))
    both = (proposed(1, 1.0), picky, proposed(2, 3.0), judged(2, 4.0, **{W: 100.0, V: 100.0}))
    assert trajectory(RUN, both).points[-1].quality == pytest.approx(2.0)


def test_kernels_of_other_runs_do_not_count() -> None:
    both = (*TWO_KERNELS, proposed(3, 5.0, "other"), judged(3, 6.0, **{W: 1.0}))
    assert trajectory(RUN, both).points[-1].quality == pytest.approx(4.0)
    assert trajectory(OTHER, both).points[-1].quality == pytest.approx(10.0)


def test_a_kernel_that_another_run_had_found_before_counts_when_it_is_proposed_again() -> None:
    known = (proposed(1, 1.0, "other"), judged(1, 2.0, **{W: 25.0}), proposed(1, 9.0))
    (point,) = trajectory(RUN, known).points
    assert (point.quality, point.spent.evals) == (4.0, 1)


def test_a_champion_that_failed_later_does_not_count() -> None:
    fell = (proposed(1, 1.0), judged(1, 2.0, **{W: 50.0}), failed(kernel(1).id, created=3.0))
    assert {point.quality for point in trajectory(RUN, fell).points} == {None}


def test_a_kernel_that_passed_and_is_slower_than_pytorch_counts_as_pytorch() -> None:
    slow = (proposed(1, 1.0), judged(1, 2.0, **{W: 200.0}))
    assert trajectory(RUN, slow).points[-1].quality == 1.0


def test_runs_are_compared_at_shares_of_the_cost_of_both() -> None:
    ten = [record for n in range(10) for record in (proposed(n, n + 1.0), judged(n, n + 1.5, **{W: 100 / (n + 1)}))]
    four = [proposed(n, n + 20.0, "other") for n in range(10, 14)]
    verdicts = [judged(n, n + 20.5, **{W: 50.0}) for n in range(10, 14)]
    trajectories = [trajectory(run, (*ten, *four, *verdicts)) for run in (RUN, OTHER)]
    assert common(trajectories, "evals") == 4
    rows = compared(trajectories, "evals")
    assert [amount for amount, _ in rows] == [1, 1, 2, 4]
    assert [qualities for _, qualities in rows] == [[1, 2], [1, 2], [2, 2], [4, 2]]


def test_an_axis_on_which_one_run_spent_nothing_has_no_rows() -> None:
    free = replace(proposed(5, 9.0, "other"), cost=Cost())
    trajectories = [trajectory(run, (*TWO_KERNELS, free)) for run in (RUN, OTHER)]
    assert compared(trajectories, "usd") == []


def test_without_gpu_times_the_quality_is_over_the_first_kernel_and_1_where_that_is_faster() -> None:
    first = Basis({W: 50.0, V: 200.0})
    assert [point.quality for point in trajectory(RUN, TWO_KERNELS, first).points[1:]] == pytest.approx([1, 1, 4])


def test_a_plot_begins_with_the_first_kernel_that_passed_and_gets_the_points_at_which_the_quality_changes() -> None:
    points = thinned(trajectory(RUN, TWO_KERNELS), "evals")
    assert [spent for spent, _ in points] == [1, 2, 2]
    assert [quality for _, quality in points] == pytest.approx([2**0.5, 4, 4])
    assert thinned(trajectory(OTHER, TWO_KERNELS), "evals") == []


def test_a_plot_is_empty_up_to_the_first_kernel_that_passed() -> None:
    late = plot([Curve([(50.0, 2.0), (100.0, 2.0)])], 60, 4, unicode=False)
    drawn = [line.plain.partition("|")[2] for line in late if "|" in line.plain]
    first = min(line.index("A") for line in drawn if "A" in line)
    assert 0.4 * 60 < first < 0.6 * 60

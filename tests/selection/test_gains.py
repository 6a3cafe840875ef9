import math
import random
from dataclasses import replace

import pytest
from records import failed, failed_reply, kernel, passed, proposal, proposal_summary

from archive.kernel import Kernel, Proposal
from archive.records import Evaluation
from archive.runs import Cost
from archive.summaries import Trial, summary
from evolve.selection import history

FIRST, SECOND = kernel(1), kernel(2)
TUNED = SECOND.with_knobs({"N": 3})


def drafted(of: Kernel, name: str = "model", call: str = "") -> Proposal:
    return replace(proposal(of, operator="draft"), proposer=name, call=call, cost=Cost(100, 10))


def judged(*pairs: tuple[Proposal, Evaluation | None], backwards: bool = False) -> tuple[Trial, ...]:
    verdicts = {e.kernel_id: replace(e, created=float(n)) for n, (_, e) in enumerate(pairs) if e}
    summaries = {kernel_id: summary(verdict) for kernel_id, verdict in verdicts.items()}
    told = history.History({p.kernel_id: p.kernel.family for p, _ in pairs if p.kernel}, summaries)
    for one, _ in pairs:
        told.propose(proposal_summary(one))
    for verdict in reversed(verdicts.values()) if backwards else verdicts.values():
        told.judge(summary(verdict))
    return told.trials()


TUNED_DESIGN = (
    (drafted(FIRST), passed(FIRST.id, w=50.0)),
    (drafted(SECOND), passed(SECOND.id, w=60.0)),
    (proposal(TUNED, SECOND.id), passed(TUNED.id, w=25.0)),
)


def test_the_gain_of_the_first_kernel_is_its_speedup_over_pytorch() -> None:
    (trial,) = judged((drafted(FIRST), passed(FIRST.id, w=50.0)))
    assert trial.gain == pytest.approx(math.log(2))  # PyTorch takes 100 us
    assert (trial.operator, trial.proposer, trial.passed, trial.cost) == ("draft", "model", True, Cost(100, 10))


def test_the_first_kernel_gains_nothing_where_pytorch_is_faster() -> None:
    assert judged((drafted(FIRST), passed(FIRST.id, w=200.0)))[0].gain == 0


def test_the_gain_of_a_later_kernel_is_its_speedup_over_the_best_before() -> None:
    _, second = judged((drafted(FIRST), passed(FIRST.id, w=50.0)), (drafted(SECOND), passed(SECOND.id, w=25.0)))
    assert second.gain == pytest.approx(math.log(2))


def test_a_gain_on_one_of_two_workloads_counts_half() -> None:
    first, second = passed(FIRST.id, w=50.0, v=50.0), passed(SECOND.id, w=25.0, v=60.0)
    assert judged((drafted(FIRST), first), (drafted(SECOND), second))[1].gain == pytest.approx(math.log(2) / 2)


def test_a_speedup_within_the_confidence_intervals_is_not_a_gain() -> None:
    _, second = judged((drafted(FIRST), passed(FIRST.id, w=50.0)), (drafted(SECOND), passed(SECOND.id, w=45.0)))
    assert (second.passed, second.gain) == (True, 0)


def test_a_design_is_credited_with_the_gains_of_its_tuned_settings() -> None:
    for backwards in (False, True):
        _, model, tuner = judged(*TUNED_DESIGN, backwards=backwards)
        assert model.gain == tuner.gain == pytest.approx(math.log(2))


def test_failures_and_replies_without_a_kernel_gain_nothing() -> None:
    for trial in judged((drafted(FIRST), failed(FIRST.id)), (failed_reply(), None)):
        assert (trial.passed, trial.gain) == (False, 0)


def test_a_proposal_without_a_verdict_is_not_a_trial() -> None:
    assert judged((drafted(FIRST), None)) == ()


def test_a_proposal_that_repeats_a_kernel_gains_nothing() -> None:
    verdict = passed(FIRST.id, w=50.0)
    first, again = judged((drafted(FIRST, call="1"), verdict), (drafted(FIRST, "parrot", call="2"), verdict))
    assert (first.passed, again.passed, again.gain) == (True, False, 0)


def test_the_order_in_which_verdicts_arrive_makes_no_difference() -> None:
    rng = random.Random(3)
    kernels = [kernel(n).with_knobs({"N": setting}) for n in range(6) for setting in (1, 2, 3)]
    pairs = [(drafted(k), passed(k.id, w=rng.uniform(1, 9), v=rng.uniform(1, 9))) for k in kernels]
    assert judged(*pairs) == judged(*pairs, backwards=True)


def test_a_verdict_that_arrives_after_too_many_later_ones_requires_a_new_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "MOST_STEPS", 2)
    kernels = [kernel(number) for number in range(5)]
    verdicts = {one.id: summary(replace(passed(one.id, w=50.0), created=10.0 + n)) for n, one in enumerate(kernels)}
    told = history.History({one.id: one.family for one in kernels}, verdicts)
    *later, first = [verdicts[one.id] for one in reversed(kernels)]
    assert [told.judge(verdict) for verdict in reversed(later)] == [True] * 4
    assert not told.judge(first)

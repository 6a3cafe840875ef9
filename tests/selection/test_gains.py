import math
from dataclasses import replace

import pytest
from records import failed, failed_reply, kernel, passed, proposal

from archive.kernel import Kernel
from archive.proposals import Cost, Proposal
from archive.records import Evaluation
from evolve.request import Trial
from evolve.selection.history import trials

FIRST, SECOND = kernel(1), kernel(2)
TUNED = SECOND.with_knobs({"N": 3})


def drafted(of: Kernel, name: str = "model", call: str = "") -> Proposal:
    return replace(proposal(of, operator="draft"), proposer=name, call=call, cost=Cost(100, 10))


def judged(*pairs: tuple[Proposal, Evaluation | None]) -> tuple[Trial, ...]:
    verdicts = {
        verdict.kernel_id: replace(verdict, created=float(n)) for n, (_, verdict) in enumerate(pairs) if verdict
    }
    kernels = {p.kernel_id: p.kernel for p, _ in pairs if p.kernel}
    return trials([p for p, _ in pairs], kernels, verdicts)


def test_the_first_kernel_gains_what_it_is_faster_than_pytorch() -> None:
    (trial,) = judged((drafted(FIRST), passed(FIRST.id, w=50.0)))
    assert trial.gain == pytest.approx(math.log(2))  # PyTorch takes 100
    assert (trial.operator, trial.proposer, trial.passed, trial.cost) == ("draft", "model", True, Cost(100, 10))


def test_the_first_kernel_gains_nothing_where_pytorch_is_faster() -> None:
    assert judged((drafted(FIRST), passed(FIRST.id, w=200.0)))[0].gain == 0


def test_a_later_kernel_gains_what_it_is_faster_than_the_best_before() -> None:
    _, second = judged((drafted(FIRST), passed(FIRST.id, w=50.0)), (drafted(SECOND), passed(SECOND.id, w=25.0)))
    assert second.gain == pytest.approx(math.log(2))


def test_a_gain_on_one_of_two_workloads_counts_half() -> None:
    first, second = passed(FIRST.id, w=50.0, v=50.0), passed(SECOND.id, w=25.0, v=60.0)
    assert judged((drafted(FIRST), first), (drafted(SECOND), second))[1].gain == pytest.approx(math.log(2) / 2)


def test_what_is_within_the_intervals_is_no_gain() -> None:
    _, second = judged((drafted(FIRST), passed(FIRST.id, w=50.0)), (drafted(SECOND), passed(SECOND.id, w=45.0)))
    assert (second.passed, second.gain) == (True, 0)


def test_a_design_is_credited_with_what_the_tuner_made_of_it() -> None:
    _, model, tuner = judged(
        (drafted(FIRST), passed(FIRST.id, w=50.0)),
        (drafted(SECOND), passed(SECOND.id, w=60.0)),
        (proposal(TUNED, SECOND.id), passed(TUNED.id, w=25.0)),
    )
    assert model.gain == tuner.gain == pytest.approx(math.log(2))


def test_failures_and_replies_without_a_kernel_gain_nothing() -> None:
    for trial in judged((drafted(FIRST), failed(FIRST.id)), (failed_reply(), None)):
        assert (trial.passed, trial.gain) == (False, 0)


def test_what_is_not_judged_yet_is_no_trial() -> None:
    assert judged((drafted(FIRST), None)) == ()


def test_whoever_repeats_a_kernel_gains_nothing() -> None:
    verdict = passed(FIRST.id, w=50.0)
    first, again = judged((drafted(FIRST, call="1"), verdict), (drafted(FIRST, "parrot", call="2"), verdict))
    assert (first.passed, again.passed, again.gain) == (True, False, 0)

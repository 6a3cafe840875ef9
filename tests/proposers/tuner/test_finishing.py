"""Finishing: the kernels that models write are tuned before the models are asked again."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import bad_kernels
from records import CPU, measurement

from archive.kernel import Kernel, Proposal, parse
from archive.library import shipped
from archive.records import Evaluation, Outcome
from evolve.devices.choose import supports
from evolve.proposers.tuner.proposer import FinishingProposer, OfflineProposer, unfinished
from evolve.request import Candidate, Request
from reference_ops import catalog

OP = catalog.load(str(Path(__file__).parents[2] / "samples" / "twice.py"))


@dataclass(frozen=True)
class Model:
    """A proposer that records how many kernels each request wanted."""

    name: str = "some-model"
    asked: list[int] = field(default_factory=list)

    def propose(self, request: Request) -> Iterator[Proposal]:
        self.asked.append(request.wanted)
        yield Proposal(request.op.name, "draft", self.name, None, reply="no", failure="no kernel in the reply")


def written(note: str, threads: str = "[32, 64, 96, 128, 192, 256, 512, 1024]") -> Kernel:
    return parse(bad_kernels.twice_kernel(note=note).text.replace("[128, 64, 256]", threads))


def timed(kernel: Kernel, us: float) -> Candidate:
    times = (measurement("n=4096 float32", us),)
    return Candidate(kernel, Evaluation(kernel.id, "twice", CPU, Outcome.PASSED, "", times))


def request(*tried: Candidate, wanted: int = 8) -> Request:
    known = frozenset(candidate.kernel.id for candidate in tried)
    return Request(OP, CPU, wanted, 3, "run", tried[:1], tried[:1], known=known, tried=tried)


def test_the_finishing_proposer_has_the_name_of_its_models() -> None:
    assert FinishingProposer(Model(), OfflineProposer()).name == "some-model"


def test_a_new_kernel_is_tuned_before_the_model_is_asked_again() -> None:
    model = Model()
    proposals = list(FinishingProposer(model, OfflineProposer()).propose(request(timed(written("new"), 50.0))))
    assert model.asked == []
    assert {p.proposer for p in proposals} == {"offline"}
    assert {p.kernel.family for p in proposals if p.kernel} == {written("new").family}


def test_at_most_a_share_of_the_settings_of_a_family_is_tried() -> None:
    model, kernel = Model(), written("new")
    finishing, tried = FinishingProposer(model, OfflineProposer()), [timed(kernel, 50.0)]
    while not model.asked:
        kernels = [p.kernel for p in finishing.propose(request(*tried, wanted=3)) if p.kernel]
        tried += [timed(other, 50.0) for other in kernels]
    assert len(tried) == 1 + 4


def test_a_kernel_far_behind_the_champion_is_not_tuned() -> None:
    fast, slow = timed(written("fast", "[32]"), 50.0), timed(written("slow"), 80.0)
    assert unfinished(request(fast, slow)) == {}


def test_all_families_close_to_the_champion_are_tuned() -> None:
    fast, close, slow = written("fast"), written("close"), written("slow")
    assert unfinished(request(timed(fast, 50.0), timed(close, 70.0), timed(slow, 80.0))) == {
        fast.family: 4,
        close.family: 4,
    }


def test_a_larger_space_gets_more_settings() -> None:
    large = written("large", str(list(range(32, 544, 8))))
    assert unfinished(request(timed(large, 50.0))) == {large.family: 6}


def test_a_kernel_that_failed_is_not_tuned() -> None:
    kernel = written("broken")
    broken = Candidate(kernel, Evaluation(kernel.id, "twice", CPU, Outcome.WRONG, "it is wrong"))
    model = Model()
    list(FinishingProposer(model, OfflineProposer()).propose(request(broken)))
    assert model.asked == [8]


def test_the_model_is_asked_when_nothing_is_left_to_tune() -> None:
    kernel, model = written("small", "[32, 64]"), Model()
    tried = timed(kernel, 50.0), timed(kernel.with_knobs({"THREADS": 64}), 60.0)
    list(FinishingProposer(model, OfflineProposer()).propose(request(*tried)))
    assert model.asked == [8]


def test_a_shipped_kernel_is_not_tuned_but_a_changed_copy_is() -> None:
    softmax = catalog.load("softmax")
    kernel = next(kernel for kernel in shipped("softmax") if kernel.plan.knobs and supports(CPU.kind, kernel))
    workload = softmax.emulated[0].key
    verdict = Evaluation(kernel.id, "softmax", CPU, Outcome.PASSED, "", (measurement(workload, 50.0),))
    asked = Request(softmax, CPU, 8, 3, tried=(Candidate(kernel, verdict),))
    changed = parse(f"{kernel.text}// written by a model\n")
    other = Candidate(changed, replace(verdict, kernel_id=changed.id))
    assert unfinished(asked) == {}
    assert set(unfinished(replace(asked, tried=(other,)))) == {changed.family}

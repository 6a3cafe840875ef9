"""Operators that apply to a request, and their parents."""

import random
from dataclasses import replace

from each import each
from small_op import BROKEN_TEXT, KERNEL, OP, SLOW_TEXT, failed, passed, request

from archive.kernel import parse
from archive.records import Measurement
from evolve.prompting.operators import PARENTS
from evolve.proposers.llm.questions import applicable_operators, choose_parents, most_per_operator
from evolve.request import Candidate, Request

FAST, SLOW, BROKEN = passed(KERNEL), passed(parse(SLOW_TEXT)), failed(parse(BROKEN_TEXT))
DONOR = passed(parse(SLOW_TEXT.replace('"center_rows"', '"softmax"', 1)))
WORKLOADS = [workload.key for workload in OP.workloads("cuda")]


def timed(candidate: Candidate, *shares: float) -> Candidate:
    """Return the candidate with these shares of the speed of light, one per workload."""
    times = [
        Measurement(key, 10 / s, 10 / s, 10 / s, 9, 99.0, floor_us=10.0)
        for key, s in zip(WORKLOADS, shares, strict=True)
    ]
    return replace(candidate, evaluation=replace(candidate.evaluation, measurements=tuple(times)))


def applied_to(situation: Request, operator: str, turn: int = 0, seed: int = 0) -> list[str]:
    return [parent.kernel.id for parent in choose_parents(situation, operator, turn, random.Random(seed))]


def test_without_kernels_only_a_draft_applies() -> None:
    assert applicable_operators(replace(request(), donors=(DONOR,))) == ("draft",)


@each(
    {
        "a failure": (request(failures=(BROKEN,)), {"draft", "repair"}),
        "one kernel": (request(parents=(FAST,)), {"draft", "improve", "explore"}),
        "two designs": (request(parents=(FAST, SLOW)), {"draft", "improve", "explore", "crossover"}),
        "two workloads": (request(parents=(timed(FAST, 0.5, 0.2),)), {"draft", "improve", "explore", "specialise"}),
        "a donor": (replace(request(parents=(FAST,)), donors=(DONOR,)), {"draft", "improve", "explore", "port"}),
    }
)
def test_the_operators_that_apply_depend_on_the_known_kernels(situation: Request, found: set[str]) -> None:
    assert set(applicable_operators(situation)) == found


def test_two_settings_of_one_family_are_not_crossed() -> None:
    other = passed(KERNEL.with_knobs({"WARPS": 8}))
    assert "crossover" not in applicable_operators(request(parents=(FAST, other)))


def test_every_operator_gets_its_number_of_parents() -> None:
    alive = timed(FAST, 0.5, 0.2), timed(SLOW, 0.3, 0.4)
    situation = replace(request(parents=alive, failures=(BROKEN,)), donors=(DONOR,))
    assert {name: len(applied_to(situation, name)) for name in applicable_operators(situation)} == PARENTS


def test_parents_take_turns() -> None:
    situation = request(parents=(FAST, SLOW))
    assert [applied_to(situation, "improve", turn) for turn in range(3)] == [
        [FAST.kernel.id], [SLOW.kernel.id], [FAST.kernel.id],
    ]  # fmt: skip


def test_a_crossover_has_two_different_parents() -> None:
    situation = request(parents=(FAST, SLOW))
    assert all(len(set(applied_to(situation, "crossover", turn, turn))) == 2 for turn in range(8))


@each({str(case): case for case in [(((0.9, 0.1), (0.8, 0.2)), SLOW), (((0.3, 0.9), (0.1, 0.8)), FAST)]})
def test_the_champion_of_the_weakest_workload_is_specialised(
    shares: tuple[tuple[float, float], tuple[float, float]], leader: Candidate
) -> None:
    situation = request(parents=(timed(FAST, *shares[0]), timed(SLOW, *shares[1])))
    assert applied_to(situation, "specialise") == [leader.kernel.id]


@each({str(case): case for case in [(4, 5, 2), (5, 5, 2), (8, 1, 1), (2, 2, 1), (1, 3, 1)]})
def test_repairs_take_at_most_half_and_one_per_failure(wanted: int, failures: int, repairs: int) -> None:
    broken = tuple(failed(parse(f"{BROKEN_TEXT}//{i}\n")) for i in range(failures))
    assert most_per_operator(request(wanted, failures=broken)) == {"repair": repairs}

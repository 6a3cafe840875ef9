"""Lessons drawn from an archive. The kernels and times are made up."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from records import GPU, measurement, proposal_summary

from archive.kernel import Kernel, Proposal, parse
from archive.records import Evaluation, Outcome
from archive.summaries import EvaluationSummary, summary
from evolve.selection.lessons import Lessons, reason_in, shortened

ROWS, COLS = "rows=8192 cols=1024 float32", "rows=4 cols=65536 float32"


def design(note: str, **knobs: int) -> Kernel:
    """Return a kernel with the knobs N and M; kernels with different notes are different designs."""
    text = f"""\
/*---
op = "softmax"
note = "{note}"
[knobs]
N = [1, 2, 4]
M = [1, 2]
[[launch]]
entry = "f"
grid = [1]
block = [32]
args = ["x", "out"]
---*/
extern "C" __global__ void f() {{}}
"""
    return parse(text).with_knobs(knobs)


def lessons(
    kernels: Mapping[str, Kernel], proposals: Iterable[Proposal], verdicts: Mapping[str, Evaluation]
) -> tuple[str, ...]:
    """Return the lessons that these records give when they are read in this order."""
    judged: dict[str, EvaluationSummary] = {}
    found = Lessons(
        {kernel_id: kernel.family for kernel_id, kernel in kernels.items()},
        judged,
        lambda ids: {kernel_id: kernels[kernel_id] for kernel_id in ids},
    )
    for proposal in proposals:
        found.propose(proposal_summary(proposal))
    for verdict in verdicts.values():
        judged[verdict.kernel_id] = summary(verdict)
        found.judge(judged[verdict.kernel_id])
    return found.sentences()


@dataclass
class Told:
    """Records that are added to an archive one by one, each a moment after the one before."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    proposals: list[Proposal] = field(default_factory=list)
    verdicts: dict[str, Evaluation] = field(default_factory=dict)

    def passed(self, kernel: Kernel, *parents: Kernel, operator: str = "improve", **times: float) -> Kernel:
        found = {ROWS: times.get("rows"), COLS: times.get("cols")}
        measured = tuple(measurement(workload, us) for workload, us in found.items() if us is not None)
        return self._add(kernel, parents, operator, Evaluation(kernel.id, "softmax", GPU, Outcome.PASSED, "", measured))

    def failed(
        self, kernel: Kernel, *parents: Kernel, log: str, operator: str = "improve", outcome: Outcome = Outcome.WRONG
    ) -> Kernel:
        return self._add(kernel, parents, operator, Evaluation(kernel.id, "softmax", GPU, outcome, log))

    def unread(self, failure: str) -> None:
        now = float(len(self.proposals))
        self.proposals.append(Proposal("softmax", "draft", "model", None, reply=str(now), failure=failure, created=now))

    def lessons(self) -> tuple[str, ...]:
        return lessons(self.kernels, self.proposals, self.verdicts)

    def _add(self, kernel: Kernel, parents: Sequence[Kernel], operator: str, verdict: Evaluation) -> Kernel:
        now = float(len(self.proposals))
        ids = tuple(parent.id for parent in parents)
        self.kernels[kernel.id] = kernel
        self.proposals.append(Proposal("softmax", operator, "model", kernel, parents=ids, created=now))
        self.verdicts[kernel.id] = replace(verdict, created=now)
        return kernel


@pytest.fixture
def told() -> Told:
    return Told()


def test_an_empty_archive_has_no_lessons(told: Told) -> None:
    assert told.lessons() == ()


def test_a_change_that_helped_is_reported_with_its_workload_and_its_gain(told: Told) -> None:
    parent = told.passed(design("plain"), rows=30.0, cols=50.0)
    told.passed(design("wide loads"), parent, rows=15.0, cols=49.0)
    assert told.lessons() == (f'This helped: "wide loads": 2.0 times as fast as its parent at {ROWS}.',)


def test_a_change_without_effect_is_not_reported(told: Told) -> None:
    parent = told.passed(design("plain"), rows=30.0)
    told.passed(design("wide loads"), parent, rows=29.0)
    assert told.lessons() == ()


def test_a_change_that_harmed_everywhere_is_reported_with_the_workload_it_harmed_least(told: Told) -> None:
    parent = told.passed(design("plain"), rows=30.0, cols=50.0)
    told.passed(design("one thread a row"), parent, rows=300.0, cols=100.0)
    assert told.lessons() == (f'This was harmful: "one thread a row": 0.5 of its parent\'s speed, at best, at {COLS}.',)


def test_a_change_that_helped_at_one_workload_is_not_reported_as_harmful(told: Told) -> None:
    parent = told.passed(design("plain"), rows=30.0, cols=50.0)
    told.passed(design("for short rows"), parent, rows=300.0, cols=25.0)
    assert told.lessons() == (f'This helped: "for short rows": 2.0 times as fast as its parent at {COLS}.',)


def test_a_design_is_judged_by_its_best_setting(told: Told) -> None:
    parent = told.passed(design("plain"), rows=30.0)
    child = told.passed(design("tiles"), parent, rows=60.0)
    told.passed(design("tiles", N=2), child, operator="knobs", rows=10.0)
    assert told.lessons() == (f'This helped: "tiles": 3.0 times as fast as its parent at {ROWS}.',)


def test_a_crossover_is_compared_with_the_better_of_its_parents(told: Told) -> None:
    one, other = told.passed(design("one"), rows=30.0), told.passed(design("other"), rows=20.0)
    told.passed(design("both"), one, other, operator="crossover", rows=10.0)
    assert told.lessons() == (f'This helped: "both": 2.0 times as fast as its parent at {ROWS}.',)


def test_a_change_of_knobs_is_not_a_change_of_design(told: Told) -> None:
    parent = told.passed(design("plain"), rows=30.0)
    told.passed(design("plain", N=2), parent, operator="knobs", rows=10.0)
    assert told.lessons() == ()


def test_at_most_three_gains_are_reported_largest_first(told: Told) -> None:
    parent = told.passed(design("plain"), rows=100.0)
    for gain in (2, 4, 3, 5):
        told.passed(design(f"by {gain}"), parent, rows=100.0 / gain)
    assert [sentence.split('"')[1] for sentence in told.lessons()] == ["by 5", "by 4", "by 3"]


def tuned(told: Told) -> None:
    """Add settings of a design for which N = 4 is twice as fast as N = 1 and M has almost no effect."""
    for n, m in ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2)):
        told.passed(design("tiles", N=n, M=m), operator="knobs", rows=40.0 / n**0.5 + 0.1 * m)


def test_a_knob_that_matters_is_reported_with_its_best_and_worst_value(told: Told) -> None:
    tuned(told)
    assert told.lessons() == ('In "tiles", N = 4 is about 2.0 times as fast as N = 1, whatever the other knobs.',)


def test_a_single_measurement_per_knob_value_gives_no_lesson(told: Told) -> None:
    for n in (1, 2, 4):
        told.passed(design("tiles", N=n), operator="knobs", rows=40.0 / n)
    assert told.lessons() == ()


def test_a_repeated_failure_is_reported_with_its_count_and_without_its_line(told: Told) -> None:
    told.failed(design("a"), log="kernel.cu(15): error: `sum` is undefined", outcome=Outcome.COMPILE_ERROR)
    told.failed(design("b"), log="kernel.cu(9): error: `most` is undefined", outcome=Outcome.COMPILE_ERROR)
    assert told.lessons() == ("Failed 2 times in the same way: compile error: `sum` is undefined.",)


def test_failures_that_differ_only_in_numbers_count_as_the_same(told: Told) -> None:
    told.failed(design("a"), log=f"{ROWS}: `out`: 3 of 512 elements are off")
    told.failed(design("b"), log=f"{COLS}: `out`: 40 of 99 elements are off")
    assert told.lessons() == ("Failed 2 times in the same way: wrong: `out`: 3 of 512 elements are off.",)


def test_a_single_failure_gives_no_lesson(told: Told) -> None:
    told.failed(design("a"), log="kernel.cu(15): error: `sum` is undefined")
    assert told.lessons() == ()


def test_replies_without_a_kernel_count_as_failures(told: Told) -> None:
    told.unread("the reply is empty")
    told.unread("the reply is empty")
    assert told.lessons() == ("Failed 2 times in the same way: no kernel in the answer: the reply is empty.",)


def test_the_most_frequent_failure_comes_first(told: Told) -> None:
    for number in range(2):
        told.failed(design(f"a{number}"), log="too much shared memory", outcome=Outcome.LAUNCH_ERROR)
    for number in range(3):
        told.failed(design(f"b{number}"), log="a barrier is missing")
    assert [sentence.split()[1] for sentence in told.lessons()] == ["3", "2"]


def test_a_design_that_never_passed_is_reported_with_its_repairs(told: Told) -> None:
    first = told.failed(design("clever"), log="it is wrong")
    second = told.failed(design("clever, again"), first, operator="repair", log="no", outcome=Outcome.CRASHED)
    told.failed(design("clever, once more"), second, operator="repair", log="never", outcome=Outcome.TIMED_OUT)
    assert told.lessons() == ('Never passed, in 3 attempts: "clever" (wrong, crashed, timed out).',)


def test_a_design_whose_repair_passed_is_not_reported(told: Told) -> None:
    first = told.failed(design("clever"), log="it is wrong")
    second = told.failed(design("clever, again"), first, operator="repair", log="no", outcome=Outcome.CRASHED)
    told.passed(design("clever at last"), second, operator="repair", rows=30.0)
    assert told.lessons() == ()


def test_a_change_that_the_compiler_undoes_is_reported(told: Told) -> None:
    parent = told.passed(design("plain"), rows=30.0)
    told.failed(design("other names"), parent, log="compiles to the code of k", outcome=Outcome.DUPLICATE)
    assert told.lessons() == ('This makes no difference to the compiled code: "other names".',)


def test_knobs_without_effect_are_not_reported(told: Told) -> None:
    parent = told.passed(design("plain"), rows=30.0)
    for n in (2, 4):
        told.failed(design("plain", N=n), parent, operator="knobs", log="code of k", outcome=Outcome.DUPLICATE)
    assert told.lessons() == ()


def full() -> Told:
    told = Told()
    parent = told.passed(design("plain"), rows=100.0, cols=50.0)
    for number in range(2, 7):
        told.passed(design(f"better {number}"), parent, rows=100.0 / number)
        told.passed(design(f"worse {number}"), parent, rows=100.0 * number)
        tuned(told)
        told.failed(design(f"wrong {number}"), log="a barrier is missing")
        told.unread("the reply is empty")
        first = told.failed(design(f"hopeless {number}"), log=f"{'never' * number}")
        told.failed(design(f"hopeless still {number}"), first, operator="repair", log=f"{'no' * number}")
        told.failed(design(f"in vain {number}"), parent, log="code of k", outcome=Outcome.DUPLICATE)
    return told


def test_at_most_ten_lessons_are_reported_most_useful_first() -> None:
    begins = ("This helped", "This helped", "This helped", "In ", "This was harmful", "This was harmful", "Failed",
              "Failed", "Never", "This makes no difference")  # fmt: skip
    said = full().lessons()
    assert len(said) == len(begins)
    assert [sentence.startswith(begin) for sentence, begin in zip(said, begins, strict=True)] == [True] * len(said)


def test_the_order_of_the_records_makes_no_difference() -> None:
    told = full()
    turned = lessons(dict(reversed(told.kernels.items())), told.proposals[::-1], dict(reversed(told.verdicts.items())))
    assert turned == told.lessons()


def test_lessons_do_not_change_when_nothing_new_was_learned() -> None:
    told = full()
    before = told.lessons()
    fast = told.kernels[design("better 6").id]
    told.passed(design("better 6", N=2), fast, operator="knobs", rows=16.6, cols=60.0)
    told.passed(design("as good"), fast, rows=16.7)
    told.failed(design("one more"), log="something that never happened before")
    assert told.lessons() == before


def test_a_note_of_several_lines_becomes_one_line(told: Told) -> None:
    parent = told.passed(design("plain"), rows=30.0)
    told.passed(design("wide\\nloads ```"), parent, rows=15.0)
    assert told.lessons() == (f"This helped: \"wide loads ''\": 2.0 times as fast as its parent at {ROWS}.",)


@pytest.mark.parametrize("seed", range(10))
def test_a_shortened_log_gives_the_same_reason(seed: int) -> None:
    rng = random.Random(seed)
    parts = (
        "kernel.cu(12): ",
        "error: ",
        "rows=8 cols=2 float32: ",
        "```",
        "   ",
        ".",
        "...",
        "expected 1.0, got 2.0; ",
        "\n",
        "x" * 70,
    )
    logs = ["".join(rng.choices(parts, k=rng.randrange(1, 30)))[:600] for _ in range(300)]
    assert [reason_in(shortened(log)) for log in logs] == [reason_in(log) for log in logs]
    assert sum(map(len, map(shortened, logs))) < 0.8 * sum(map(len, logs))

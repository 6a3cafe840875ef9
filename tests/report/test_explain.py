"""The explanation of a verdict: every step with its figures, and the reason for a failure."""

import inspect
from collections.abc import Sequence
from dataclasses import replace

import pytest
from drawn import drawn
from records import CPU, GPU, checked, confirmed, failed, kernel, passed
from rich.console import Group

from archive.records import Check, Evaluation, Outcome
from evolve.devices import state
from evolve.devices.cuda import ordering
from evolve.evaluation import buffers, timing
from evolve.report import explain, explained_steps
from evolve.report.explain import explanation
from evolve.report.explained_steps import MEANINGS, NAMES, WHEN_TIMED, EvaluationStep, stopped_at
from reference_ops.op import DISTRIBUTIONS, EXTREMES, MEETING, MIXED

W = "rows=8 cols=16 float32"
FAILURES = [outcome for outcome in Outcome if outcome is not Outcome.PASSED]


def lines(*verdicts: Evaluation, width: int = 80) -> list[str]:
    return drawn(Group(*explanation(kernel(), verdicts, width)), width, 500)


def text(*verdicts: Evaluation) -> str:
    """Return the explanation without line breaks, so that whole sentences can be found in it."""
    return " ".join(word for line in lines(*verdicts) for word in line.split())


def states(printed: Sequence[str]) -> list[str]:
    return [
        line.partition(": ")[2]
        for step in EvaluationStep
        for line in printed
        if line.startswith(f"{step}  {NAMES[step]}: ")
    ]


def row_of_out(verdict: Evaluation) -> list[str]:
    return next(line.split() for line in lines(verdict) if line.split()[:1] == ["out"])


def test_a_confirmed_kernel_passed_every_step() -> None:
    assert states(lines(checked(confirmed("k", GPU, **{W: 50.0})))) == ["passed"] * 6


def test_the_explanation_of_an_unconfirmed_kernel_names_the_command_that_confirms() -> None:
    verdict = checked(passed("k", GPU, **{W: 50.0}))
    assert states(lines(verdict)) == [*["passed"] * 5, "not yet"]
    assert "evolve confirm softmax" in text(verdict)


@pytest.mark.parametrize("outcome", FAILURES)
def test_a_failure_is_explained_with_its_step_its_meaning_and_advice(outcome: Outcome) -> None:
    verdict = failed("k", outcome)
    step, printed = MEANINGS[outcome].step, text(verdict)
    assert states(lines(verdict)) == [*["passed"] * (step - 1), "stopped here", *["not reached"] * (6 - step)]
    assert " ".join(MEANINGS[outcome].explanation.split()) in printed
    assert f"What to do: {MEANINGS[outcome].advice}" in printed
    assert "it is wrong" in printed  # the log of the failure


def test_every_figure_of_a_confirmed_kernel_is_printed() -> None:
    printed = text(checked(confirmed("k", GPU, **{W: 50.0})))
    for expected in (
        "f: 40 registers, 2048 B of static shared memory, no spills",
        "3 outputs judged against PyTorch in float64, on 2 shapes, 1 of them not timed",
        "out normal 2 1.00x 40% rows=8 cols=16 float32",
        "out large 1 1.50x 60% rows=8 cols=16 float32",
        "deterministic",
        "50.0 45.0–55.0 100 80.0 1.50x 20%",
        "Timed calls: 9 at each workload",
        "4000 GB/s",
        "1980 MHz, memory 3201 MHz, 41 °C, 512 W, not throttled",
        "compile 2.00x 1.96–2.04 1.0% won",
        "rows=7 cols=1023 float32",
        "memcheck, racecheck, initcheck and synccheck found nothing",
    ):
        assert expected in printed


def test_the_wrong_shape_is_marked_even_if_its_recorded_error_is_zero() -> None:
    infinite = Check("rows=3 cols=9 float16", "large", "out", 0.0, 0.0, 0.0)
    verdict = replace(failed("k"), checks=(Check(W, "large", "out", 1e-3, 1e-3, 0.4), infinite))
    assert row_of_out(verdict) == ["out", "large", "2", "1.00x", "wrong", "rows=3", "cols=9", "float16"]


def test_exact_outputs_have_no_error() -> None:
    verdict = replace(passed("k", GPU, **{W: 50.0}), checks=(Check(W, "integers", "out", 0.0, 0.0, 0.0),))
    assert row_of_out(verdict) == ["out", "integers", "1", "exact", "-"]


def test_a_failed_confirmation_mentions_the_earlier_pass() -> None:
    before, after = passed("k", GPU, 86400.0, **{W: 50.0}), failed("k", Outcome.UNSAFE, created=2e5)
    assert "FAILED at step 6: unsafe. It had passed on 1970" in text(before, after)
    assert "It had passed" not in text(failed("k"), after)


@pytest.mark.parametrize(
    ("outcome", "log", "step"),
    [
        (Outcome.TIMED_OUT, "compile took more than 20 s: an endless loop, or a deadlock", EvaluationStep.COMPILING),
        (Outcome.TIMED_OUT, "run took more than 5 s: an endless loop, or a deadlock", EvaluationStep.MEMORY),
        (Outcome.CRASHED, "the worker was ended by SIGSEGV in time\nsome words", EvaluationStep.TIME),
        (Outcome.CRASHED, "the worker was ended by SIGSEGV in check", EvaluationStep.MEMORY),
        (Outcome.WRONG, "n=8 float32: `out`: differs (right when checked, wrong when timed)", EvaluationStep.TIME),
        (Outcome.WRONG, "n=8 float32: `out`: differs", EvaluationStep.NUMBERS),
        (Outcome.KEEPS_STATE, "`calls` keeps its value from one call to the next", EvaluationStep.COMPILING),
        (Outcome.KEEPS_STATE, state.changed(["calls"]).log, EvaluationStep.MEMORY),
        (Outcome.UNSAFE, "racecheck: a race in shared memory", EvaluationStep.CONFIRMATION),
        (Outcome.UNSAFE, f"nothing orders the write{ordering.FOUND}", EvaluationStep.COMPILING),
    ],
)
def test_the_log_decides_which_of_two_steps_an_outcome_belongs_to(
    outcome: Outcome, log: str, step: EvaluationStep
) -> None:
    assert stopped_at(replace(failed("k", outcome), log=log)) == step


def test_figures_that_an_older_version_did_not_record_are_not_printed() -> None:
    printed = text(passed("k", GPU, **{W: 50.0}))
    assert "No figures are recorded" in printed
    assert "0xFF" not in printed


def test_emulated_times_are_marked_as_no_evidence_about_a_gpu() -> None:
    printed = text(checked(passed("k", CPU, **{W: 50.0})))
    assert "speed can be measured only on a GPU" in printed
    assert "GB/s" not in printed


def test_a_speedup_above_ten_times_is_marked_for_audit() -> None:
    assert "AUDIT" in text(checked(confirmed("k", GPU, **{W: 5.0})))


@pytest.mark.parametrize("width", [40, 80, 140])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for verdict in (checked(confirmed("k", GPU, **{W: 5.0})), failed("k")):
        assert all(len(line) <= width for line in lines(verdict, width=width))


def test_the_printed_parameters_are_those_of_the_evaluator() -> None:
    assert explain.POISONS == buffers.POISONS
    assert explain.GAP_BYTES == buffers.GAP_BYTES
    assert explain.ALIGNMENTS == (buffers.LEAST_ALIGNMENT, buffers.USUAL_ALIGNMENT)
    assert explain.PHYSICAL_SHARE == timing.PHYSICAL_MARGIN


def test_the_log_of_a_wrong_timed_output_contains_the_words_that_identify_it() -> None:
    assert WHEN_TIMED in inspect.getsource(timing)


def test_every_distribution_of_values_is_described() -> None:
    assert explained_steps.VALUES.keys() == {*DISTRIBUTIONS, *EXTREMES, *MEETING, MIXED}


def test_every_outcome_has_a_meaning() -> None:
    assert MEANINGS.keys() == set(Outcome)


def test_the_confirmation_without_gpu_times_counts_no_duels() -> None:
    printed = text(checked(confirmed("k", CPU, **{W: 50.0})))
    assert "from a fresh process with new seeds" in printed
    assert "Won:" not in printed


@pytest.mark.parametrize("width", [50, 60, 80])
def test_the_kinds_of_values_are_whole_at_any_width(width: int) -> None:
    check = Check(W, "minus_inf_rows", "out", 1e-3, 1e-3, 0.5)
    verdict = replace(checked(passed("k", GPU, **{W: 50.0})), checks=(check,))
    printed = lines(verdict, width=width)
    assert any("minus inf rows" in line for line in printed)
    assert all(len(line) <= width for line in printed)

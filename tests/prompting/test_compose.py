"""What a model is told.

Rewrite the golden files with `EVOLVE_UPDATE_GOLDEN=1 pytest tests/prompting`, then read the diff.
"""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from prompted import DONOR_TEXT, EMULATOR, GPU, LESSONS, REFERENCE, SLOW, alive, situation
from small_op import BROKEN_TEXT, COMPILE_ERROR, KERNEL, OP, failed

from archive.kernel import parse
from archive.records import DeviceInfo, Outcome
from evolve.prompting.compose import ask_again, compose
from evolve.prompting.operators import (
    ANSWERS,
    CROSSOVER,
    DRAFT,
    EDITED,
    EDITS,
    EXPLORE,
    FENCED,
    FORMS,
    IMPROVE,
    OPERATORS,
    PARENTS,
    PORT,
    REPAIR,
    SPECIALISE,
    WHOLE,
)
from evolve.request import Candidate

GOLDEN = Path(__file__).parent / "golden"
DEVICES = {"cuda": GPU, "emulated": EMULATOR}
CASES = [
    *itertools.product(OPERATORS, DEVICES, [FENCED]),
    *itertools.product(EDITED, ["cuda"], [EDITS]),
    (DRAFT, "cuda", WHOLE),
]


def prompt(operator: str, device: DeviceInfo = GPU, form: str = FENCED) -> str:
    """What the user's message says; the system's is the same for all."""
    request, parents = situation(operator, device)
    return compose(request, operator, parents, REFERENCE, form)[1].content


def common(first: str, second: str) -> str:
    """How both begin."""
    return first[: next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))]


def matches_golden(name: str, text: str) -> bool:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("EVOLVE_UPDATE_GOLDEN") == "1":
        path.write_text(f"{text}\n")
    return path.read_text() == f"{text}\n"


@pytest.mark.parametrize(("operator", "device", "form"), CASES, ids="-".join)
def test_the_prompt_is_the_golden_one(operator: str, device: str, form: str) -> None:
    assert matches_golden(f"{operator}-{device}-{form}", prompt(operator, DEVICES[device], form))


def test_the_rules_are_the_golden_ones() -> None:
    request, parents = situation(DRAFT)
    assert matches_golden("rules", compose(request, DRAFT, parents, REFERENCE)[0].content)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_forms_differ_only_in_how_the_answer_is_to_come(operator: str, device: str) -> None:
    untold = set()
    for form in FORMS:
        told = prompt(operator, DEVICES[device], form)
        answer = next(text for text in ANSWERS.values() if told.endswith(text))
        untold.add(told.removesuffix(answer))
    assert len(untold) == 1


@pytest.mark.parametrize("operator", OPERATORS)
def test_edits_are_asked_for_only_where_one_parent_is_to_be_edited(operator: str) -> None:
    wanted = ANSWERS[EDITS if operator in (IMPROVE, REPAIR, SPECIALISE) else FENCED]
    assert prompt(operator, form=EDITS).endswith(wanted)


def test_every_operator_has_a_task_of_its_own() -> None:
    tasks = {prompt(operator).partition("# Your task\n")[2] for operator in OPERATORS}
    assert len(tasks) == len(OPERATORS)


def test_all_prompts_have_the_same_system_message() -> None:
    systems = {
        compose(request, operator, parents, REFERENCE)[0]
        for operator in OPERATORS
        for device in DEVICES.values()
        for request, parents in [situation(operator, device)]
    }
    assert len(systems) == 1


@pytest.mark.parametrize("operator", [operator for operator in OPERATORS if operator != REPAIR])
def test_questions_of_one_step_share_everything_up_to_the_kernel_at_hand(operator: str) -> None:
    shared, _, _ = prompt(IMPROVE).partition("# The parent")
    assert prompt(operator).startswith(shared)


def test_a_repair_shares_everything_up_to_the_failures() -> None:
    assert "# The kernels that are alive" in common(prompt(REPAIR), prompt(IMPROVE))


def test_a_new_kernel_leaves_the_beginning_of_a_prompt_as_it_was() -> None:
    request, parents = situation(IMPROVE)
    newer = replace(request, population=(alive(SLOW, GPU, 12.0, 15.0), *request.population))
    before, after = (compose(r, IMPROVE, parents, REFERENCE)[1].content for r in (request, newer))
    assert LESSONS[-1] in common(before, after)


def test_a_new_lesson_leaves_op_and_device_as_they_were() -> None:
    request, parents = situation(IMPROVE)
    newer = replace(request, lessons=("Something else.",))
    before, after = (compose(r, IMPROVE, parents, REFERENCE)[1].content for r in (request, newer))
    assert "# The device" in common(before, after)


def test_the_parent_stands_in_the_prompt_whole() -> None:
    assert KERNEL.text in prompt(IMPROVE)


def test_both_parents_of_a_crossover_stand_in_the_prompt_whole() -> None:
    assert KERNEL.text in prompt(CROSSOVER)
    assert SLOW.text in prompt(CROSSOVER)


def test_a_crossover_is_told_which_parent_is_better_where() -> None:
    told = prompt(CROSSOVER).partition("# Which parent is better where\n")[2]
    first, second = told.splitlines()[:2]
    assert first.endswith("parent 1 is 1.58 times as fast")
    assert second.endswith("only parent 2 runs it")


@pytest.mark.parametrize("better", [1, 2])
def test_a_crossover_with_a_parent_that_is_nowhere_better_asks_only_what_it_can_give(better: int) -> None:
    parents = (alive(KERNEL, GPU, 30.0, 80.0), alive(SLOW, GPU, 34.0))[:: 3 - 2 * better]
    told = compose(situation(CROSSOVER)[0], CROSSOVER, parents, REFERENCE)[1].content.partition("# Your task\n")[2]
    assert told.startswith(f"Parent {better} is the faster one wherever parent {3 - better} runs. ")


def test_a_crossover_of_parents_that_each_run_something_of_their_own_unites_them() -> None:
    assert "# Your task\nWrite one kernel that unites what each parent does better." in prompt(CROSSOVER)


def test_an_exploration_is_shown_what_each_kernel_is_after_compilation() -> None:
    told = prompt(EXPLORE)
    assert "one thread per row: 0.73x the best of PyTorch" in told
    assert "4-byte loads, one launch, no shared memory, 40 registers a thread" in told


def test_an_improvement_is_told_where_most_is_to_be_gained() -> None:
    assert "Most is to be gained at rows=8192 cols=1024 shift=0.5 float32." in prompt(IMPROVE)


def test_a_specialisation_is_for_the_workload_where_the_population_is_weakest() -> None:
    task = prompt(SPECIALISE).partition("# Your task\n")[2]
    assert "weakest: rows=8192 cols=1024 shift=0.5 bfloat16 (the best of them takes 90 us, 0.45x the best of" in task


def test_a_workload_that_no_kernel_runs_is_the_weakest() -> None:
    request, parents = situation(SPECIALISE)
    told = compose(replace(request, population=request.population[:1]), SPECIALISE, parents, REFERENCE)[1].content
    assert "bfloat16 (none of them runs it)" in told


def test_a_port_names_the_op_that_the_idea_comes_from() -> None:
    assert "The donor above computes another op, `row_sum`" in prompt(PORT)


def test_a_port_within_an_op_asks_for_the_other_dtypes() -> None:
    request, _ = situation(PORT)
    sibling = alive(parse(DONOR_TEXT.replace("row_sum", OP.name)), GPU, 20.0)
    told = compose(request, PORT, (sibling,), REFERENCE)[1].content
    assert "The donor above does well at the workloads it runs (float32)." in told


def test_the_compile_error_stands_in_the_prompt_for_a_repair() -> None:
    assert COMPILE_ERROR in prompt(REPAIR)


def test_a_repair_quotes_the_line_that_the_compiler_complained_about() -> None:
    assert "\nline 15: for (int i = 0; i < cols; ++i) sum += float(x[row * cols + i]);" in prompt(REPAIR)


def test_a_repair_is_not_listed_among_its_siblings() -> None:
    assert "one thread per row, hastily: compile error" not in prompt(REPAIR)


def test_lessons_stand_in_the_prompt() -> None:
    assert all(f"\n- {lesson}\n" in prompt(DRAFT) for lesson in LESSONS)


def test_the_figures_of_a_parent_are_told_against_eager_torch_compile_and_the_speed_of_light() -> None:
    assert "21.5 us (95 %: 21.07 to 21.93); 2.98x eager (64 us), 1.87x torch.compile (40.25 us); 73% of" in prompt(
        IMPROVE
    )


def test_a_workload_is_told_with_its_floor_and_its_side_of_the_roofline() -> None:
    told = "15.72 us for the bytes, 0.5033 us for the arithmetic in float32: bound by memory"
    assert told in prompt(DRAFT)


def test_what_the_profiler_saw_ends_in_one_bottleneck() -> None:
    assert prompt(IMPROVE).count("The bottleneck: ") == 1


def test_on_the_emulator_times_are_said_to_be_cpu_times() -> None:
    assert "CPU time of the emulator" in prompt(IMPROVE, EMULATOR)


def test_on_the_emulator_the_goal_is_still_a_gpu() -> None:
    assert "sm_90a" in prompt(DRAFT, EMULATOR)


def test_on_the_emulator_no_bottleneck_is_to_be_read_from_its_times() -> None:
    assert "the one main bottleneck that it would have on a GPU" in prompt(IMPROVE, EMULATOR)
    assert "by the figures above" in prompt(IMPROVE)


def test_on_a_gpu_nothing_is_said_of_an_emulator() -> None:
    assert "emulator" not in prompt(IMPROVE)


def test_each_device_has_its_own_workloads() -> None:
    assert "rows=4 cols=64" in prompt(DRAFT, EMULATOR)


def test_a_prompt_without_reference_source_says_nothing_of_one() -> None:
    request, _ = situation(DRAFT)
    assert "reference:" not in compose(request, DRAFT, (), "")[1].content


def test_a_failed_parent_is_shown_with_its_outcome() -> None:
    fault = failed(parse(BROKEN_TEXT))
    wrong = replace(fault, evaluation=replace(fault.evaluation, outcome=Outcome.WRONG, log="off by 3"))
    told = compose(situation(REPAIR)[0], REPAIR, (wrong,), REFERENCE)[1].content
    assert "It failed: wrong. " in told
    assert "```text\noff by 3\n```" in told


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_an_operator_takes_its_own_number_of_kernels(operator: str, number: int) -> None:
    request, _ = situation(IMPROVE)
    kernels: tuple[Candidate, ...] = (alive(SLOW, GPU, 34.0),) * number
    if number == PARENTS[operator]:
        assert compose(request, operator, kernels, REFERENCE)
    else:
        with pytest.raises(ValueError, match="cannot be applied"):
            compose(request, operator, kernels, REFERENCE)


def test_an_operator_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be applied"):
        compose(situation(DRAFT)[0], "merge", (), REFERENCE)


def test_a_form_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="in the form poem"):
        compose(situation(DRAFT)[0], DRAFT, (), REFERENCE, "poem")


def test_asking_again_gives_the_reason() -> None:
    assert "line 3: unknown key" in ask_again("half a kernel", "line 3: unknown key")[1].content


def test_asking_again_never_sends_an_empty_message() -> None:
    assert all(message.content for message in ask_again("", "the reply is empty"))


def test_asking_again_keeps_the_form() -> None:
    assert ask_again("half an edit", "nothing matches", EDITS)[1].content.endswith(ANSWERS[EDITS])

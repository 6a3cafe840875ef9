"""Composed prompts, compared with golden files and section by section.

Rewrite the golden files with `EVOLVE_UPDATE_GOLDEN=1 pytest tests/prompting`, then read the diff.
"""

import itertools
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from each import each
from prompted import DONOR_TEXT, EMULATOR, GPU, LESSONS, REFERENCE, SLOW, alive, situation
from small_op import BROKEN_TEXT, COMPILE_ERROR, KERNEL, OP, failed

from archive.kernel import parse
from archive.records import Check, DeviceInfo, Outcome
from evolve.devices import counters as c
from evolve.prompting.compose import ask_again, compose, compose_designs, draft_design
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
    """Return the user message; the system message is the same in all prompts."""
    request, parents = situation(operator, device)
    return compose(request, operator, parents, REFERENCE, form)[1].content


def common(first: str, second: str) -> str:
    """Return the common prefix of both texts."""
    return first[: next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))]


def matches_golden(name: str, text: str) -> bool:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("EVOLVE_UPDATE_GOLDEN") == "1":
        path.write_text(f"{text}\n")
    return path.read_text() == f"{text}\n"


@each({"-".join(case): case for case in CASES})
def test_the_prompt_matches_its_golden_file(operator: str, device: str, form: str) -> None:
    assert matches_golden(f"{operator}-{device}-{form}", prompt(operator, DEVICES[device], form))


def test_the_rules_match_their_golden_file() -> None:
    request, parents = situation(DRAFT)
    assert matches_golden("rules", compose(request, DRAFT, parents, REFERENCE)[0].content)


def test_the_question_about_designs_and_the_one_that_follows_match_their_golden_file() -> None:
    request, _ = situation(DRAFT)
    asked = compose_designs(replace(request, population=(), failures=(), lessons=()), 2, REFERENCE)
    drafted = draft_design(asked, ["one warp per row", "one block per row"], 2)
    assert matches_golden("designs", "\n\n".join(f"[{said.role}]\n{said.content}" for said in drafted[1:]))
    assert drafted[0] == compose(request, DRAFT, (), REFERENCE)[0]


@each({f"{operator} {device}": (operator, device) for operator in OPERATORS for device in DEVICES})
def test_prompts_of_all_forms_differ_only_in_the_form_of_the_answer(operator: str, device: str) -> None:
    without_answer = set()
    for form in FORMS:
        told = prompt(operator, DEVICES[device], form)
        answer = next(text for text in ANSWERS.values() if told.endswith(text))
        without_answer.add(told.removesuffix(answer))
    assert len(without_answer) == 1


@each({operator: operator for operator in OPERATORS})
def test_edits_are_requested_only_by_operators_that_edit_a_parent(operator: str) -> None:
    wanted = ANSWERS[EDITS if operator in (IMPROVE, REPAIR, SPECIALISE) else FENCED]
    assert prompt(operator, form=EDITS).endswith(wanted)


def test_every_operator_has_its_own_task() -> None:
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


@each({operator: operator for operator in OPERATORS if operator != REPAIR})
def test_prompts_of_one_round_share_everything_before_the_parent(operator: str) -> None:
    shared, _, _ = prompt(IMPROVE).partition("# The parent")
    assert prompt(operator).startswith(shared)


def test_a_repair_shares_everything_up_to_the_failures() -> None:
    assert "# The kernels that are alive" in common(prompt(REPAIR), prompt(IMPROVE))


def test_a_new_kernel_does_not_change_the_beginning_of_a_prompt() -> None:
    request, parents = situation(IMPROVE)
    newer = replace(request, population=(alive(SLOW, GPU, 12.0, 15.0), *request.population))
    before, after = (compose(r, IMPROVE, parents, REFERENCE)[1].content for r in (request, newer))
    assert LESSONS[-1] in common(before, after)


def test_a_new_lesson_does_not_change_the_sections_of_op_and_device() -> None:
    request, parents = situation(IMPROVE)
    newer = replace(request, lessons=("Something else.",))
    before, after = (compose(r, IMPROVE, parents, REFERENCE)[1].content for r in (request, newer))
    assert "# The device" in common(before, after)


def test_the_prompt_contains_the_whole_parent() -> None:
    assert KERNEL.text in prompt(IMPROVE)


def test_the_prompt_for_a_crossover_holds_both_parents() -> None:
    assert KERNEL.text in prompt(CROSSOVER)
    assert SLOW.text in prompt(CROSSOVER)


def test_the_prompt_for_a_crossover_compares_the_parents_by_workload() -> None:
    told = prompt(CROSSOVER).partition("# Which parent is better where\n")[2]
    first, second = told.splitlines()[:2]
    assert first.endswith("parent 1 is 1.58 times as fast")
    assert second.endswith("only parent 2 runs it")


@each({str(better): better for better in [1, 2]})
def test_a_crossover_with_a_parent_that_is_nowhere_faster_takes_an_idea_from_it(better: int) -> None:
    parents = (alive(KERNEL, GPU, 30.0, 80.0), alive(SLOW, GPU, 34.0))[:: 3 - 2 * better]
    told = compose(situation(CROSSOVER)[0], CROSSOVER, parents, REFERENCE)[1].content.partition("# Your task\n")[2]
    assert told.startswith(f"Parent {better} is faster at every workload that parent {3 - better} runs. ")


def test_a_crossover_of_parents_that_each_win_some_workloads_combines_both() -> None:
    assert "# Your task\nWrite one kernel that combines the strengths of both parents." in prompt(CROSSOVER)


def test_the_prompt_for_an_exploration_describes_the_compiled_kernels() -> None:
    told = prompt(EXPLORE)
    assert "one thread per row: 0.73x the best of PyTorch" in told
    assert "4-byte loads, one launch, no shared memory, 40 registers per thread" in told


def test_the_prompt_for_an_improvement_names_the_weakest_workload() -> None:
    assert "The largest gain is possible at rows=8192 cols=1024 shift=0.5 float32." in prompt(IMPROVE)


def test_a_specialisation_is_for_the_workload_where_the_population_is_weakest() -> None:
    task = prompt(SPECIALISE).partition("# Your task\n")[2]
    assert "weakest: rows=8192 cols=1024 shift=0.5 bfloat16 (the best of them takes 90 us, 0.45x the best of" in task


def test_a_workload_that_no_kernel_runs_is_the_weakest() -> None:
    request, parents = situation(SPECIALISE)
    told = compose(replace(request, population=request.population[:1]), SPECIALISE, parents, REFERENCE)[1].content
    assert "bfloat16 (none of them runs it)" in told


def test_the_prompt_for_a_port_names_the_op_of_the_donor() -> None:
    assert "The donor above computes another op, `row_sum`" in prompt(PORT)


def test_a_port_within_an_op_requests_the_other_dtypes() -> None:
    request, _ = situation(PORT)
    sibling = alive(parse(DONOR_TEXT.replace("row_sum", OP.name)), GPU, 20.0)
    told = compose(request, PORT, (sibling,), REFERENCE)[1].content
    assert "The donor above is fast at the workloads that it runs (float32)." in told


def test_the_prompt_for_a_repair_holds_the_compile_error() -> None:
    assert COMPILE_ERROR in prompt(REPAIR)


def test_the_prompt_for_a_repair_quotes_the_line_of_the_error() -> None:
    assert "\nline 15: for (int i = 0; i < cols; ++i) sum += float(x[row * cols + i]);" in prompt(REPAIR)


def test_the_kernel_to_repair_is_not_listed_among_the_other_failures() -> None:
    assert "one thread per row, hastily: compile error" not in prompt(REPAIR)


def test_the_prompt_holds_the_lessons() -> None:
    assert all(f"\n- {lesson}\n" in prompt(DRAFT) for lesson in LESSONS)


def test_the_times_of_a_parent_are_compared_with_eager_torch_compile_and_the_speed_of_light() -> None:
    assert "21.5 us (95 %: 21.07 to 21.93); 2.98x eager (64 us), 1.87x torch.compile (40.25 us); 73% of" in prompt(
        IMPROVE
    )


def test_a_workload_is_shown_with_its_minimum_times_and_its_side_of_the_roofline() -> None:
    told = "15.72 us for the bytes, 0.5033 us for the arithmetic in float32: bound by memory"
    assert told in prompt(DRAFT)


def test_a_profile_names_one_bottleneck() -> None:
    assert prompt(IMPROVE).count("The bottleneck: ") == 1


@each({operator: operator for operator in OPERATORS})
def test_prompts_on_the_emulator_show_no_times_and_no_speedups(operator: str) -> None:
    told = prompt(operator, EMULATOR).partition("# The device")[2]
    told = told.replace("".join(LESSONS), "").replace(LESSONS[0], "")
    assert not re.search(r"\d us\b|\d\.\d+x|times as fast|The largest gain is possible", told)
    assert "no times are shown" in told


def test_a_prompt_gives_the_times_to_beat_and_how_exact_pytorch_is() -> None:
    request, _ = situation(DRAFT)
    assert "# PyTorch here" not in prompt(DRAFT)
    keys = [workload.key for workload in OP.gpu]
    checks = tuple(Check(key, "normal", "out", 1e-7, error, 0.5) for key, error in zip(keys, (6e-8, 2e-3), strict=True))
    first, *others = request.population
    seen = replace(first, evaluation=replace(first.evaluation, checks=checks))
    informed = replace(request, pytorch_us=((keys[0], 40.25), (keys[1], 21.5)), population=(seen, *others))
    told = compose(informed, DRAFT, (), REFERENCE)[1].content
    assert f"\n- {keys[0]}: 40.25 us\n- {keys[1]}: 21.5 us\n" in told
    assert "- `out`: float32 6e-08, bfloat16 0.002" in told


def test_a_parent_is_shown_with_its_setting_and_the_bytes_in_flight() -> None:
    told = prompt(IMPROVE)
    assert "- with the first value of each knob: WARPS=4" in told
    assert "occupancy 75%: one load of each thread means 6 KiB in flight per multiprocessor" in told


def test_a_crossover_may_add_a_new_idea() -> None:
    request, (fast, slow) = situation(CROSSOVER)
    beaten = replace(slow, evaluation=replace(slow.evaluation, measurements=slow.evaluation.measurements[:1]))
    told = compose(request, CROSSOVER, (fast, beaten), REFERENCE)[1].content
    assert "You may add an idea that neither has" in prompt(CROSSOVER)
    assert "add an idea of your own that neither has" in told


def test_each_launch_of_a_profiled_parent_has_its_time_bytes_and_first_reason_to_wait() -> None:
    request, (parent,) = situation(IMPROVE)
    (profile,) = parent.profiles
    own = (
        (c.DURATION, 12_400.0),
        (c.DRAM_READ, 2.0**25),
        (c.L2_BYTES, 2.0**26),
        (c.BARRIER, 0.5),
        (c.LONG_SCOREBOARD, 4.0),
    )
    each_launch = tuple((c.of_launch(counter.name, number), value) for number in (1, 2) for counter, value in own)
    seen = replace(parent, profiles=(replace(profile, counters=(*profile.counters, *each_launch)),))
    told = compose(request, IMPROVE, (seen,), REFERENCE)[1].content
    words = "12.4 us, 32 MiB of DRAM, 64 MiB through L2, mostly warps waiting for global or local memory"
    assert f"\n- launch 1: {words}\n- launch 2: {words}\n" in told
    assert "- launch 1" not in prompt(IMPROVE)


def test_on_the_emulator_the_goal_is_still_a_gpu() -> None:
    assert "sm_90a" in prompt(DRAFT, EMULATOR)


def test_on_the_emulator_the_bottleneck_is_that_of_a_gpu() -> None:
    assert "the main bottleneck that it would have on a GPU" in prompt(IMPROVE, EMULATOR)
    assert "according to the figures above" in prompt(IMPROVE)


def test_on_a_gpu_the_prompt_does_not_mention_an_emulator() -> None:
    assert "emulator" not in prompt(IMPROVE)


def test_each_device_has_its_own_workloads() -> None:
    assert "rows=4 cols=64" in prompt(DRAFT, EMULATOR)


def test_without_reference_source_the_prompt_has_no_section_for_it() -> None:
    request, _ = situation(DRAFT)
    assert "reference:" not in compose(request, DRAFT, (), "")[1].content


def test_the_kernel_to_repair_is_shown_with_its_outcome() -> None:
    fault = failed(parse(BROKEN_TEXT))
    wrong = replace(fault, evaluation=replace(fault.evaluation, outcome=Outcome.WRONG, log="off by 3"))
    told = compose(situation(REPAIR)[0], REPAIR, (wrong,), REFERENCE)[1].content
    assert "It failed: wrong. " in told
    assert "```text\noff by 3\n```" in told


@each({f"{operator} {number}": (operator, number) for operator in OPERATORS for number in range(4)})
def test_an_operator_accepts_only_its_own_number_of_kernels(operator: str, number: int) -> None:
    request, _ = situation(IMPROVE)
    kernels: tuple[Candidate, ...] = (alive(SLOW, GPU, 34.0),) * number
    if number == PARENTS[operator]:
        assert compose(request, operator, kernels, REFERENCE)
    else:
        with pytest.raises(ValueError, match="cannot be applied"):
            compose(request, operator, kernels, REFERENCE)


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be applied"):
        compose(situation(DRAFT)[0], "merge", (), REFERENCE)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="in the form poem"):
        compose(situation(DRAFT)[0], DRAFT, (), REFERENCE, "poem")


def test_a_second_prompt_gives_the_reason() -> None:
    assert "line 3: unknown key" in ask_again("half a kernel", "line 3: unknown key")[1].content


def test_a_second_prompt_has_no_empty_message() -> None:
    assert all(message.content for message in ask_again("", "the reply is empty"))


def test_a_second_prompt_keeps_the_form() -> None:
    assert ask_again("half an edit", "nothing matches", EDITS)[1].content.endswith(ANSWERS[EDITS])


def test_the_prompt_for_an_op_bound_by_memory_has_no_rates_of_matrix_products() -> None:
    assert "TFLOP/s" not in prompt(DRAFT)
    request, _ = situation(DRAFT)
    heavy = replace(request, op=replace(OP, flops=lambda dims: 10**6 * dims["rows"] * dims["cols"]))
    assert "float32 matrix products 50 TFLOP/s" in compose(heavy, DRAFT, (), REFERENCE)[1].content


def test_the_prompt_holds_the_measured_costs_of_the_device() -> None:
    request, _ = situation(DRAFT)
    measured = replace(request.device, l2_gb_s=5512.3, launch_us=1.94, grid_barrier_us=1.25)
    text = compose(replace(request, device=measured), DRAFT, (), REFERENCE)[1].content
    assert (
        "reads from the L2 5512 GB/s, 1.9 us for one more launch, 1.2 us for one barrier of a cooperative grid." in text
    )
    assert "one more launch" not in prompt(DRAFT)


def test_prompts_on_the_emulator_omit_instructions_that_it_lacks() -> None:
    assert "# Instructions of sm_90a" in prompt(DRAFT)
    assert "# Instructions" not in prompt(DRAFT, EMULATOR)

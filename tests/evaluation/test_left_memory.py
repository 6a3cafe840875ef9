"""Memory left by earlier calls, which a kernel could misuse: results, a mark, or recorded inputs."""

import random
from collections.abc import Mapping
from dataclasses import replace

import bad_kernels
import pytest
import torch
from each import each
from scripted_device import INFO, OP, ScriptedDevice, ScriptedProgram, Work, program, twice

from archive.binding import bind
from archive.kernel import parse
from evolve.devices.device import Program, RejectedError
from evolve.evaluation.buffers import Arena
from evolve.evaluation.check import Inspector
from evolve.op_on_device import point
from reference_ops.op import Op, Workload

SMALL = Workload("float32", (("n", 512),))
TIMED_HERE = replace(OP, gpu=(SMALL,))
SEEDS = range(30)
Tensors = Mapping[str, torch.Tensor]


def left_for_last_runs(op: Op, seed: int, count: int) -> list[str]:
    """Return the initial output of the last run of each of `count` successive checks."""
    kinds: list[str] = []
    inspector = Inspector(ScriptedDevice(), Arena("cpu"), random.Random(seed), [], lambda _phase: None)

    def work(tensors: Tensors) -> None:
        found.append(tensors["out"].clone())
        given.append(tensors["x"].clone())
        twice(tensors)

    for _ in range(count):
        found: list[torch.Tensor] = []
        given: list[torch.Tensor] = []
        inspector.check(program(work), op, SMALL)
        left = torch.equal(found[-1], 2 * given[-2])
        kinds.append("left" if left else "zeros" if not found[-1].any() else "anything")
    return kinds


@each({f"seed {seed}": seed for seed in SEEDS})
def test_the_last_runs_of_three_checks_find_old_results_zeros_and_random_bytes(seed: int) -> None:
    kinds = left_for_last_runs(OP, seed, 6)
    assert sorted(kinds[:3]) == sorted(kinds[3:]) == ["anything", "left", "zeros"]


def test_the_order_of_memory_states_is_random() -> None:
    assert len({tuple(left_for_last_runs(OP, seed, 3)) for seed in SEEDS}) == 6


def test_the_last_run_on_a_timed_workload_finds_old_results() -> None:
    assert all(left_for_last_runs(TIMED_HERE, seed, 3) == ["left"] * 3 for seed in SEEDS)


WITH_NOTES = bind(
    parse(
        bad_kernels.twice_kernel().text.replace(
            "[[launch]]", '[workspace]\nnotes = { shape = [4], dtype = "float32" }\n\n[[launch]]'
        )
    ),
    point(OP, SMALL, INFO),
)


def remembering(tensors: Tensors) -> None:
    """Skip the work if the first input element equals the one recorded in the last call."""
    if tensors["notes"][0] != tensors["x"][0]:
        twice(tensors)
    tensors["notes"][0] = tensors["x"][0]


def remembering_results(tensors: Tensors) -> None:
    """Write the stored result if the first input element equals the one recorded in the last call."""
    if tensors["notes"][0] != tensors["x"][0]:
        noted[0] = 2 * tensors["x"]
    tensors["out"].copy_(noted[0])
    tensors["notes"][0] = tensors["x"][0]


noted = [torch.empty(0)]


def trying_one(tensors: Tensors) -> None:
    """Skip the work if the first result is already there."""
    if tensors["out"][0] != 2 * tensors["x"][0]:
        twice(tensors)


def passes_at_three(kernel: Program, seed: int, *, closely: bool = False) -> bool:
    """Return whether the kernel passes three checks. One check in 64 redraws the element that the kernel compares."""
    inspector = Inspector(ScriptedDevice(), Arena("cpu"), random.Random(seed), [], lambda _phase: None)
    try:
        for _ in range(3):
            inspector.check(kernel, TIMED_HERE, SMALL, closely=closely)
    except RejectedError as error:
        assert "are off by more than rounding explains" in error.log  # noqa: PT017 - some kernels should pass
        return False
    return True


@pytest.mark.parametrize("work", [remembering, remembering_results])
def test_a_kernel_that_records_its_inputs_in_the_workspace_fails(work: Work) -> None:
    assert not any(passes_at_three(ScriptedProgram(WITH_NOTES, work), seed) for seed in SEEDS)


@pytest.mark.parametrize("closely", [False, True])
def test_only_a_strict_check_finds_a_kernel_that_reuses_nearly_correct_results(*, closely: bool) -> None:
    assert {passes_at_three(program(trying_one), seed, closely=closely) for seed in SEEDS} == {not closely}

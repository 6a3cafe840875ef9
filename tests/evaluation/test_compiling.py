"""Compilation for all workloads of an evaluation: the kernel's traits and its test shapes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bad_kernels import UNKNOWN_TENSOR, twice_kernel
from scripted_device import INFO, OP, ScriptedDevice, ScriptedProgram

from archive import library
from archive.kernel import Bound, Kernel, parse
from archive.records import Evaluation, Outcome, Traits
from evolve.devices.device import Program, RejectedError
from evolve.evaluation.compiling import Compilation, few_rows, precompile
from evolve.evaluation.evaluate import evaluate
from evolve.evaluation.evaluator import Evaluator
from reference_ops import catalog
from reference_ops.op import DTYPES, Op, Workload

NARROW = Traits("aa", 4, 16, 100, 32, 128, 1, tensor_cores=False, atomics=True, occupancy=1.0)
WIDE = Traits("bb", 16, 4, 50, 64, 64, 3, tensor_cores=True, atomics=False, occupancy=0.5)
KERNEL = twice_kernel()
HONEST = Path(__file__).parents[1] / "cheats" / "honest"
BLOCKS = 8192  # number of blocks on OP's GPU workloads, with 128 threads each


def judged(of: Callable[[Bound], Traits | None], kernel: Kernel = KERNEL) -> Evaluation:
    return precompile(kernel, OP, INFO, lambda bound: ScriptedProgram(bound, traits=of(bound)), 1)


def of_dtype(bound: Bound) -> Traits:
    return WIDE if dict(bound.types)["x"] == "bfloat16" else NARROW


def code(of: Callable[[Bound], Traits | None], kernel: Kernel = KERNEL) -> str:
    found = judged(of, kernel).traits
    assert found
    return found.code


def test_traits_hold_the_largest_values_and_the_lowest_occupancy_of_all_workloads() -> None:
    found = judged(of_dtype).traits
    assert found == Traits(code(of_dtype), 16, 16, 100, 64, 128, 3, tensor_cores=True, atomics=True, occupancy=0.5)


def test_awkward_shapes_affect_no_trait_except_the_code() -> None:
    def else_wide(bound: Bound) -> Traits:
        return NARROW if bound.launches[0].grid[0] == BLOCKS else WIDE

    found = judged(else_wide).traits
    assert found == replace(NARROW, code=code(else_wide))
    assert found.code != code(lambda _: NARROW)


def test_a_condition_changes_the_code_and_a_note_does_not() -> None:
    other = twice_kernel(note="in other words")
    narrower = parse(KERNEL.text.replace('note = "', 'when = "n < 9999999"\nnote = "'))
    assert code(of_dtype, other) == code(of_dtype)
    assert code(of_dtype, narrower) != code(of_dtype)


def test_a_kernel_without_machine_code_has_no_traits() -> None:
    verdict = judged(lambda _: None)
    assert verdict.passed
    assert verdict.traits is None


def test_a_kernel_that_does_not_compile_has_no_traits() -> None:
    verdict = judged(of_dtype, UNKNOWN_TENSOR)
    assert verdict.outcome is Outcome.MALFORMED
    assert verdict.traits is None


def test_a_kernel_that_compiles_and_then_fails_has_traits() -> None:
    class Device(ScriptedDevice):
        def compile(self, bound: Bound) -> Program:
            return ScriptedProgram(bound, traits=of_dtype(bound))

        def run(self, *_: object) -> None:
            raise RejectedError(Outcome.CRASHED, "an illegal access")

    known = judged(of_dtype).traits
    verdict = evaluate(KERNEL, OP, Evaluator(Device(), lambda _phase: None), shapes_seed=1, bars={}, known=known)
    assert verdict.outcome is Outcome.CRASHED
    assert verdict.traits == known


@pytest.mark.parametrize("listed", [True, False])
def test_only_a_fault_at_a_listed_shape_applies_to_kernels_with_the_same_code(listed: bool) -> None:
    sizes = {dict(workload.dims)["n"] for workload in (*OP.gpu, *OP.awkward)}

    class Device(ScriptedDevice):
        def compile(self, bound: Bound) -> Program:
            return ScriptedProgram(bound, traits=of_dtype(bound))

        def run(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
            if (tensors["x"].numel() in sizes) == listed:
                raise RejectedError(Outcome.CRASHED, "an illegal access")
            super().run(program, tensors)

    evaluator = Evaluator(Device(), lambda _phase: None)
    verdict = evaluate(KERNEL, OP, evaluator, shapes_seed=1, bars={}, known=judged(of_dtype).traits)
    assert verdict.outcome is Outcome.CRASHED
    assert bool(verdict.traits) is listed


def test_after_a_fault_at_the_smallest_shape_nothing_more_is_compiled() -> None:
    made: list[int] = []

    class Device(ScriptedDevice):
        def compile(self, bound: Bound) -> Program:
            made.append(bound.launches[0].grid[0])
            return super().compile(bound)

        def run(self, *_: object) -> None:
            raise RejectedError(Outcome.CRASHED, "an illegal access")

    verdict = evaluate(KERNEL, OP, Evaluator(Device(), lambda _phase: None), shapes_seed=1, bars={})
    assert verdict.outcome is Outcome.CRASHED
    assert len(made) == 1


def test_a_champion_is_tested_at_a_large_shape_that_is_not_listed() -> None:
    def sizes(confirm: bool) -> list[int]:
        return [
            dict(workload.dims)["n"]
            for seed in range(4)
            for workload, _ in Compilation(KERNEL, OP, INFO, ScriptedProgram).everything(seed, confirm=confirm).held_out
        ]

    listed = {dict(workload.dims)["n"] for workload in (*OP.gpu, *OP.awkward)}
    share = max(listed) // 8
    assert sum(size > share for size in sizes(confirm=True)) >= 4
    assert not listed & set(sizes(confirm=True))


@pytest.mark.parametrize(("kind", "most"), [("emulated", 2**19), ("cuda", 2**40)])
def test_an_emulated_device_gets_no_shapes_that_need_very_many_threads(kind: str, most: int) -> None:
    block_each = parse(KERNEL.text.replace('grid = ["ceil_div(n, THREADS)"]', 'grid = ["n"]'))
    met = [
        math.prod(launch.grid) * math.prod(launch.block)
        for seed in range(8)
        for _, program in Compilation(block_each, OP, replace(INFO, kind=kind), ScriptedProgram)
        .everything(seed, confirm=False)
        .held_out
        for launch in program.bound.launches
    ]
    assert 2**16 < max(met) <= most
    assert kind == "emulated" or max(met) > 2**19


@pytest.mark.parametrize("kind", ["emulated", "cuda"])
def test_an_emulated_device_gets_no_long_shapes_that_one_large_block_would_loop_over_for_seconds(kind: str) -> None:
    op, one_block = catalog.load("add_rms_norm"), parse((HONEST / "one_block_in_all.cu").read_text())
    a_block_of_32 = parse(one_block.text.replace("block = [1024]", "block = [32]"))

    def most_rows(kernel: Kernel) -> int:
        info = replace(INFO, kind=kind, sms=132)
        programs = Compilation(kernel, op, info, ScriptedProgram).everything(1, confirm=False)
        return max(dict(workload.dims)["rows"] for workload, _ in programs.stretched)

    assert most_rows(a_block_of_32) > 16_384
    assert (most_rows(one_block) <= 8192) == (kind == "emulated")


def test_a_kernel_that_launches_nothing_at_a_shape_is_compiled_for_it() -> None:
    nothing = parse(KERNEL.text.replace('grid = ["ceil_div(n, THREADS)"]', 'grid = ["n // 2147483648"]'))
    programs = Compilation(nothing, OP, replace(INFO, kind="emulated"), ScriptedProgram).everything(1, confirm=False)
    assert programs.stretched
    assert not any(program.bound.launches for _, program in programs.stretched)


def test_a_kernel_is_not_run_at_a_shape_that_the_reference_refuses() -> None:
    listed = {dict(workload.dims)["n"] for workload in (*OP.gpu, *OP.awkward)}

    def only_listed(x: torch.Tensor) -> torch.Tensor:
        assert len(x) in listed
        return 2 * x

    device, op = ScriptedDevice(), replace(OP, reference=only_listed)
    verdict = evaluate(KERNEL, op, Evaluator(device, lambda _phase: None), shapes_seed=1, bars={})
    assert verdict.passed
    assert {tensors["x"].numel() for tensors in device.runs} <= listed


TOPK = catalog.load("topk")


def few_of_topk(accepts: Callable[[Workload], bool]) -> list[tuple[int, int]]:
    return [(dict(w.dims)["rows"], dict(w.dims)["cols"]) for w in few_rows(TOPK, TOPK.gpu, accepts)]


def test_a_few_rows_of_every_declared_length_are_used_longest_first() -> None:
    assert few_of_topk(lambda _: True) == [(3, 128256), (3, 32768), (3, 1024), (3, 128)]


def test_more_rows_are_used_where_a_kernel_accepts_no_fewer() -> None:
    assert few_of_topk(lambda w: dict(w.dims)["rows"] % 64 == 0)[1:] == [(64, 32768), (64, 1024), (64, 128)]


def test_a_kernel_for_one_number_of_rows_is_not_compiled_for_few() -> None:
    assert few_of_topk(lambda w: w in TOPK.gpu) == []


def test_a_few_rows_are_compiled_only_to_confirm() -> None:
    def few(confirm: bool) -> int:
        return len(Compilation(KERNEL, OP, INFO, ScriptedProgram).everything(1, confirm=confirm).thin)

    assert few(confirm=False) == 0
    assert few(confirm=True) == 1


def edges_on_a_gpu(kernel: Kernel, op: Op, seed: int, *, confirm: bool) -> list[Workload]:
    compilation = Compilation(kernel, op, replace(INFO, kind="cuda"), ScriptedProgram)
    return [workload for workload, _ in compilation.everything(seed, confirm=confirm).edges]


def test_a_gpu_gets_every_small_shape_that_needs_no_separate_compilation() -> None:
    op, kernel = catalog.load("softmax"), library.plain("softmax")[0]
    few, every = (edges_on_a_gpu(kernel, op, 1, confirm=confirm) for confirm in (False, True))
    assert len(few) == len(every) > 3


def test_a_gpu_gets_a_few_small_shapes_that_need_a_separate_compilation_and_all_to_confirm() -> None:
    op, plain = catalog.load("softmax"), library.plain("softmax")[0]
    special = parse(plain.text.replace("\n\n[knobs]", '\nspecialize = ["rows", "cols"]\n\n[knobs]', 1))
    every = edges_on_a_gpu(special, op, 1, confirm=True)
    few = [edges_on_a_gpu(special, op, seed, confirm=False) for seed in range(12)]
    assert max(map(len, few)) <= 3 < len(every)
    assert len({workload.dims for workloads in few for workload in workloads}) > 3


def test_parameters_beyond_the_listed_values_are_always_drawn() -> None:
    op = catalog.load("conv_transpose2d")
    listed = max(dict(workload.parameters)["stride"] for workload in op.listed)
    (kernel,) = library.plain("conv_transpose2d")
    assert "stride" in kernel.plan.specialize
    for seed in range(4):
        strides = [dict(one.parameters)["stride"] for one in edges_on_a_gpu(kernel, op, seed, confirm=False)]
        assert max(strides) > listed


def test_unusual_parameters_are_met_with_elements_of_16_and_of_32_bits() -> None:
    op, (kernel,) = catalog.load("elu"), library.plain("elu")[:1]
    once = Compilation(kernel, op, INFO, ScriptedProgram).everything(1, confirm=False).once
    for alpha in (0.0, 10.0, -1.0):
        met = [workload.dtype for workload, _ in once if dict(workload.parameters)["alpha"] == alpha]
        assert {DTYPES[dtype].itemsize for dtype in met} == {2, 4}, alpha

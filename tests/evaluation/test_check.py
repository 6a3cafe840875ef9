"""The correctness check on a scripted device: the state of a kernel's memory, and the faults that are detected."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from each import each
from scripted_device import OP, ScriptedDevice, program, twice

from archive.records import Check, Outcome
from evolve.devices.device import RejectedError
from evolve.evaluation.buffers import POISONS, Arena, is_poison
from evolve.evaluation.check import Inspector
from evolve.evaluation.truth import Truth
from reference_ops.op import NORMAL, Op, Workload, tensors, workloads

SMALL = Workload("float32", (("n", 512),))
TIMED_HERE = replace(OP, gpu=(SMALL,))
SEEDS = range(30)
Tensors = Mapping[str, torch.Tensor]


def checked(work: object, checks: list[Check] | None = None, seed: int = 3, op: Op = OP) -> bool:
    device, rng = ScriptedDevice(), random.Random(seed)
    inspector = Inspector(device, Arena("cpu"), rng, [] if checks is None else checks, lambda _phase: None)
    return inspector.check(program(work), op, SMALL)  # type: ignore[arg-type]


def outcome_of(work: object) -> Outcome:
    with pytest.raises(RejectedError) as caught:
        checked(work)
    return caught.value.outcome


def test_a_correct_kernel_passes_and_every_comparison_is_recorded() -> None:
    checks: list[Check] = []
    assert checked(twice, checks)
    assert {check.output for check in checks} == {"out"}
    assert len({check.values for check in checks}) > 1
    assert all(check.worst <= 1 and check.workload == SMALL.key for check in checks)


def test_the_log_says_if_there_was_too_little_memory_to_explain_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Truth) -> None:
        raise torch.OutOfMemoryError("the GPU's memory is full")

    def nearly(tensors: Tensors) -> None:
        tensors["out"].copy_(2 * tensors["x"] * (1 + 1e-6))

    with pytest.raises(RejectedError, match=r"off by more than rounding explains; [^(]*$"):
        checked(nearly)
    monkeypatch.setattr(Truth, "_perturbed", full)
    with pytest.raises(RejectedError, match="the device has too little memory to compute"):
        checked(nearly)


def test_a_kernel_runs_twice_on_the_same_inputs_and_then_on_others() -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def work(tensors: Tensors) -> None:
        seen.append((tensors["x"].clone(), tensors["out"].clone()))
        twice(tensors)

    checked(work)
    inputs, found = zip(*seen, strict=True)
    assert int(is_poison(found[0], POISONS[0]).sum()) == 512
    assert any(int(is_poison(found[1], poison).sum()) == 512 for poison in POISONS[1:])
    assert torch.equal(inputs[0], inputs[1])
    assert not torch.equal(inputs[1], inputs[2])


def test_the_second_run_may_find_any_poison() -> None:
    seen: set[int] = set()

    def work(tensors: Tensors) -> None:
        seen.update(poison for poison in POISONS if int(is_poison(tensors["out"], poison).sum()) == 512)
        twice(tensors)

    for seed in SEEDS:
        checked(work, seed=seed)
    assert seen == set(POISONS)


@each({f"poison {poison:#x}": poison for poison in POISONS})
def test_a_timed_workload_is_checked_with_every_poison_on_the_same_inputs(poison: int) -> None:
    def work(tensors: Tensors) -> None:
        if not int(is_poison(tensors["out"], poison).sum()):
            twice(tensors)

    for seed in SEEDS:
        with pytest.raises(RejectedError, match="512 elements still hold the poison" if poison else "are off by more"):
            checked(work, seed=seed, op=TIMED_HERE)


def test_a_kernel_that_keeps_values_that_look_like_a_result_fails() -> None:
    def work(tensors: Tensors) -> None:
        if not 0 < float(tensors["out"][0].abs()) < 1e4:
            twice(tensors)

    for seed in SEEDS:
        with pytest.raises(RejectedError, match="off by more than rounding explains"):
            checked(work, seed=seed, op=TIMED_HERE)


def test_the_reference_is_not_computed_before_the_kernel_has_run_on_its_inputs() -> None:
    order: list[str] = []
    reference = OP.reference

    def spied(x: torch.Tensor) -> torch.Tensor:
        order.append("reference")
        return reference(x)  # type: ignore[return-value]

    def work(tensors: Tensors) -> None:
        order.append("kernel")
        twice(tensors)

    op = OP.__class__(**{**OP.__dict__, "reference": spied})
    device = ScriptedDevice()
    Inspector(device, Arena("cpu"), random.Random(3), [], lambda _phase: None).check(program(work), op, SMALL)
    assert order[:3] == ["kernel", "kernel", "reference"]


def half(tensors: Tensors) -> None:
    tensors["out"][:256] = 2 * tensors["x"][:256]


def then(harm: Callable[[Tensors], object]) -> Callable[[Tensors], None]:
    """Return work that gives the right result, but also commits a fault."""

    def work(tensors: Tensors) -> None:
        twice(tensors)
        harm(tensors)

    return work


def far_away(tensors: Tensors) -> None:
    """Write past all buffers, but within the memory that holds them."""
    out = tensors["out"]
    whole = out.untyped_storage().nbytes() // 4
    out.as_strided((1,), (1,), whole - 64).fill_(7)


def accumulating(tensors: Tensors) -> None:
    tensors["out"].add_(2 * tensors["x"])


@pytest.mark.parametrize(
    ("work", "outcome"),
    [
        (lambda _tensors: None, Outcome.WRONG),
        (half, Outcome.WRONG),
        (accumulating, Outcome.WRONG),
        (lambda tensors: tensors["out"].copy_(2 * tensors["x"].half().float()), Outcome.WRONG),
        (lambda tensors: tensors["out"].copy_(2 * tensors["x"].clamp(-6, 6)), Outcome.WRONG),
        (then(lambda tensors: tensors["x"][3:4].add_(1)), Outcome.CHANGED_INPUT),
        (then(lambda tensors: tensors["x"].zero_()), Outcome.CHANGED_INPUT),
        (then(lambda tensors: tensors["out"].as_strided((513,), (1,)).fill_(2)), Outcome.OUT_OF_BOUNDS),
        (then(far_away), Outcome.OUT_OF_BOUNDS),
    ],
    ids=["no-op", "half", "adds to what is there", "half precision", "clamped", "input", "all inputs", "beyond", "far"],
)
def test_each_fault_leads_to_its_outcome(work: object, outcome: Outcome) -> None:
    assert outcome_of(work) is outcome


def test_two_runs_that_differ_only_in_rounding_pass_as_not_deterministic() -> None:
    scale = iter([1.0, 1.0 + 2.0**-24, 1.0])
    assert not checked(lambda tensors: tensors["out"].copy_((2 * tensors["x"].double() * next(scale)).float()))


def test_a_kernel_that_is_wrong_only_in_its_second_run_fails() -> None:
    scale = iter([2.0, 2.1, 2.0])
    assert outcome_of(lambda tensors: tensors["out"].copy_(next(scale) * tensors["x"])) is Outcome.WRONG


def test_the_log_names_the_workload_the_output_and_the_unwritten_elements() -> None:
    with pytest.raises(RejectedError, match=r"n=512 float32: `out`: .* \(256 elements still hold the poison"):
        checked(half)


@each({f"seed {seed}": seed for seed in range(5)})
def test_every_dtype_gets_large_weights_on_timed_and_on_other_workloads(seed: int) -> None:
    timed, other = (workloads("float32 bfloat16", {"rows": rows, "cols": 64}) for rows in (16, 5))
    op = Op(
        name="scaled",
        reference=torch.mul,
        inputs=tensors(x="rows cols", weight="cols"),
        outputs=tensors(out="rows cols"),
        gpu=timed,
        emulated=timed,
        awkward=other,
        flops=lambda dims: dims["rows"] * dims["cols"],
    )
    large: list[bool] = []

    def work(tensors: Tensors) -> None:
        large.append(bool(tensors["weight"].abs().max() > 100))
        tensors["out"].copy_(tensors["x"] * tensors["weight"])

    inspector = Inspector(ScriptedDevice(), Arena("cpu"), random.Random(seed), [], lambda _phase: None)
    for workload in (*other, *timed):
        large.clear()
        inspector.check(program(work), op, workload)
        assert large == [*[False] * (len(large) - 1), True], workload.key


@each({f"seed {seed}": seed for seed in range(5)})
def test_each_distribution_is_used_on_one_workload_if_rows_depend_on_each_other(seed: int) -> None:
    values = ("uniform", "constant", "ties", "large")
    places = workloads("float32 bfloat16", *({"rows": rows, "cols": 64} for rows in (4, 7, 16)))[: 1 + len(values)]
    op = Op(
        name="twice",
        reference=lambda x: 2 * x,
        inputs=tensors(x="rows cols"),
        outputs=tensors(out="rows cols"),
        gpu=places,
        emulated=places,
        flops=lambda dims: dims["rows"] * dims["cols"],
        values=values,
        by_rows=False,
    )
    checks: list[Check] = []
    inspector = Inspector(ScriptedDevice(), Arena("cpu"), random.Random(seed), checks, lambda _phase: None)
    for workload in places:
        inspector.check(program(twice), op, workload)
    mixtures = checks[1::2]  # every other check uses normal inputs
    assert sorted(check.values for check in mixtures) == sorted((NORMAL, *values))


def rooted(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


ONE_ROW = {"rows": 1, "cols": 256}
ROOTED = Op(
    name="rooted",
    reference=rooted,
    inputs=tensors(x="rows cols"),
    outputs=tensors(out="rows cols"),
    gpu=workloads("float32", ONE_ROW, eps=1e-6),
    emulated=workloads("float32", ONE_ROW, eps=1e-6),
    flops=lambda dims: 4 * dims["rows"] * dims["cols"],
)
LISTED, UNLISTED = ROOTED.emulated[0], workloads("float32", ONE_ROW, eps=3e-7)[0]


@each({f"seed {seed}": seed for seed in range(12)})
def test_a_kernel_that_ignores_an_unlisted_parameter_value_fails_even_with_one_row(seed: int) -> None:
    def work(tensors: Tensors) -> None:
        tensors["out"].copy_(rooted(tensors["x"].double(), 1e-6))

    inspector = Inspector(ScriptedDevice(), Arena("cpu"), random.Random(seed), [], lambda _phase: None)
    inspector.check(program(work), ROOTED, LISTED)
    with pytest.raises(RejectedError, match=r"^wrong"):
        inspector.check(program(work), ROOTED, UNLISTED)


@pytest.mark.parametrize(("place", "mixtures"), [(LISTED, 1), (UNLISTED, 1 + len(ROOTED.values))])
def test_an_unlisted_parameter_value_is_checked_on_more_mixtures_than_a_listed_one(
    place: Workload, mixtures: int
) -> None:
    checks: list[Check] = []

    def work(tensors: Tensors) -> None:
        tensors["out"].copy_(rooted(tensors["x"].double(), dict(place.parameters)["eps"]))

    inspector = Inspector(ScriptedDevice(), Arena("cpu"), random.Random(1), checks, lambda _phase: None)
    inspector.check(program(work), ROOTED, place)
    assert len(checks) == 1 + mixtures

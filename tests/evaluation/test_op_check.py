"""Blind spots of ops: they are reported, and no op of the catalog has any."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from chosen_ops import THOROUGH
from each import each

from evolve.evaluation.allowed_errors import FLOAT32_UNIT, summed
from evolve.evaluation.compare import Excuses, compared
from evolve.evaluation.op_check import CORRUPTIONS, BlindSpot, blind_spots, distributions
from reference_ops import catalog
from reference_ops.inputs import RowGroup, inputs_at, row_groups
from reference_ops.op import MINUTE, MIXED, NAN, Op, Tolerance, Workload, rotated, tensors, workloads

OPS = {name: catalog.load(name) for name in catalog.names()}
SOME = [catalog.load(name) for name in THOROUGH]
SEED = 0


def rows_op(reference: Callable[..., torch.Tensor], out: str = "rows cols", **changes: Any) -> Op:
    return replace(
        Op(
            name="sample",
            reference=reference,
            inputs=tensors(x="rows cols"),
            outputs=tensors(out=out),
            gpu=workloads("float32", {"rows": 1024, "cols": 1024}),
            emulated=workloads("float32", {"rows": 16, "cols": 256}),
            flops=lambda dims: dims["rows"] * dims["cols"],
        ),
        **changes,
    )


def found(op: Op, workload: Workload | None = None) -> tuple[BlindSpot, ...]:
    return blind_spots(op, workload or op.emulated[0], SEED, "cpu")


def unnoticed(op: Op, values: str = "normal") -> set[str]:
    return {spot.corruption for spot in found(op) if spot.values == values}


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@each(OPS, quick=("gelu", "softmax"))
def test_no_workload_in_the_catalog_has_a_blind_spot(op: Op) -> None:
    """`evolve ops --check` covers every workload. This test takes one of each op, and every dtype of some ops."""
    by_dtype = {workload.dtype: workload for workload in (*op.awkward, *reversed(op.emulated))}
    looked_at = by_dtype.values() if op in SOME else op.emulated[:1]
    assert [spot for workload in looked_at for spot in found(op, workload)] == []


@pytest.mark.parametrize("name", ["mse", "huber", "kl_div"])
def test_a_loss_over_millions_of_numbers_may_not_be_off_by_a_tenth_of_its_spread(name: str) -> None:
    """The more numbers a mean covers, the less it varies. A looser limit would let a kernel skip half of them."""
    op = catalog.load(name)
    small = op.emulated[0]
    losses = torch.stack([op.call(inputs_at(op, small, seed, "cpu"), small)[0] for seed in range(64)]).double()
    mean, spread = losses.mean(), losses.std() * math.sqrt(math.prod(dict(small.dims).values()))
    for workload in op.gpu:
        off = spread / math.sqrt(math.prod(dict(workload.dims).values())) / 10
        sums = summed(op.terms(workload, op.tolerance.sums), alike=False)
        perturbed = (mean * FLOAT32_UNIT).float
        judged = compared(
            (mean + off).float(), mean.float(), mean, op.tolerance, Excuses(sums=sums, perturbed=perturbed)
        )
        assert judged.fault != "", workload.key


@each(
    {
        f"{op.name}, {corruption}, {dtype}": (op, corruption, dtype)
        for op in SOME
        for corruption in CORRUPTIONS
        for dtype in ("float32", "bfloat16", "float16")
    }
)
def test_every_corruption_of_every_output_is_called_wrong(op: Op, corruption: str, dtype: str) -> None:
    for workload in (w for w in op.emulated if w.dtype == dtype):
        inputs = inputs_at(op, workload, SEED, "cpu")
        expected = op.call({name: tensor.double() for name, tensor in inputs.items()}, workload)
        for pytorch, float64_result in zip(op.call(inputs, workload), expected, strict=True):
            if pytorch.is_floating_point() or corruption not in {"one NaN", "fewer bits"}:
                spoiled = CORRUPTIONS[corruption](pytorch, random.Random(SEED))
                assert compared(spoiled, pytorch, float64_result, op.tolerance).fault, workload.key


def test_the_check_covers_normal_inputs_the_distributions_of_the_op_and_their_mixture() -> None:
    assert distributions(rows_op(doubled, values=("ties", "tiny"))) == ("normal", "ties", "tiny", "mixed")


def test_a_correct_op_has_no_blind_spot() -> None:
    assert found(rows_op(doubled)) == ()


def test_a_softmax_of_one_column_is_a_blind_spot() -> None:
    op = rows_op(lambda x: torch.softmax(x, -1), emulated=workloads("float32", {"rows": 64, "cols": 1}))
    assert {"its mean everywhere", "rows shuffled", "fewer bits", "`x` ignored"} <= unnoticed(op)


def test_a_corruption_that_passes_with_only_one_seed_is_not_a_blind_spot() -> None:
    def zeros_once(inputs: dict[str, torch.Tensor], generator: torch.Generator) -> None:
        if generator.initial_seed() == SEED:
            inputs["x"].zero_()

    assert "zeros" in unnoticed(rows_op(doubled, draw=lambda inputs, _: inputs["x"].zero_()))
    assert found(rows_op(doubled, draw=zeros_once)) == ()


def test_a_corruption_must_pass_with_other_mixtures_of_the_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consecutive seeds mix them in the same order, so that one corruption would pass with all of them by chance."""
    op, tried = catalog.load("group_norm_silu_backward"), list[tuple[RowGroup, ...]]()
    workload, spot = op.emulated[0], BlindSpot("n=2", MIXED, "grad_weight", "fewer bits", "it would pass")

    def spots(_op: Op, _workload: Workload, seed: int, _device: str, *, quick: bool) -> tuple[BlindSpot, ...]:
        tried.append(row_groups(op, op.outputs[0], workload, MIXED, seed))
        return (spot,)

    monkeypatch.setattr("evolve.evaluation.op_check._spots", spots)
    assert blind_spots(op, workload, 0, "cpu", quick=True) == (spot,)
    assert len(set(tried)) > len(tried) // 2


@each({f"seed {seed}": seed for seed in range(24, 30)})
def test_a_change_within_the_tolerance_for_few_rows_is_not_a_blind_spot(seed: int) -> None:
    """With tiny keys all queries have nearly the same sum of exponentials, so their order makes no difference."""
    op = catalog.load("attention")
    workload = next(one for one in op.emulated if dict(one.dims)["queries"] == 17)
    assert blind_spots(op, workload, seed, "cpu", quick=True) == ()


def test_an_awkward_shape_need_only_accept_correct_results() -> None:
    op = rows_op(lambda x: torch.softmax(x, -1), awkward=workloads("float32", {"rows": 64, "cols": 1}))
    assert found(op, op.awkward[0]) == ()


def test_an_input_that_does_not_matter_is_named() -> None:
    op = rows_op(lambda x, weight: x * 2 + 0 * weight, inputs=tensors(x="rows cols", weight="cols"))
    assert [(spot.corruption, spot.words) for spot in found(op)] == [
        ("`weight` ignored", "a kernel that ignored `weight` would pass")
    ]


def ignored(op: Op) -> set[str]:
    return {spot.corruption for spot in found(op) if spot.corruption.endswith("ignored")}


def normalised(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def test_an_eps_that_matters_only_for_tiny_inputs_is_not_a_blind_spot() -> None:
    op = rows_op(normalised, emulated=workloads("bfloat16", {"rows": 16, "cols": 256}, eps=1e-6))
    assert ignored(op) == set()
    assert ignored(replace(op, values=("large",))) == {"`eps` ignored"}


def test_an_eps_that_never_matters_is_named() -> None:
    assert ignored(rows_op(normalised, emulated=workloads("float32", {"rows": 16, "cols": 256}, eps=1e-30))) == {
        "`eps` ignored"
    }


@pytest.mark.parametrize(("factor", "blind"), [(2.0, False), (1e9, True)])
def test_with_too_wide_a_tolerance_zeros_pass_as_means(factor: float, blind: bool) -> None:
    op = rows_op(
        lambda x: x.mean(-1),
        out="rows",
        emulated=workloads("float32", {"rows": 32, "cols": 16384}),
        tolerance=Tolerance(factor),
        values=(),
    )
    assert ("zeros" in unnoticed(op)) is blind


@pytest.mark.parametrize(
    ("dtype", "hidden"), [("bfloat16", {"one element wrong"}), ("float32", {"one element wrong", "fewer bits"})]
)
def test_with_too_wide_a_tolerance_one_wrong_element_passes(dtype: str, hidden: set[str]) -> None:
    op = rows_op(doubled, emulated=workloads(dtype, {"rows": 16, "cols": 256}), tolerance=Tolerance(1e6))
    assert hidden <= unnoticed(op)


def test_an_output_with_equal_rows_is_a_blind_spot_for_their_order() -> None:
    op = rows_op(lambda x: x.mean(0, keepdim=True).expand_as(x), by_rows=False)
    assert unnoticed(op) == {"rows shuffled"}


def test_constant_rows_need_not_reveal_a_corruption_without_effect() -> None:
    op = rows_op(lambda x: torch.softmax(x, -1), values=("constant",))
    assert unnoticed(op, "constant") == set()


def test_a_change_as_small_as_that_of_reordering_a_sum_must_show_only_on_normal_inputs() -> None:
    op = rows_op(
        lambda x: 256 + 1e-3 * x.mean(-1),  # half precision rounds this to 256, so the mean is lost
        out="rows",
        emulated=workloads("float32", {"rows": 16, "cols": 1024}),
        values=("uniform",),
        tolerance=Tolerance(sums="cols"),
    )
    assert unnoticed(op, "uniform") == set()
    assert "fewer bits" in unnoticed(op)


def test_a_pytorch_result_that_overflows_is_reported_as_a_false_alarm() -> None:
    op = rows_op(lambda x: torch.log(torch.exp(x)), values=("large",))
    spots = [spot for spot in found(op) if spot.values == "large"]
    assert spots[0].corruption == ""
    assert "PyTorch's own result for `out` is called wrong" in spots[0].words


def test_a_baseline_that_computes_something_else_is_reported() -> None:
    op = rows_op(doubled, baseline=lambda x: x * 2.001)
    assert {spot.words.partition(":")[0] for spot in found(op)} == {"the baseline's result for `out` is called wrong"}


def test_outputs_that_the_baseline_need_not_match_are_not_compared() -> None:
    op = rows_op(doubled, baseline=lambda x: x * 3, baseline_free=("out",))
    assert found(op) == ()


def test_integers_must_be_exact_if_the_op_requires_it() -> None:
    op = rows_op(doubled, baseline=lambda x: x * 2 * (1 + 2**-23), values=("integers",))
    assert {spot.values for spot in found(op)} == {"integers", "mixed"}


def test_a_reference_that_raises_is_reported_with_its_message() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise NotImplementedError("no float64 here")
        return x * 2

    words = {spot.words for spot in found(rows_op(picky))}
    assert words == {"PyTorch cannot compute it: NotImplementedError: no float64 here"}


def test_shuffling_one_row_moves_its_elements() -> None:
    row = torch.arange(5.0)[None]
    spoiled = CORRUPTIONS["rows shuffled"](row, random.Random(1))
    assert not torch.equal(spoiled, row)
    assert torch.equal(spoiled.sort().values, row)


@each({name: name for name in CORRUPTIONS})
def test_a_corruption_does_not_modify_the_output(corruption: str) -> None:
    output = torch.randn(8, 16)
    before = output.clone()
    CORRUPTIONS[corruption](output, random.Random(0))
    assert torch.equal(output, before)


def test_each_workload_is_checked_at_its_own_dtype() -> None:
    places = rotated("float32 bfloat16", {"rows": 16, "cols": 256}, {"rows": 8, "cols": 512})
    op = rows_op(doubled, emulated=places)
    assert [found(op, place) for place in places] == [(), ()]


def test_an_op_that_keeps_nan_has_no_blind_spot_for_nan() -> None:
    kept = rows_op(lambda x: x * 2)
    assert "NaN swallowed" not in unnoticed(kept, NAN)


def test_faint_values_that_a_kernel_could_lose_are_reported() -> None:
    tolerated = rows_op(lambda x: torch.where(x.isnan(), 0.25, x * 2), tolerance=Tolerance(factor=1e30))
    assert {spot.corruption for spot in found(tolerated) if spot.values == MINUTE} == {"faint values lost"}


def test_an_op_that_hides_faint_values_has_no_blind_spot_for_them() -> None:
    assert "faint values lost" not in unnoticed(rows_op(lambda x: x + 1), MINUTE)


def test_a_clipped_index_is_noticed() -> None:
    gather = catalog.load("gather")
    spots = blind_spots(gather, gather.emulated[0], SEED, "cpu")
    assert not [spot for spot in spots if spot.values in gather.arranged]


def test_a_clipped_index_that_a_tolerance_hides_is_reported() -> None:
    gather = catalog.load("gather")
    loose = replace(gather, tolerance=Tolerance(factor=1e30))
    spots = blind_spots(loose, gather.emulated[0], SEED, "cpu")
    assert "indices clipped" in {spot.corruption for spot in spots if spot.values in gather.arranged}


@pytest.mark.parametrize(
    ("seeds", "counts"), [("1111111", True), ("1111101", True), ("1110110", False), ("1101111", False)]
)
def test_a_blind_spot_counts_only_if_most_seeds_show_it(
    monkeypatch: pytest.MonkeyPatch, seeds: str, counts: bool
) -> None:
    """A run must not end because a number happens to have few bits that can be lost."""
    spot = BlindSpot("n=2", "normal", "out", "fewer bits", "a kernel with fewer bits would pass")

    turns = iter(seeds)

    def spots(_op: Op, _workload: Workload, _seed: int, _device: str, *, quick: bool) -> tuple[BlindSpot, ...]:
        return (spot,) if next(turns) == "1" else ()

    monkeypatch.setattr("evolve.evaluation.op_check._spots", spots)
    op = catalog.load("relu")
    assert blind_spots(op, op.emulated[0], 0, "cpu") == ((spot,) if counts else ())

"""Arrangements of masks, indices and orders, and the extremes of numbers."""

import math
import random

import pytest
import torch
from chosen_ops import some
from each import each

from reference_ops import catalog
from reference_ops.arrangements import filled, of_indices, of_mask, of_order, sprinkled
from reference_ops.distributions import EXTREME_DRAWS, SEEDS_ALIKE
from reference_ops.inputs import inputs_at, meets_extremes_by_rows, row_groups, seeds_in_turn, similar_seeds
from reference_ops.op import (
    EQUAL_INFINITIES,
    EXTREME_ROWS,
    EXTREMES,
    INFINITE,
    MINUS_INF,
    MINUTE,
    NAN,
    NAN_IN_WEIGHTS,
    NORMAL,
    NOT_FINITE,
    OPPOSITE_INFINITIES,
    SAVED_INFINITE,
    SAVED_NAN,
    SUBNORMAL,
    ZERO,
    Op,
    Workload,
)

ROWS, KEYS, BOUND = 6, 40, 9


def arranged(arrangement: str, *, hides: bool = True) -> torch.Tensor:
    mask = torch.zeros(ROWS, KEYS, dtype=torch.bool)
    of_mask("mask", hides=hides)[arrangement]({"mask": mask}, torch.Generator().manual_seed(1), {})
    return mask if hides else ~mask


@pytest.mark.parametrize("hides", [True, False])
def test_a_mask_of_a_prefix_hides_all_but_the_last_key_in_some_rows(hides: bool) -> None:
    hidden = arranged("mask_of_prefix", hides=hides)
    assert bool((hidden.sum(1) == KEYS - 1).any())
    assert not bool(hidden[:, -1].any())


def test_a_mask_of_a_prefix_is_one_run_from_the_start() -> None:
    hidden = arranged("mask_of_prefix")
    assert torch.equal(hidden, hidden.int().cummin(1).values.bool())


def test_a_mask_of_a_suffix_is_one_run_to_the_end_and_keeps_the_first_key() -> None:
    hidden = arranged("mask_of_suffix")
    assert torch.equal(hidden, hidden.int().cummax(1).values.bool())
    assert not bool(hidden[:, 0].any())


def test_a_mask_of_a_block_hides_some_keys_and_keeps_the_last() -> None:
    hidden = arranged("mask_of_block")
    assert bool(hidden.any(1).all())
    assert not bool(hidden[:, -1].any())


def test_masks_hide_everything_and_nothing() -> None:
    assert bool(arranged("mask_hides_everything").all())
    assert not bool(arranged("mask_hides_nothing").any())


def test_a_mask_of_a_single_key_is_drawn() -> None:
    mask = torch.zeros(3, 1, dtype=torch.bool)
    for arrange in of_mask("mask", hides=True).values():
        arrange({"mask": mask}, torch.Generator().manual_seed(1), {})


def indices(arrangement: str) -> torch.Tensor:
    drawn = torch.randint(BOUND, (200,), generator=torch.Generator().manual_seed(2))
    of_indices("at", "size")[arrangement]({"at": drawn}, torch.Generator().manual_seed(1), {"size": BOUND})
    return drawn


def test_indices_are_all_the_first_or_all_the_last() -> None:
    assert indices("at_all_first").unique().tolist() == [0]
    assert indices("at_all_last").unique().tolist() == [BOUND - 1]


def test_one_hub_takes_most_of_the_indices_but_not_all() -> None:
    most = int(indices("at_one_hub").bincount().max())
    assert 160 <= most < 200


def test_indices_ascend_and_descend() -> None:
    ascending = indices("at_ascending")
    assert torch.equal(ascending, ascending.sort().values)
    assert torch.equal(indices("at_descending"), ascending.flip(0))


def test_rows_are_put_in_order() -> None:
    x = torch.randn(4, 30)
    of_order("x")["x_descending"]({"x": x}, torch.Generator(), {})
    assert bool((x.diff(dim=1) <= 0).all())


def test_a_tensor_is_filled_with_one_value() -> None:
    x = torch.randn(4, 30)
    filled(x=0.375)({"x": x}, torch.Generator(), {})
    assert x.unique().tolist() == [0.375]


@each({name: name for name in catalog.names()}, quick=some())
def test_every_extreme_and_arrangement_of_an_op_can_be_drawn_and_computed(name: str) -> None:
    op = catalog.load(name)
    for workload in (op.emulated[0], op.awkward[0], op.awkward[-1]):
        for values in (*op.extremes, *op.arrangements, EXTREME_ROWS):
            outputs = op.call(inputs_at(op, workload, 3, "cpu", values), workload)
            assert len(outputs) == len(op.outputs), values


# log_alpha contains the log of zero
@each({name: name for name in catalog.names() if name != "ctc_loss_backward"}, quick=some())
def test_a_finite_extreme_remains_finite_after_an_op_has_drawn_its_inputs(name: str) -> None:
    op = catalog.load(name)
    of_dtypes = {workload.dtype: workload for workload in op.emulated}
    for workload in of_dtypes.values():
        for values in set(op.extremes) - set(NOT_FINITE):
            inputs = inputs_at(op, workload, 3, "cpu", values)
            assert all(bool(tensor.float().isfinite().all()) for tensor in inputs.values()), values


def test_there_is_a_draw_for_every_extreme() -> None:
    # these two are drawn only for some inputs
    assert EXTREME_DRAWS.keys() == set(EXTREMES) - {SAVED_NAN, SAVED_INFINITE}


def drawn(op: Op, values: str, workload: Workload | None = None) -> dict[str, torch.Tensor]:
    return inputs_at(op, workload or op.emulated[0], 5, "cpu", values)


def test_extremes_are_drawn_for_whole_tensors() -> None:
    softmax = catalog.load("softmax")
    assert bool((drawn(softmax, ZERO)["x"] == 0).all())
    assert float(drawn(softmax, MINUTE)["x"].abs().max()) < 1e-6
    subnormal = drawn(softmax, SUBNORMAL)["x"].abs()
    assert 0 < float(subnormal.max()) < torch.finfo(torch.float32).smallest_normal


def test_a_few_rows_have_one_nan_each_and_the_others_no_nan() -> None:
    count = drawn(catalog.load("softmax"), NAN)["x"].isnan().sum(1)
    assert 2 <= int((count == 1).sum()) < len(count)
    assert int(count.max()) == 1


def test_infinities_of_both_signs_are_drawn() -> None:
    x = drawn(catalog.load("softmax"), INFINITE)["x"]
    assert bool((x == math.inf).any())
    assert bool((x == -math.inf).any())


def test_some_rows_are_entirely_minus_infinity() -> None:
    whole = (drawn(catalog.load("softmax"), MINUS_INF)["x"] == -math.inf).all(1)
    assert 2 <= int(whole.sum()) < len(whole)


def test_only_the_gradients_of_a_backward_op_are_zero() -> None:
    inputs = drawn(catalog.load("gelu_backward"), ZERO)
    assert bool((inputs["grad_out"] == 0).all())
    assert not bool((inputs["x"] == 0).any())


def test_an_op_leaves_out_the_extremes_from_which_it_is_exempt() -> None:
    sort = catalog.load("sort")
    assert NAN in sort.exempt
    assert NAN not in sort.extremes
    assert INFINITE in sort.extremes


def test_an_exemption_from_an_unknown_extreme_is_refused() -> None:
    softmax = catalog.load("softmax")
    with pytest.raises(ValueError, match="`exempt` names `nan`"):
        Op(
            "mine", softmax.reference, softmax.inputs, softmax.outputs, softmax.gpu, softmax.emulated, softmax.flops,
            exempt={"nan": "by mistake"},
        )  # fmt: skip


def test_an_arrangement_must_not_have_the_name_of_a_distribution() -> None:
    softmax = catalog.load("softmax")
    for taken in (NORMAL, *EXTREMES):
        with pytest.raises(ValueError, match="which is a distribution"):
            Op(
                "mine", softmax.reference, softmax.inputs, softmax.outputs, softmax.gpu, softmax.emulated,
                softmax.flops, arranged={taken: filled(x=0.0)},
            )  # fmt: skip


def test_one_draw_has_rows_of_every_extreme() -> None:
    softmax = catalog.load("softmax")
    x = drawn(softmax, EXTREME_ROWS)["x"]
    assert bool((x == 0).all(1).any())
    assert bool((x.isnan().sum(1) == 1).any())
    assert bool((x == -math.inf).all(1).any())
    groups = row_groups(softmax, softmax.outputs[0], softmax.emulated[0], EXTREME_ROWS, 5)
    assert {group.values for group in groups} == set(softmax.extremes)
    assert all(bool((x[group.rows] == 0).all()) == (group.values == ZERO) for group in groups)


def test_similar_seeds_draw_the_same_extreme_in_the_same_rows() -> None:
    softmax = catalog.load("softmax")
    at = softmax.outputs[0], softmax.emulated[0], EXTREME_ROWS
    groups = row_groups(softmax, *at, 5)
    assert all(row_groups(softmax, *at, seed) == groups for seed in similar_seeds(softmax, 5, 4))


def test_extremes_share_a_draw_only_where_each_row_of_every_output_depends_on_one_row() -> None:
    assert meets_extremes_by_rows(catalog.load("softmax"), catalog.load("softmax").emulated[0])
    layer_norm = catalog.load("layer_norm_backward")  # gradients of weights sum over the rows
    assert not meets_extremes_by_rows(layer_norm, layer_norm.emulated[0])
    assert not meets_extremes_by_rows(catalog.load("softmax"), catalog.load("softmax").awkward[-1])


def rows_with_nan(op: str, workload: Workload, seed: int) -> dict[str, set[int]]:
    inputs = inputs_at(catalog.load(op), workload, seed, "cpu", NAN)
    return {
        name: {row for row, values in enumerate(tensor) if bool(values.isnan().any())}
        for name, tensor in inputs.items()
    }


@pytest.mark.parametrize("seed", range(6))
def test_each_of_several_inputs_has_nan_in_a_row_that_is_finite_in_the_others(seed: int) -> None:
    op = catalog.load("cosine_similarity")
    for workload in (*op.emulated, *op.awkward):
        if op.shape(op.inputs[0], workload)[0] > len(op.inputs):
            rows = rows_with_nan("cosine_similarity", workload, seed)
            assert rows["x"] - rows["y"]
            assert rows["y"] - rows["x"]


def test_in_a_single_row_one_input_alone_may_have_nan_and_each_does_at_some_seed() -> None:
    workload = Workload("float32", (("n", 1),), catalog.load("adamw").emulated[0].parameters)
    found = [rows_with_nan("adamw", workload, (turn + 1) * SEEDS_ALIKE - 1) for turn in range(4)]
    with_nan = [{name for name, rows in each_draw.items() if rows} for each_draw in found]
    assert sorted(map(sorted, with_nan)) == [["exp_avg"], ["exp_avg_sq"], ["grad"], ["param"]]


def test_inputs_that_are_computed_from_others_have_no_rows_of_their_own() -> None:
    backward = catalog.load("attention_backward")  # its `out` and `lse` are computed from q, k and v
    single = next(one for one in backward.awkward if dict(one.dims)["batch"] == 1)
    assert len(seeds_in_turn(backward, single, SAVED_NAN, random.Random(1))) == len("qkv")
    assert len(seeds_in_turn(backward, single, NAN, random.Random(1))) == len(["grad_out"])
    loss = catalog.load("mse_backward")  # its only gradient is a single number
    assert seeds_in_turn(loss, loss.awkward[0], NAN, random.Random(1)) == []


@pytest.mark.parametrize(("name", "draws"), [("cosine_similarity", 1), ("adamw", 4), ("gelu", 1)])
def test_in_turn_each_input_ends_with_nan_where_the_others_are_finite(name: str, draws: int) -> None:
    op = catalog.load(name)
    workload = next(one for one in op.awkward if max(dict(one.dims).values()) > 30)
    seeds = seeds_in_turn(op, workload, NAN, random.Random(1))
    assert len(seeds) == draws
    alone = set()
    for seed in seeds:
        inputs = inputs_at(op, workload, seed, "cpu", NAN)
        for row in range(workload.dims[0][1]):
            ending = [one for one, values in inputs.items() if bool(values[row].reshape(-1)[-1].isnan())]
            others = [one for one, values in inputs.items() if one not in ending and bool(values[row].isfinite().all())]
            alone |= {*ending} if len(ending) + len(others) == len(inputs) and len(ending) == 1 else set()
    assert alone == {spec.name for spec in op.inputs}


def test_nan_is_put_into_only_one_input() -> None:
    inputs = drawn(catalog.load("cumprod"), "NaN_in_x")
    assert bool(inputs["x"].isnan().any())
    assert not bool(inputs["x"].isnan().all())


def nan_at(op: str, values: str) -> set[str]:
    """Return the inputs that have NaN, but not everywhere."""
    found = drawn(catalog.load(op), values).items()
    return {name for name, tensor in found if bool(tensor.isnan().any()) and not bool(tensor.isnan().all())}


def test_nan_is_put_only_into_the_weights() -> None:
    assert nan_at("layer_norm", NAN_IN_WEIGHTS) == {"weight", "bias"}


def test_a_backward_op_gets_nan_in_one_gradient_or_saved_tensor_at_a_time() -> None:
    assert nan_at("gelu_backward", NAN) == {"grad_out"}
    assert nan_at("gelu_backward", SAVED_NAN) == {"x"}


def test_scales_that_cancel_along_a_sum_do_not_change_the_products() -> None:
    gemm = catalog.load("gemm")
    usual, apart = drawn(gemm, NORMAL), drawn(gemm, "a_and_b_scaled_apart")
    assert not torch.equal(usual["a"], apart["a"])
    assert torch.allclose(apart["a"].double() @ apart["b"].double(), usual["a"].double() @ usual["b"].double())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_numbers_far_below_zero_are_finite_and_below_those_used_for_minus_infinity(dtype: str) -> None:
    softmax = catalog.load("softmax")
    workload = next(workload for workload in softmax.emulated if workload.dtype == dtype)
    x = drawn(softmax, "far_below", workload)["x"]
    assert bool(x.isfinite().all())
    assert float(x.max()) < (-2000 if dtype == "float16" else -1e9)


@pytest.mark.parametrize("name", ["attention", "causal_attention", "grouped_query_attention", "decode_attention"])
def test_opposed_keys_give_every_query_equal_scores_far_below_zero(name: str) -> None:
    inputs = drawn(catalog.load(name), "k_opposed")
    q, k = inputs["q"], inputs["k"]
    asked = q.reshape(len(q), k.shape[1], -1, q.shape[-1])  # the queries grouped by key head
    scores = asked.double() @ k.double().mT
    assert bool((scores == scores[..., :1]).all())
    assert float(scores.max()) < -1e5


@pytest.mark.parametrize("name", ["attention", "causal_attention", "grouped_query_attention", "decode_attention"])
def test_moved_scores_are_far_below_zero_and_far_above_and_differ(name: str) -> None:
    inputs = drawn(catalog.load(name), "scores_moved")
    q, k = inputs["q"], inputs["k"]
    asked = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
    scores = asked.double() @ k.double().mT / q.shape[-1] ** 0.5
    assert bool(((scores.mean(-1) < -100) | (scores.mean(-1) > 100)).all())
    assert bool((scores.mean(-1) < -100).any())
    assert bool((scores.mean(-1) > 100).any())
    assert float(scores.std(-1).min()) > 0


@pytest.mark.parametrize(("values", "sign"), [(EQUAL_INFINITIES, 1), (OPPOSITE_INFINITIES, -1)])
def test_two_inputs_have_infinities_at_the_same_places(values: str, sign: int) -> None:
    inputs = drawn(catalog.load("add_layer_norm"), values)
    x, residual = inputs["x"], inputs["residual"]
    assert bool(x.isinf().any())
    assert torch.equal(x.isinf(), residual.isinf())
    assert torch.equal(x[x.isinf()], sign * residual[x.isinf()])
    assert not bool(inputs["weight"].isinf().any())


def test_every_two_of_three_inputs_have_infinities_at_the_same_places() -> None:
    op = catalog.load("sgd_momentum")
    inputs = drawn(op, OPPOSITE_INFINITIES, op.emulated[-1])
    infinite = torch.stack([inputs[name].isinf() for name in ("param", "grad", "momentum_buffer")])
    assert {*infinite.sum(0).tolist()} == {0, 2}
    assert bool(infinite.any(1).all())


@pytest.mark.parametrize("name", ["relu", "gelu_backward", "causal_attention", "rms_norm"])
def test_no_infinities_at_the_same_places_for_a_single_input_for_gradients_or_where_they_are_left_open(
    name: str,
) -> None:
    assert not {EQUAL_INFINITIES, OPPOSITE_INFINITIES} & {*catalog.load(name).arrangements}


def test_fp8_is_tested_with_numbers_halfway_between_two_neighbours() -> None:
    op = catalog.load("quantise_rows_fp8")
    x = drawn(op, "halves", op.emulated[0])["x"][:, 1:]
    mantissa, _ = torch.frexp(x)
    assert bool(((mantissa.abs() * 32 - 16) % 2 == 1).all())


def test_an_arrangement_with_its_first_half_in_place_is_a_permutation() -> None:
    indices = drawn(catalog.load("sort_backward"), "indices_half_in_place")["indices"]
    size = indices.shape[1]
    assert torch.equal(indices.sort(-1).values, torch.arange(size).expand_as(indices))
    assert torch.equal(indices[:, : size // 2], torch.arange(size // 2).expand(len(indices), -1))
    assert bool((indices[:, -1] == size // 2).all())


def test_a_share_of_an_input_has_one_value() -> None:
    x = torch.ones(100, 100)
    sprinkled("x", 0.25, zeros=0.0)["zeros_in_x"]({"x": x}, torch.Generator().manual_seed(1), {})
    assert 0.2 < float((x == 0).float().mean()) < 0.3


def test_a_saved_output_follows_from_the_arranged_inputs() -> None:
    inputs = drawn(catalog.load("cumprod_backward"), "zeros_in_x")
    assert torch.equal(inputs["out"], inputs["x"].cumprod(-1))


def test_an_op_that_exempts_nan_gets_it_in_each_input_where_results_depend_on_it() -> None:
    attention = catalog.load("causal_attention")
    assert {nan for name in "qkv" for nan in nan_at("causal_attention", f"NaN_that_counts_in_{name}")} == set("qkv")
    groups = row_groups(attention, attention.outputs[0], attention.emulated[0], "NaN_that_counts_in_k", 5)
    assert all(group.counts_where_it_matters for group in groups)


def test_an_op_may_exempt_nan_altogether() -> None:
    assert not catalog.load("sort").counted_nan
    assert not catalog.load("softmax").counted_nan  # softmax has no exemption for NaN


def test_a_single_input_is_scaled() -> None:
    mse = catalog.load("mse_backward")
    usual, faint = drawn(mse, NORMAL), drawn(mse, "grad_loss_scaled")
    assert float(faint["grad_loss"]) == pytest.approx(-1e-8 * float(usual["grad_loss"]))
    assert torch.equal(faint["x"], usual["x"])


def test_half_of_each_row_is_in_order() -> None:
    x = torch.randn(4, 30)
    of_order("x")["x_half_in_order"]({"x": x}, torch.Generator(), {})
    assert bool((x[:, :15].diff(dim=1) >= 0).all())
    assert bool((x[:, 15:].diff(dim=1) <= 0).all())


def test_rows_of_a_search_have_several_nan() -> None:
    count = drawn(catalog.load("argmax"), "many_NaN_in_x")["x"].isnan().sum(1)
    assert int(count.min()) >= 2


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_maximum_is_tested_with_windows_of_only_minus_inf_after_the_first_place(rank: int) -> None:
    x = drawn(catalog.load(f"max_pool{rank}d"), "planes_of_minus_inf_in_x")["x"].flatten(0, 1).flatten(1)
    empty = x.isneginf().all(1)
    assert bool(empty.any())
    assert not bool(empty.all())

"""Arrangements of masks, indices and orders, and NaN and infinities in chosen inputs."""

import pytest
import torch
from drawn_inputs import drawn, nan_at

from reference_ops import catalog
from reference_ops.arrangements import (
    crowded,
    far_from_zero,
    filled,
    last_bits,
    of_indices,
    of_mask,
    of_order,
    sprinkled,
)
from reference_ops.inputs import row_groups
from reference_ops.op import (
    EXTREMES,
    NAN_IN_WEIGHTS,
    NORMAL,
    Op,
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


def test_an_arrangement_must_not_have_the_name_of_a_distribution() -> None:
    softmax = catalog.load("softmax")
    for taken in (NORMAL, *EXTREMES):
        with pytest.raises(ValueError, match="which is a distribution"):
            Op(
                "mine", softmax.reference, softmax.inputs, softmax.outputs, softmax.gpu, softmax.emulated,
                softmax.flops, arranged={taken: filled(x=0.0)},
            )  # fmt: skip


def test_nan_is_put_into_only_one_input() -> None:
    inputs = drawn(catalog.load("cumprod"), "NaN_in_x")
    assert bool(inputs["x"].isnan().any())
    assert not bool(inputs["x"].isnan().all())


def test_nan_is_put_only_into_the_weights() -> None:
    assert nan_at("layer_norm", NAN_IN_WEIGHTS) == {"weight", "bias"}


def test_scales_that_cancel_along_a_sum_do_not_change_the_products() -> None:
    gemm = catalog.load("gemm")
    usual, apart = drawn(gemm, NORMAL), drawn(gemm, "a_and_b_scaled_apart")
    assert not torch.equal(usual["a"], apart["a"])
    assert torch.allclose(apart["a"].double() @ apart["b"].double(), usual["a"].double() @ usual["b"].double())


@pytest.mark.parametrize(
    ("name", "state"), [("gru", "h0"), ("lstm", "h0"), ("rnn_tanh", "h0"), ("gru_cell", "h"), ("lstm_cell", "h")]
)
def test_recurrent_weights_are_faint_where_states_are_huge_so_that_none_may_be_lost(name: str, state: str) -> None:
    op = catalog.load(name)
    usual, met = drawn(op, NORMAL), drawn(op, f"w_hh_faint_and_{state}_huge")
    assert float(met["w_hh"].abs().max()) < 1e-5
    assert torch.allclose(
        met[state].double() @ met["w_hh"].double().T, usual[state].double() @ usual["w_hh"].double().T
    )


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


def test_a_quarter_of_an_input_is_nan_or_infinite_in_equal_parts() -> None:
    x = torch.ones(300, 100)
    crowded("x")["x_crowded_with_specials"]({"x": x}, torch.Generator().manual_seed(1), {})
    for special in (x.isnan(), x.isposinf(), x.isneginf()):
        assert float(special.float().mean()) == pytest.approx(1 / 12, abs=0.01)
    assert float((x == 1).float().mean()) == pytest.approx(3 / 4, abs=0.02)


def test_numbers_are_moved_far_from_zero_to_either_side() -> None:
    centres = set()
    for seed in range(20):
        x = torch.zeros(5, 3)
        far_from_zero("x")["x_far_from_zero"]({"x": x}, torch.Generator().manual_seed(seed), {})
        centres |= set(x.flatten().tolist())
    assert centres == {-256.0, 256.0}


@pytest.mark.parametrize("name", ["swiglu", "swiglu_backward", "geglu", "geglu_backward"])
def test_the_gates_of_gated_units_are_drawn_where_they_are_nearly_closed(name: str) -> None:
    gate = drawn(catalog.load(name), "nearly_closed_gates")["gate"]
    assert -16 <= float(gate.min()) < float(gate.max()) <= -4


def test_variances_of_batch_norm_are_drawn_up_to_infinity() -> None:
    op = catalog.load("batch_norm_inference")
    assert drawn(op, "infinite_variance")["running_var"].isposinf().all()
    wide = drawn(op, "wide_variance")
    assert float(wide["running_var"].min()) >= 1
    assert float(wide["x"].abs().max()) > 1000


def test_a_saved_output_follows_from_the_arranged_inputs() -> None:
    inputs = drawn(catalog.load("cumprod_backward"), "zeros_in_x")
    assert torch.equal(inputs["out"], inputs["x"].cumprod(-1))


def test_an_op_that_exempts_nan_gets_it_in_each_input_where_results_depend_on_it() -> None:
    attention = catalog.load("causal_attention")
    assert {nan for name in "qkv" for nan in nan_at("causal_attention", f"NaN_that_counts_in_{name}")} == set("qkv")
    groups = row_groups(attention, attention.outputs[0], attention.emulated[0], "NaN_that_counts_in_k", 5)
    assert all(group.counts_where_it_matters for group in groups)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_in_the_last_bits_are_different_but_equal_in_fewer_bits(dtype: torch.dtype) -> None:
    x = torch.zeros(4, 500, dtype=dtype)
    last_bits("x")["x_in_the_last_bits"]({"x": x}, torch.Generator().manual_seed(1), {})
    steps = (x.double() - 1) / torch.finfo(dtype).eps
    assert steps.min() >= 0
    assert steps.max() <= 64
    assert len(x.unique()) > 32

"""Workloads at the edges of an op's range: parameters, small and equal sizes, long rows."""

import itertools
import random
from dataclasses import replace

import pytest
from chosen_ops import some
from each import each

from reference_ops import catalog
from reference_ops.edges import (
    LEAST_EQUAL,
    MOST_SMALL,
    equal_sizes,
    long_rows,
    small_quotients,
    small_sizes,
    square_matrices,
)
from reference_ops.op import INFINITE, NAN, RUNS_OF_MINUS_INF, ZERO, Op, Workload
from reference_ops.parameters import (
    SPECIAL,
    beyond_listed,
    crossed_parameters,
    extremes_that_matter,
    far_apart,
    has_vanishing_term,
    special_parameters,
)

OPS = {name: catalog.load(name) for name in catalog.names()}
ops = each(OPS, quick=some())
MOST_BYTES = 2**18


def anything(_: Workload) -> bool:
    return True


def special(op: Op) -> set[tuple[str, float]]:
    """Return the parameters of special workloads that no workload of the op lists."""
    listed = {parameter for workload in op.listed for parameter in workload.parameters}
    drawn = [set(workload.parameters) - listed for workload in special_parameters(op, anything, 2**18)]
    assert all(len(one) == 1 for one in drawn)
    return {one.pop() for one in drawn}


def test_single_parameters_are_zero_or_far_from_listed_values() -> None:
    names = dict(catalog.load("sgd_momentum").emulated[0].parameters)
    assert special(catalog.load("sgd_momentum")) >= {(name, value) for name in names for value in SPECIAL}


def test_a_scale_and_a_slope_are_also_tested_below_zero_and_a_share_at_one() -> None:
    assert special(catalog.load("leaky_relu")) == {("negative_slope", value) for value in (0.0, 1.0, 10.0, -0.01)}
    assert ("scale", -0.125) in special(catalog.load("causal_softmax"))
    assert special(catalog.load("cross_entropy")) == {("label_smoothing", 1.0)}


def test_an_eps_and_a_rate_are_not_tested_below_zero() -> None:
    assert special(catalog.load("layer_norm")) == {("eps", 0.0), ("eps", 10.0)}
    assert all(value >= 0 for op in ("sgd_momentum", "adamw") for _, value in special(catalog.load(op)))


def test_parameters_stay_valid_and_integers_are_not_changed() -> None:
    dropout, pool = catalog.load("dropout"), catalog.load("avg_pool2d")
    assert {dict(w.parameters)["p"] for w in special_parameters(dropout, anything, 2**18)} == {0.0}
    assert not special_parameters(pool, anything, 2**18)


def test_a_parameter_is_not_drawn_where_the_kernel_accepts_none_of_its_values() -> None:
    def takes(workload: Workload) -> bool:
        return dict(workload.parameters)["negative_slope"] > 1

    drawn = special_parameters(catalog.load("leaky_relu"), takes, 2**18)
    assert [dict(w.parameters)["negative_slope"] for w in drawn] == [max(SPECIAL)]


def known(workload: Workload) -> dict[str, float]:
    return dict((*workload.dims, *workload.parameters))


def test_a_stride_is_once_beyond_its_window_and_a_padding_beyond_its_filter() -> None:
    pool, conv = (far_apart(catalog.load(name), anything, 2**18) for name in ("avg_pool1d_backward", "conv2d"))
    assert any(known(w)["stride"] > known(w)["kernel"] and known(w)["l"] > known(w)["stride"] for w in pool)
    assert any(known(w)["stride"] > max(known(w)["r"], known(w)["s"]) for w in conv)
    assert any(known(w)["padding"] > max(known(w)["r"], known(w)["s"]) for w in conv)


def test_integer_parameters_are_once_greater_than_all_listed_ones_together_if_possible() -> None:
    (pool,) = beyond_listed(catalog.load("max_pool2d"), anything, 2**18)
    assert (known(pool)["kernel"], known(pool)["stride"], known(pool)["padding"]) == (11, 7, 5)
    (groups,) = beyond_listed(catalog.load("group_norm"), anything, 2**18)
    assert known(groups)["groups"] == 65
    assert known(groups)["channels"] % 65 == 0
    apart = beyond_listed(catalog.load("grouped_conv2d"), anything, 2**18)
    assert [max(known(w)["stride"] - 3, 0) + max(known(w)["groups"] - 32, 0) > 0 for w in apart].count(True) == 2


def test_taps_reach_farther_than_in_any_listed_workload() -> None:
    """A filter reaches farthest with the most taps and the largest dilation, which are never listed together."""
    op = catalog.load("causal_conv1d")

    def reach(workload: Workload) -> float:
        sizes = {**dict(workload.dims), **known(workload)}
        return (sizes["width"] - 1) * sizes["dilation"]

    (far,) = beyond_listed(op, anything, 2**18)
    assert reach(far) > 2 * max(map(reach, op.listed))
    (few,) = beyond_listed(op, lambda w: dict(w.dims)["width"] < 5, 2**18)
    assert known(few)["dilation"] == 129


def test_an_ignored_class_is_drawn_beyond_those_below_zero() -> None:
    (ignored,) = beyond_listed(catalog.load("cross_entropy"), anything, 2**18)
    assert 1 < known(ignored)["ignore_index"] < known(ignored)["vocab"]


def test_parameters_are_not_drawn_beyond_the_range_of_the_kernel() -> None:
    def takes(workload: Workload) -> bool:
        return known(workload)["kernel"] <= 8

    (pool,) = beyond_listed(catalog.load("max_pool2d"), takes, 2**18)
    assert known(pool)["kernel"] == 8


@each(OPS, quick=some())
def test_integer_parameters_far_apart_are_valid_and_as_listed(op: Op) -> None:
    listed = {parameter for workload in op.listed for parameter in workload.parameters}
    for workload in far_apart(op, anything, 2**18):
        assert op.is_valid(workload)
        assert op.nbytes(workload) <= 2**18
        assert max(size for _, size in workload.parameters) <= max(size for _, size in listed)


def sizes_of(op: Op, workload: Workload) -> dict[str, float]:
    return {**op.sizes(workload), **dict(workload.parameters)}


def small(op: Op, seed: int = 1) -> tuple[Workload, ...]:
    return small_sizes(op, anything, random.Random(seed), MOST_BYTES)


def equal(op: Op, seed: int = 1) -> tuple[Workload, ...]:
    return equal_sizes(op, anything, random.Random(seed), MOST_BYTES)


def met(op: Op, workloads: tuple[Workload, ...], name: str) -> set[float]:
    return {sizes_of(op, workload)[name] for workload in workloads}


@pytest.mark.parametrize(
    ("name", "dim"),
    [("attention", "heads"), ("decode_attention", "kv_heads"), ("conv2d", "channels"), ("max_pool1d_backward", "ol"),
     ("group_norm", "groups"), ("topk", "k"), ("gru", "hidden"), ("sum_columns", "cols")],
)  # fmt: skip
def test_every_small_size_occurs_at_a_listed_workload_or_a_drawn_one(name: str, dim: str) -> None:
    op = catalog.load(name)
    for seed in range(5):
        near = tuple(workload for workload in (*op.emulated, *op.awkward) if op.nbytes(workload) <= MOST_BYTES)
        assert met(op, near + small(op, seed), dim) >= set(range(1, MOST_SMALL + 1))


@ops
def test_small_sizes_are_valid_and_beside_larger_ones(op: Op) -> None:
    for workload in small(op):
        assert op.is_valid(workload)
        assert op.nbytes(workload) <= MOST_BYTES
        assert max(op.sizes(workload).values()) > MOST_SMALL or len(workload.dims) == 1


def test_a_window_is_small_where_the_channels_are_not() -> None:
    op = catalog.load("local_response_norm")
    for seed in range(10):
        of_four = [sizes_of(op, one) for one in small(op, seed) if dict(one.parameters)["size"] == 4]
        assert any(sizes["channels"] > 4 for sizes in of_four)


def test_parameters_that_are_listed_apart_are_drawn_together() -> None:
    large, small = (known(workload) for workload in crossed(catalog.load("cross_entropy")))
    assert large["vocab"] > small["vocab"]
    for sizes in (large, small):
        assert (sizes["ignore_index"], sizes["label_smoothing"]) == (0, 0.1)
    assert not crossed(catalog.load("softmax"))


@ops
def test_few_crossed_parameters_are_drawn_and_all_of_them_are_listed(op: Op) -> None:
    listed = {parameter for workload in op.listed for parameter in workload.parameters}
    assert len(crossed(op)) <= 2
    for workload in crossed(op):
        assert op.is_valid(workload)
        assert op.nbytes(workload) <= MOST_BYTES
        assert listed.issuperset(workload.parameters)
        assert not any(set(one.parameters).issuperset(workload.parameters) for one in op.listed)


def crossed(op: Op) -> tuple[Workload, ...]:
    return crossed_parameters(op, anything, random.Random(1), MOST_BYTES)


@ops
def test_few_workloads_have_small_or_equal_sizes(op: Op) -> None:
    assert len(small(op)) <= 16
    assert len(equal(op)) <= 6


def test_small_sizes_are_drawn_from_those_that_the_kernel_accepts() -> None:
    def accepts(workload: Workload) -> bool:
        return dict(workload.dims)["cols"] % 2 == 0

    drawn = small_sizes(catalog.load("softmax"), accepts, random.Random(1), MOST_BYTES)
    assert {dict(workload.dims)["cols"] for workload in drawn} >= {2, 4}
    assert all(map(accepts, drawn))


def test_sizes_that_depend_on_each_other_change_together() -> None:
    op = catalog.load("grouped_query_attention")
    assert met(op, small(op), "kv_heads") >= {4}
    assert all(sizes_of(op, one)["heads"] % sizes_of(op, one)["kv_heads"] == 0 for one in small(op))


def test_any_two_sizes_are_equal_once() -> None:
    op = catalog.load("upsample_bilinear")
    for seed in range(5):
        found = [sizes_of(op, workload) for workload in (*equal(op, seed), *op.emulated, *op.awkward)]
        for one, other in itertools.combinations(("h", "w", "oh", "ow"), 2):
            assert any(sizes[one] == sizes[other] >= LEAST_EQUAL for sizes in found)


def test_a_height_is_unchanged_where_the_width_changes() -> None:
    op = catalog.load("upsample_bilinear")
    for seed in range(20):
        found = [sizes_of(op, workload) for workload in equal(op, seed)]
        assert any(sizes["h"] == sizes["oh"] and sizes["w"] != sizes["ow"] for sizes in found)


def squares(op: Op) -> tuple[Workload, ...]:
    return square_matrices(op, anything, MOST_BYTES)


@pytest.mark.parametrize(
    ("name", "sides", "windows"),
    [("gemm_backward", "m n k", ""), ("conv2d_channels_last", "channels filters", "r s"),
     ("conv2d_backward_data", "channels filters", "r s"), ("conv_transpose1d", "channels filters", "taps")],
)  # fmt: skip
def test_every_matrix_of_a_product_is_square_once(name: str, sides: str, windows: str) -> None:
    op = catalog.load(name)
    (found,) = squares(op)
    assert len({sizes_of(op, found)[side] for side in sides.split()}) == 1
    assert all(sizes_of(op, found)[window] == 1 for window in windows.split())


def test_only_matrices_of_products_are_square() -> None:
    assert squares(catalog.load("softmax")) == squares(catalog.load("max_pool2d")) == ()


@ops
def test_square_matrices_are_valid(op: Op) -> None:
    assert all(op.is_valid(one) and op.nbytes(one) <= MOST_BYTES for one in squares(op))


@ops
def test_equal_sizes_are_valid_and_leave_others_different(op: Op) -> None:
    for workload in equal(op):
        assert op.is_valid(workload)
        assert op.nbytes(workload) <= MOST_BYTES
        sizes = dict((*workload.dims, *workload.parameters))  # sizes that are computed from others are left out
        assert len(set(sizes.values())) > 1 or len(sizes) <= 2


def test_each_dtype_has_a_long_row_for_each_distribution_and_once_a_single_row() -> None:
    op = catalog.load("softmax")
    *many, single = long_rows(op, anything, random.Random(1), 2**21)
    assert {workload.dtype for workload in many} == {*op.dtypes}
    assert met(op, tuple(many), "rows") == {1 + len(op.values)}
    assert met(op, (single,), "rows") == {1}
    longest = max(sizes_of(op, workload)["cols"] for workload in (*op.emulated, *op.awkward))
    assert met(op, (*many, single), "cols") == {longest}


def test_there_are_no_long_rows_where_rows_depend_on_each_other_or_are_images() -> None:
    for name in ("clip_grad_norm", "sum_columns", "conv2d", "relu"):
        assert not long_rows(catalog.load(name), anything, random.Random(1), 2**21)


def test_a_negative_parameter_is_tested_with_infinities_a_vanishing_term_with_nan_too_and_no_eps_with_zeros() -> None:
    slope, softmax = catalog.load("leaky_relu"), catalog.load("masked_softmax")

    def tested(op: Op, **parameters: float) -> set[str]:
        return {*extremes_that_matter(op, replace(op.emulated[0], parameters=tuple(parameters.items())))}

    assert tested(slope, negative_slope=-0.01) == {INFINITE}
    assert tested(slope, negative_slope=0.0) == {NAN, INFINITE, ZERO}
    assert tested(slope, negative_slope=10.0) == set()
    assert tested(softmax, scale=-0.125) == {INFINITE, f"x_{RUNS_OF_MINUS_INF}"}
    assert tested(catalog.load("rms_norm"), eps=0.0) == {ZERO}
    assert tested(catalog.load("rms_norm_backward"), eps=0.0) == set()
    assert any(tested(softmax, **dict(one.parameters)) for one in special_parameters(softmax, anything, 2**18))


def test_a_term_vanishes_where_a_parameter_is_zero_or_one_and_no_listed_one_is() -> None:
    slope, eps = catalog.load("leaky_relu"), catalog.load("layer_norm")

    def at(op: Op, **parameters: float) -> Workload:
        return replace(op.emulated[0], parameters=tuple(parameters.items()))

    assert has_vanishing_term(slope, at(slope, negative_slope=0.0))
    assert not has_vanishing_term(slope, at(slope, negative_slope=10.0))
    assert not has_vanishing_term(slope, slope.emulated[0])
    assert not has_vanishing_term(eps, at(eps, eps=0.0))


def test_a_size_is_a_small_multiple_of_several_others_that_must_divide_it() -> None:
    op = catalog.load("decode_attention")
    groups = {
        (known["heads"] // known["kv_heads"], known["kv_heads"] > 1)
        for known in map(op.sizes, (*op.listed, *small_quotients(op, lambda _: True, 2**18)))
    }
    assert groups >= {(2, True), (3, True), (4, True)}


def test_sizes_that_need_not_divide_each_other_get_no_quotients() -> None:
    assert small_quotients(catalog.load("softmax"), lambda _: True, 2**18) == ()

"""Held-out shapes, which no op file lists."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from chosen_ops import some
from each import each

from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import DTYPES, Op, Workload
from reference_ops.shapes import PAST_16_BITS, held_out, past_few_bits, powers_of_two, stretched

MOST_BYTES = 64 << 20
OPS = {name: catalog.load(name) for name in catalog.names()}
ops = each(OPS, quick=some())


def anything(_: Workload) -> bool:
    return True


@cache
def drawn(
    name: str, seed: int, accepts: Callable[[Workload], bool] = anything, most_bytes: int = MOST_BYTES
) -> tuple[Workload, ...]:
    """Return held-out shapes from a cache, because most tests use the same ones."""
    return held_out(catalog.load(name), accepts, random.Random(seed), 8, most_bytes)


def found(
    op: Op, accepts: Callable[[Workload], bool] = anything, most_bytes: int = MOST_BYTES, seeds: int = 5
) -> list[Workload]:
    return [w for seed in range(seeds) for w in drawn(op.name, seed, accepts, most_bytes)]


def size(workload: Workload, dim: str) -> int:
    return dict(workload.dims)[dim]


@ops
def test_the_requested_number_of_different_shapes_is_found(op: Op) -> None:
    for seed in range(5):
        assert len({(shape.dims, shape.parameters) for shape in drawn(op.name, seed)}) == 8


@ops
def test_no_shape_is_listed_in_the_ops_file(op: Op) -> None:
    listed = {(workload.dims, workload.parameters) for workload in (*op.gpu, *op.emulated, *op.awkward)}
    assert not {(shape.dims, shape.parameters) for shape in found(op)} & listed


@ops
def test_shapes_are_valid_and_small_enough_and_have_a_dtype_of_the_op(op: Op) -> None:
    for shape in found(op, most_bytes=1 << 20):
        assert op.is_valid(shape)
        assert op.least_bytes(shape) <= 1 << 20
        assert shape.dtype in op.dtypes


@ops
def test_pytorch_computes_every_shape(op: Op) -> None:
    for shape in found(op, most_bytes=1 << 14):
        outputs = op.call(inputs_at(op, shape, 0, "cpu"), shape)
        assert [tuple(output.shape) for output in outputs] == [op.shape(spec, shape) for spec in op.outputs]


@ops
def test_dims_lie_between_the_listed_sizes(op: Op) -> None:
    for shape in found(op):
        for name, value in shape.dims:
            listed = [size(workload, name) for workload in (*op.gpu, *op.emulated, *op.awkward)]
            assert min(listed) <= value <= max(listed)


@ops
def test_the_same_seed_gives_the_same_shapes(op: Op) -> None:
    assert drawn(op.name, 1) == held_out(op, anything, random.Random(1), 8, MOST_BYTES)
    assert drawn(op.name, 1) != drawn(op.name, 2)


def test_shapes_have_sizes_of_all_magnitudes_both_odd_and_round() -> None:
    cols = [size(shape, "cols") for shape in found(catalog.load("softmax"), seeds=20)]
    assert min(cols) < 100
    assert max(cols) > 10_000
    assert any(value % 128 == 0 for value in cols)
    assert any(value % 2 for value in cols)


@pytest.mark.parametrize(
    ("name", "accepts"),
    [
        ("softmax", lambda shape: size(shape, "cols") % 128 == 0 and size(shape, "cols") >= 2048),
        ("softmax", lambda shape: size(shape, "cols") == 4096),
        ("gelu", lambda shape: size(shape, "n") % 8 == 0 and size(shape, "n") > 1 << 22),
        ("causal_conv1d", lambda shape: size(shape, "length") % 8 == 0 and size(shape, "channels") >= 2048),
        ("topk", lambda shape: dict(shape.parameters)["k"] == 50),
    ],
    ids=["wide aligned rows", "one size alone", "large", "many channels", "one parameter"],
)
def test_kernels_with_narrow_conditions_get_shapes_too(name: str, accepts: Callable[[Workload], bool]) -> None:
    shapes = found(catalog.load(name), accepts)
    assert len(shapes) >= 20
    assert all(map(accepts, shapes))


def test_large_shapes_are_found_on_request() -> None:
    for name in ("gelu", "softmax", "causal_conv1d", "conv2d"):
        op = catalog.load(name)
        largest = min(2**31, max(op.nbytes(workload) for workload in op.gpu))
        shapes = [
            w for seed in range(10) for w in held_out(op, anything, random.Random(seed), 1, largest, largest // 4)
        ]
        assert len(shapes) >= 8
        assert all(largest // 4 <= op.nbytes(shape) <= largest for shape in shapes)
        assert not set(shapes) & set(op.gpu)
        assert sum(any(size % 2 for _, size in shape.dims) for shape in shapes) >= 6


def test_a_kernel_for_one_dtype_gets_a_large_shape_with_every_seed() -> None:
    """Without a large shape, a kernel that fails at large unlisted sizes could become a champion."""
    op = catalog.load("gelu")
    largest = max(op.nbytes(workload) for workload in op.gpu)
    for seed in range(100):
        rng = random.Random(seed)
        (shape,) = held_out(op, lambda tried: tried.dtype == "float32", rng, 1, largest, largest // 4)
        assert shape.dtype == "float32"


def test_a_kernel_that_accepts_only_listed_shapes_gets_none() -> None:
    op = catalog.load("softmax")
    assert found(op, lambda shape: shape in op.gpu) == []


def test_a_decay_near_one_remains_below_one() -> None:
    betas = {dict(w.parameters)["beta1"] for seed in range(30) for w in drawn_for("adamw", seed)}
    assert len(betas) > 10
    assert min(betas) >= 0.5
    assert max(betas) > 0.97


def test_parameters_are_held_out_too() -> None:
    k_of = {dict(w.parameters)["k"] for seed in range(30) for w in drawn_for("topk", seed)}
    eps_of = {dict(w.parameters)["eps"] for seed in range(30) for w in drawn_for("rms_norm", seed)}
    assert len(k_of - {1, 8, 31, 33, 50}) > 3
    assert len(eps_of - {1e-6}) > 3


def drawn_for(name: str, seed: int) -> tuple[Workload, ...]:
    return held_out(catalog.load(name), lambda _workload: True, random.Random(seed), 2, 2**18)


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "gelu", "argmax", "gemm", "cross_entropy", "layer_norm"])
def test_the_first_shape_has_only_unlisted_sizes_and_the_most_exact_dtype(name: str) -> None:
    """Otherwise a kernel that is right only at listed sizes could pass if only those or 16-bit dtypes are drawn."""
    listed = listed_sizes(catalog.load(name))
    for seed in range(50):
        first, _ = drawn_for(name, seed)
        assert first.dtype == "float32"
        assert not listed.intersection(first.dims)


def test_six_shapes_have_every_dtype_twice_and_once_with_unlisted_sizes_only() -> None:
    op = catalog.load("rms_norm")
    listed = listed_sizes(op)
    for seed in range(50):
        shapes = held_out(op, anything, random.Random(seed), 6, 2**18)
        assert sorted(shape.dtype for shape in shapes) == sorted(2 * op.dtypes)
        assert {shape.dtype for shape in shapes if not listed.intersection(shape.dims)} == set(op.dtypes)
    assert any(listed.intersection(shape.dims) for shape in found(op)), (
        "no shape has a listed size, although kernels may be made for one size of a dim"
    )


def test_no_size_can_be_predicted_from_the_memory_limit() -> None:
    """Most sizes in gelu's range exceed the limit. The largest one that fits would be predictable."""
    sizes = Counter(size(shape, "n") for seed in range(100) for shape in drawn_for("gelu", seed))
    ((_, times),) = sizes.most_common(1)
    assert times < sizes.total() / 20


def test_the_first_shape_has_a_tail_if_the_kernel_accepts_tails() -> None:
    assert all(size(drawn_for("gelu", seed)[0], "n") % 32 for seed in range(50))


def listed_sizes(op: Op) -> set[tuple[str, int]]:
    return {size for workload in (*op.gpu, *op.emulated, *op.awkward) for size in workload.dims}


def test_every_dim_is_stretched_beyond_the_largest_listed_size_where_there_is_room() -> None:
    shapes = stretched(catalog.load("softmax"), anything, random.Random(1), 2**21)
    listed = listed_sizes(catalog.load("softmax"))
    longest = max(cols for name, cols in listed if name == "cols")
    assert max(size(shape, "cols") for shape in shapes) > longest
    assert max(size(shape, "rows") for shape in shapes) > 16384


@each(OPS, quick=some())
def test_stretched_shapes_are_valid_and_small(op: Op) -> None:
    for seed in range(3):
        for shape in stretched(op, anything, random.Random(seed), 2**21):
            assert op.is_valid(shape)
            assert op.nbytes(shape) <= 2**21


def test_a_plane_of_more_than_65536_pixels_is_among_the_stretched_shapes_of_pooling() -> None:
    shapes = stretched(catalog.load("max_pool2d"), anything, random.Random(1), 2**21)
    assert max(size(shape, "h") * size(shape, "w") for shape in shapes) > 2**16


def test_a_sum_is_stretched_beyond_the_power_of_two_after_its_longest_listed_one() -> None:
    op = catalog.load("skinny_gemm")
    assert max(terms for name, terms in listed_sizes(op) if name == "k") < 2**14
    for seed in range(30):
        assert max(size(shape, "k") for shape in stretched(op, anything, random.Random(seed), 2**21)) > 2**14


def test_a_stretched_dim_is_odd_where_only_the_largest_multiple_below_it_fits() -> None:
    op = catalog.load("add_layer_norm_backward")
    for seed in range(60):
        shapes = stretched(op, lambda one: size(one, "rows") <= 4500, random.Random(seed), 2**22)
        assert any(size(shape, "rows") > 1000 and size(shape, "rows") % 2 for shape in shapes)


def test_only_accepted_shapes_are_stretched() -> None:
    shapes = stretched(catalog.load("softmax"), lambda w: size(w, "cols") % 128 == 0, random.Random(1), 2**21)
    assert shapes
    assert all(size(shape, "cols") % 128 == 0 for shape in shapes)


def test_the_places_of_a_volume_are_once_too_many_for_16_bits() -> None:
    drawn = past_few_bits(catalog.load("max_pool3d"), anything, random.Random(1), 2**21)
    assert any(size(w, "d") * size(w, "h") * size(w, "w") > 2**16 for w in drawn)


def test_two_planes_have_65536_places_each_where_places_in_volumes_are_inputs() -> None:
    pool = catalog.load("max_pool3d_backward")
    drawn = past_few_bits(pool, anything, random.Random(1), 2**21)
    planes = [w for w in drawn if {("d", 2), ("h", 256), ("w", 256)} <= {*w.parameters}]
    assert {DTYPES[w.dtype].itemsize for w in planes} == {2, 4}
    assert all(dict(w.parameters)["kernel"] > 1 for w in planes)
    assert all(pool.is_valid(workload) and pool.nbytes(workload) <= 2**21 for workload in drawn)
    others = past_few_bits(catalog.load("avg_pool3d_backward"), anything, random.Random(1), 2**21)
    assert not any(("h", 256) in w.parameters for w in others)


def test_a_dim_whose_least_size_is_listed_as_more_than_one_may_be_no_smaller() -> None:
    """Held-out sizes lie between the listed ones, so a smaller one that the op accepts would never be tested."""
    assert least("causal_conv1d", "width") == 1
    assert least("l2_norm", "cols") == 1
    assert not catalog.load("l2_normalize_backward").is_valid(
        replace(catalog.load("l2_normalize_backward").emulated[0], dims=(("rows", 4), ("cols", 1)))
    )


def least(name: str, dim: str) -> int:
    return min(size for at, size in listed_sizes(catalog.load(name)) if at == dim)


def test_each_long_dim_is_once_too_long_for_16_bits() -> None:
    gemm = catalog.load("gemm")
    drawn = past_few_bits(gemm, anything, random.Random(1), 2**21)
    longest = [max(workload.dims, key=lambda pair: pair[1])[0] for workload in drawn]
    assert sorted(longest) == ["k", "m", "n"]
    assert all(2**16 < max(dict(w.dims).values()) <= PAST_16_BITS[1] for w in drawn)
    assert all(gemm.nbytes(workload) <= 2**21 for workload in drawn)


def test_a_batch_size_is_once_too_large_for_8_bits_even_if_listed_ones_are_small() -> None:
    images = catalog.load("to_channels_last")
    assert max(count for name, count in listed_sizes(images) if name == "n") < 2**8
    assert any(size(w, "n") > 2**8 for w in past_few_bits(images, anything, random.Random(1), 2**21))


def test_a_dim_that_is_never_long_or_longer_already_does_not_pass_few_bits() -> None:
    drawn = past_few_bits(catalog.load("conv2d"), anything, random.Random(1), 2**21)
    assert max(size(workload, "r") for workload in drawn) <= 7
    assert not past_few_bits(catalog.load("relu"), anything, random.Random(1), 2**24)


def test_each_long_dim_is_once_a_power_of_two_and_the_other_dims_together() -> None:
    rows, features = powers_of_two(catalog.load("gemm"), anything, 2**18)
    assert (size(rows, "n"), size(features, "k")) == (2048, 1024)
    (rope,) = powers_of_two(catalog.load("rope"), anything, 2**18)
    assert size(rope, "half") == size(rope, "seq") == 64
    (conv,) = powers_of_two(catalog.load("conv2d"), anything, 2**18)
    assert all(size(conv, name).bit_count() == 1 for name in ("channels", "filters", "height", "width"))


def test_a_power_of_two_is_halved_until_the_kernel_accepts_it() -> None:
    (short,) = powers_of_two(catalog.load("softmax"), lambda one: size(one, "cols") < 1000, 2**18)
    assert size(short, "cols") == 512

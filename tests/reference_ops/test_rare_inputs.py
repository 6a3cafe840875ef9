"""Rare inputs: NaN in the only key that a query sees, positions that no integer holds, and norms near an eps."""

import math
import random

import pytest
import torch

from reference_ops import catalog
from reference_ops.distributions import ONLY_KEY_NAN, fill
from reference_ops.edges import exceeds_16_bits, with_other_elements
from reference_ops.inputs import inputs_at, seeds_of_both_signs
from reference_ops.op import DTYPES, INFINITE, Workload
from reference_ops.special_values import sprinkle

MOST_BYTES = 2**21


def called(name: str, *inputs: torch.Tensor, **parameters: float) -> tuple[torch.Tensor, ...]:
    """Return the outputs of an op's reference."""
    outputs = catalog.load(name).reference(*inputs, **parameters)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def at(name: str, values: str, dtype: str = "float32", seed: int = 1) -> dict[str, torch.Tensor]:
    op = catalog.load(name)
    workload = max((one for one in op.emulated if one.dtype == dtype), key=op.nbytes)
    return inputs_at(op, workload, seed, "cpu", values)


def test_every_other_row_of_a_masked_softmax_has_nan_in_its_only_visible_key() -> None:
    drawn = at("masked_softmax", ONLY_KEY_NAN)
    visible = ~drawn["mask"].unsqueeze(1).expand_as(drawn["x"])
    assert bool((visible.sum(-1) == 1).all())
    of_rows = drawn["x"].isnan().sum(-1).flatten()
    assert bool((of_rows[::2] == 1).all())
    assert not bool(of_rows[1::2].any())
    assert not bool((drawn["x"].isnan() & ~visible).any())


def test_the_gradient_of_the_only_visible_key_is_nan_in_every_other_row() -> None:
    drawn = at("masked_softmax_backward", "NaN_gradient_of_the_only_key")
    lost = drawn["grad_out"].isnan()
    assert bool((drawn["out"][lost] == 1).all())
    assert lost.sum(-1).flatten().tolist()[:4] == [1, 0, 1, 0]


@pytest.mark.parametrize("name", ["causal_attention", "grouped_query_attention", "sliding_window_attention"])
def test_the_first_query_of_a_causal_attention_is_once_nan(name: str) -> None:
    assert bool(at(name, "NaN_in_the_first_query")["q"][..., 0, :].isnan().any(-1).all())


@pytest.mark.parametrize("seed", [1, 2])
def test_sequences_of_one_key_have_nan_in_the_query_or_in_the_key(seed: int) -> None:
    drawn = at("decode_attention", "lengths_of_one_and_NaN", seed=seed)
    of_query, of_key = (drawn[name].isnan().flatten(1).any(1) for name in "qk")
    assert bool((drawn["lengths"] == 1).all())
    assert bool((of_query ^ of_key).all())
    assert bool(called("decode_attention", *drawn.values())[0].isnan().all())


def test_a_masked_softmax_gives_hidden_keys_zero_beside_nan_but_not_if_all_are_hidden() -> None:
    x, mask = torch.tensor([[[[math.nan, 1.0], [2.0, 3.0]]]]), torch.tensor([[[False, True], [True, True]]])
    assert repr(called("masked_softmax", x, mask, scale=1.0)[0].tolist()) == "[[[[nan, 0.0], [nan, nan]]]]"


@pytest.mark.parametrize("place", [math.nan, math.inf, -math.inf])
def test_a_position_that_is_not_finite_is_out_of_view_as_on_a_gpu(place: float) -> None:
    x, grid = torch.ones(1, 1, 2, 2), torch.tensor([[[[place, 0.0], [0.0, place], [0.0, 0.0]]]])
    assert called("grid_sample", x, grid)[0].flatten().tolist() == [0, 0, 1]
    grad_x, grad_grid = called("grid_sample_backward", torch.ones(1, 1, 1, 3), x, grid)
    assert float(grad_x.sum()) == 1
    assert grad_grid[0, 0, :2].flatten().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("name", ["grid_sample", "grid_sample_backward"])
def test_some_positions_are_nan_and_some_are_beyond_all_integers(name: str) -> None:
    assert 0 < int(at(name, "NaN_in_grid")["grid"].isnan().sum()) < 1000
    far = at(name, "places_beyond_integers")["grid"]
    assert bool((far.isinf() & (far > 0)).any())
    assert bool((far.isfinite() & (far.abs() > 2**31)).any())


@pytest.mark.parametrize("name", ["l2_normalize", "l2_normalize_backward"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms_are_once_on_both_sides_of_the_eps(name: str, dtype: str) -> None:
    norms = torch.linalg.vector_norm(at(name, "norms_near_eps", dtype)["x"].double(), dim=-1) / 1e-12
    assert 0.3 < float(norms.min()) < 0.9
    assert 1.1 < float(norms.max()) < 3.1


def test_a_long_shape_occurs_with_elements_of_each_size_that_the_kernel_accepts() -> None:
    op, long = catalog.load("softmax"), (Workload("float32", (("rows", 2), ("cols", 70_000))),)
    others = with_other_elements(op, long, lambda _: True, random.Random(1), MOST_BYTES)
    assert [(one.dims, DTYPES[one.dtype].itemsize) for one in others] == [(long[0].dims, 2)]
    assert with_other_elements(op, others, lambda _: True, random.Random(1), MOST_BYTES) == long
    assert not with_other_elements(op, long, lambda one: one.dtype == "float32", random.Random(1), MOST_BYTES)


@pytest.mark.parametrize(("h", "w", "exceeds"), [(1, 70_000, True), (256, 256, True), (255, 257, False)])
def test_a_shape_exceeds_16_bits_if_a_size_or_an_image_does(h: int, w: int, exceeds: bool) -> None:
    sizes = (("n", 1), ("c", 1), ("h", h), ("w", w))
    parameters = (("kernel", 1), ("stride", 1), ("padding", 0))
    assert exceeds_16_bits(catalog.load("avg_pool2d"), Workload("float32", sizes, parameters)) == exceeds


@pytest.mark.parametrize("size", [2, 3])
def test_infinite_weights_have_both_signs_however_few_there_are(size: int) -> None:
    for seed in range(50):
        matrix = torch.zeros(1, size)
        sprinkle(matrix, math.inf, torch.Generator().manual_seed(seed))
        assert {math.inf, -math.inf} <= {*matrix.flatten().tolist()}


def test_infinities_of_three_rows_have_both_signs() -> None:
    for seed in range(50):
        rows = torch.zeros(3, 5)
        fill(rows, INFINITE, torch.Generator().manual_seed(seed))
        assert {math.inf, -math.inf} <= {*rows.flatten().tolist()}


@pytest.mark.parametrize("seed", range(8))
def test_infinities_of_a_single_row_have_both_signs_in_two_draws(seed: int) -> None:
    op = catalog.load("masked_softmax")
    single = next(one for one in op.awkward if dict(one.dims)["batch"] == 1 and dict(one.dims)["keys"] > 1)
    seeds = seeds_of_both_signs(op, single, INFINITE, random.Random(seed))
    x = torch.stack([inputs_at(op, single, one, "cpu", INFINITE)["x"].flatten() for one in seeds])
    assert {*x[x.isinf()].tolist()} == {math.inf, -math.inf}
    several = next(one for one in op.awkward if dict(one.dims)["batch"] > 1)
    assert len(seeds_of_both_signs(op, several, INFINITE, random.Random(seed))) == 1

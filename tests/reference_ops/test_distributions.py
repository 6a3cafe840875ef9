"""Distributions of inputs, in every dtype and on parts of a tensor."""

import pytest
import torch
from each import each

from reference_ops.distributions import DRAWS, LARGEST_INTEGER, fill
from reference_ops.op import COMMON, DISTRIBUTIONS, EXACT, NORMAL

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SHAPES = [(1,), (5,), (1, 1), (3, 1, 7), (2, 3, 4, 5)]
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def drawn(values: str, dtype: torch.dtype, shape: tuple[int, ...] = (64, 256), seed: int = 7) -> torch.Tensor:
    tensor = torch.full(shape, torch.nan, dtype=dtype)
    fill(tensor, values, torch.Generator().manual_seed(seed))
    return tensor


def test_every_distribution_that_an_op_may_name_can_be_drawn() -> None:
    assert set(DISTRIBUTIONS) == DRAWS.keys()


@each({f"{values} {dtype}": (values, dtype) for values in sorted(DRAWS.keys() - {"masked"}) for dtype in FLOATS})
def test_numbers_are_finite_and_so_are_sums_of_a_few(values: str, dtype: torch.dtype) -> None:
    tensor = drawn(values, dtype, (64, 4096))
    assert tensor.isfinite().all()
    assert (tensor[0] + tensor[1] + tensor[2] + tensor[3]).isfinite().all()


@each({f"{values} {dtype}": (values, dtype) for values in DRAWS for dtype in FLOATS})
def test_equal_seeds_give_equal_numbers_and_different_seeds_different_ones(values: str, dtype: torch.dtype) -> None:
    assert torch.equal(drawn(values, dtype), drawn(values, dtype))
    assert not torch.equal(drawn(values, dtype), drawn(values, dtype, seed=8))


@pytest.mark.parametrize("values", DRAWS)
def test_filling_every_third_row_does_not_change_the_others(values: str) -> None:
    tensor = torch.full((10, 8), torch.nan)
    fill(tensor[1::3], values, torch.Generator().manual_seed(0))
    written = ~tensor.isnan().any(dim=1)
    assert written.tolist() == [row % 3 == 1 for row in range(10)]


@each({f"{values} {shape}": (values, shape) for values in DRAWS for shape in SHAPES})
def test_a_tensor_of_any_shape_is_filled(values: str, shape: tuple[int, ...]) -> None:
    assert not drawn(values, torch.bfloat16, shape).isnan().any()


def test_uniform_numbers_lie_between_zero_and_one_with_a_mean_of_a_half() -> None:
    tensor = drawn("uniform", torch.float32)
    assert tensor.min() >= 0
    assert tensor.max() <= 1
    assert abs(tensor.mean() - 0.5) < 0.01


@dtypes
def test_an_exponential_of_large_numbers_overflows_in_float32(dtype: torch.dtype) -> None:
    assert drawn("large", dtype).float().exp().isinf().any(dim=1).all()


@dtypes
def test_squares_of_large_numbers_overflow_in_float16(dtype: torch.dtype) -> None:
    tensor = drawn("large", dtype)
    assert tensor.to(torch.float16).square().isinf().any()
    assert tensor.float().square().sum(dim=1).isfinite().all()


@dtypes
def test_a_few_elements_of_a_heavy_tail_make_up_most_of_the_squares(dtype: torch.dtype) -> None:
    squares = drawn("heavy_tail", dtype).double().square().flatten().sort(descending=True).values
    assert squares[: len(squares) // 100].sum() > 0.8 * squares.sum()


@dtypes
def test_integers_are_exact_and_small_and_all_occur(dtype: torch.dtype) -> None:
    assert drawn(EXACT, dtype).unique().tolist() == list(range(-LARGEST_INTEGER, LARGEST_INTEGER + 1))


@dtypes
def test_constant_rows_hold_one_number_each_and_differ(dtype: torch.dtype) -> None:
    tensor = drawn("constant", dtype, (8, 3, 16))
    firsts = tensor[:, :1, :1]
    assert torch.equal(tensor, firsts.expand_as(tensor))
    assert len(firsts.unique()) > 1


@pytest.mark.parametrize("power", [1, 2])
def test_sums_of_constants_and_of_their_squares_are_exact_in_any_order(power: int) -> None:
    terms = drawn("constant", torch.float32, (64, 4096)) ** power
    one_after_another = torch.zeros(64)
    for column in terms.T:
        one_after_another += column
    assert torch.equal(one_after_another.double(), terms.double().sum(-1))


@pytest.mark.parametrize(("values", "across"), [("shifted", (1, 2, 3)), ("shifted_columns", (0, 2, 3))])
def test_each_row_or_column_has_its_own_centre(values: str, across: tuple[int, ...]) -> None:
    deviations, centres = torch.std_mean(drawn(values, torch.float32, (64, 48, 5, 5)), across)
    assert deviations.max() < 1.2
    assert 150 < centres.std() < 400


@dtypes
def test_about_a_quarter_of_constant_rows_are_zero(dtype: torch.dtype) -> None:
    tensor = drawn("constant", dtype, (400, 3, 16))
    zero = tensor.eq(0).flatten(1).all(1)
    assert abs(zero.float().mean() - 0.25) < 0.1
    assert not tensor[zero].signbit().any()


@pytest.mark.parametrize("cols", [1, 2, 3, 256])
@dtypes
def test_masked_rows_keep_a_finite_entry(dtype: torch.dtype, cols: int) -> None:
    tensor = drawn("masked", dtype, (200, cols))
    assert tensor.isfinite().any(dim=1).all()
    assert tensor[~tensor.isfinite()].eq(-torch.inf).all()


def test_masked_rows_have_minus_inf_in_a_run_at_one_end_or_at_random_places() -> None:
    masked = drawn("masked", torch.float32, (300, 64)).isinf()
    first, last = masked[:, :32].all(1), masked[:, 32:].all(1)
    for run in (first, last):
        assert abs(run.float().mean() - 1 / 3) < 0.01
    assert abs(masked[~(first | last)].float().mean() - 0.5) < 0.02


def test_the_last_element_is_never_a_number_where_rows_hold_nan() -> None:
    for seed in range(5):
        assert drawn("NaN", torch.float32, (9, 40), seed)[-1, -1].isnan()
        assert drawn("NaN", torch.float32, (100,), seed)[-1].isnan()


@dtypes
def test_ties_are_few_distinct_numbers_with_zeros_of_both_signs(dtype: torch.dtype) -> None:
    tensor = drawn("ties", dtype)
    zeros = tensor[tensor == 0]
    assert len(tensor.unique()) <= 7
    assert zeros.signbit().any()
    assert not zeros.signbit().all()


@dtypes
def test_tiny_numbers_reach_down_to_subnormals(dtype: torch.dtype) -> None:
    sizes = drawn("tiny", dtype, (64, 4096)).abs()
    subnormal = (sizes > 0) & (sizes < torch.finfo(dtype).smallest_normal)
    assert subnormal.any()
    assert sizes.max() < 0.05


@dtypes
def test_mean_squares_of_tiny_numbers_are_about_as_large_as_an_eps(dtype: torch.dtype) -> None:
    means = drawn("tiny", dtype).double().square().mean(dim=1)
    assert 1e-7 < means.min() < means.max() < 1e-4


WIDE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)


@WIDE
def test_faint_numbers_underflow_float16_but_their_products_are_normal_in_float32(dtype: torch.dtype) -> None:
    tensor = drawn("faint", dtype)
    assert not tensor.half().any()
    assert tensor.double().square().mean() > 2**20 * torch.finfo(torch.float32).smallest_normal


@WIDE
def test_vast_numbers_overflow_in_float16_but_sums_of_their_products_do_not_in_float32(dtype: torch.dtype) -> None:
    tensor = drawn("vast", dtype)
    assert tensor.half().isinf().float().mean() > 0.9
    assert tensor.float().square().sum().isfinite()


@pytest.mark.parametrize("values", ["faint", "vast"])
def test_float16_gets_normal_numbers_instead_of_those_beyond_its_range(values: str) -> None:
    assert torch.equal(drawn(values, torch.float16), drawn(NORMAL, torch.float16))


def test_the_common_distributions_are_defined() -> None:
    assert set(COMMON) < set(DRAWS)

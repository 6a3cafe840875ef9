"""Expected outputs, and the change of each element when inputs are rounded."""

from dataclasses import replace

import pytest
import torch

from evolve.evaluation.truth import Truth, defined, truth
from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import EQUAL_INFINITIES, INFINITE, NAN, OPPOSITE_INFINITIES, Op, Tolerance, Workload, tensors

UNIT = 2.0**-24
ROWS, COLS = 32, 64
WORKLOAD = Workload("float32", (("rows", ROWS), ("cols", COLS)))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make each test independent of earlier tests."""
    torch.manual_seed(5)


def summing(**inputs: torch.Tensor) -> Truth:
    """Return the truth about row sums of the given inputs, or of normally distributed ones."""
    x, out, places = tensors(x="rows cols"), tensors(out="rows"), (WORKLOAD,)
    op = Op("summing", lambda x: x.sum(-1), x, out, places, places, flops=lambda _: ROWS * COLS)
    return truth(op, WORKLOAD, "normal", 3, inputs or inputs_at(op, WORKLOAD, 3, "cpu"))


def test_a_sum_of_larger_terms_moves_farther() -> None:
    x = torch.randn(ROWS, COLS)
    x[7] *= 1000
    moved = summing(x=x).perturbed[0]
    assert moved[7] == pytest.approx(1000 * UNIT * COLS**0.5, rel=0.8)
    assert moved[torch.arange(ROWS) != 7].median() == pytest.approx(UNIT * COLS**0.5, rel=0.3)


@pytest.mark.parametrize(("dtype", "alike"), [(torch.bfloat16, True), (torch.float16, True), (torch.float32, False)])
def test_equal_numbers_of_16_bits_change_alike_so_that_their_roundings_add_up(dtype: torch.dtype, alike: bool) -> None:
    moved = summing(x=torch.full((ROWS, COLS), -516.0, dtype=dtype)).perturbed[0]
    assert moved.median() == pytest.approx(516 * UNIT * (COLS if alike else COLS**0.5), rel=0.6)


def test_a_variance_by_welford_is_right_where_few_numbers_differ_although_pytorch_has_no_rounding_there() -> None:
    """The means of three numbers round alike in the whole row. PyTorch adds up powers of two, which is exact here."""
    x = torch.full((ROWS, 768), -516.0, dtype=torch.bfloat16)
    x[:, ::19] = -512.0
    wide, place = tensors(x="rows cols"), Workload("bfloat16", (("rows", ROWS), ("cols", 768)))
    op = Op("variance", _variance, wide, tensors(out="rows"), (place,), (place,), flops=lambda _: ROWS)
    known = truth(op, place, "normal", 3, {"x": x})
    exact = known.expected[0].float()
    lucky = replace(known, pytorch=(exact,))
    assert not any(comparison.fault for _, comparison in lucky.judged(0, _by_welford(x.float(), 256)))
    assert any(comparison.fault for _, comparison in lucky.judged(0, exact * 1.0005))


@pytest.mark.parametrize(("dtype", "dim"), [("float16", 128), ("float16", 64), ("bfloat16", 128)])
def test_scores_may_be_cut_off_as_by_tensor_cores_but_not_rounded_to_16_bits(dtype: str, dim: int) -> None:
    op = catalog.load("attention")
    dims = {"batch": 2, "heads": 2, "queries": 40, "keys": 30, "dim": dim}
    place = Workload(dtype, tuple(dims.items()))
    known = truth(op, place, "uniform", 3, inputs_at(op, place, 3, "cpu", "uniform"))
    scores = _scores_of_tensor_cores(known.inputs["q"].double(), known.inputs["k"].double())
    cut, rounded = scores.float() * dim**-0.5, scores.half().float() * dim**-0.5
    assert known.fault(1, cut.logsumexp(-1)) == ""
    assert known.fault(1, rounded.logsumexp(-1)) != ""


def _scores_of_tensor_cores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Add 16 products at a time to the sum so far, all cut off below 25 bits of the largest, and the sum below 23 bits.

    Then `lse` errs here by 4.0e-6 for 128 products in float16, 1.1e-6 for 64, and 1.2e-6 for 128 in bfloat16. Kernels
    with mma.sync and wgmma err by 4.2e-6, 1.1e-6 and 1.4e-6 on an H200.
    """
    total = q.new_zeros(*q.shape[:3], k.shape[2])
    for products in (q.unsqueeze(3) * k.unsqueeze(2)).split(16, -1):
        largest = torch.maximum(products.abs().amax(-1), total.abs())
        added = _cut(products, largest.unsqueeze(-1), 25).sum(-1) + _cut(total, largest, 25)
        total = _cut(added, added.abs(), 23)
    return total


def _cut(x: torch.Tensor, largest: torch.Tensor, bits: int) -> torch.Tensor:
    unit = torch.exp2(largest.clamp(min=1e-30).log2().floor() - bits)
    return (x / unit).trunc() * unit


def _variance(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32)).var(-1, unbiased=False)


def _by_welford(x: torch.Tensor, threads: int) -> torch.Tensor:
    """Return the variances of rows in float32, each thread adding one number after the other, then pairs of threads."""
    mean, squares = torch.zeros(2, len(x), threads)
    for count, part in enumerate(x.split(threads, 1), 1):
        off = part - mean
        mean = mean + off / count
        squares = squares + off * (part - mean)
    of_each = x.shape[1] / threads
    while mean.shape[1] > 1:
        (left, right), (of_left, of_right) = mean.chunk(2, 1), squares.chunk(2, 1)
        mean, squares = left + (right - left) / 2, of_left + of_right + (right - left) ** 2 * of_each / 2
        of_each *= 2
    variances: torch.Tensor = squares[:, 0] / x.shape[1]
    return variances


def test_a_sum_that_one_thread_may_compute_changes_as_much_as_its_partial_sums() -> None:
    known = summing()
    in_turn = replace(known, op=replace(known.op, tolerance=Tolerance(in_turn="cols")))
    assert float((in_turn.perturbed[0] / known.perturbed[0]).median()) == pytest.approx((COLS / 12) ** 0.5)


def test_an_input_that_follows_from_the_others_is_not_perturbed() -> None:
    """An error of the mean would move all terms in the same direction, and their sum with them."""
    x = torch.rand(ROWS, COLS)
    declared, out = tensors(x="rows cols", mean="rows"), tensors(out="rows")
    op = Op("centred", _centred, declared, out, (WORKLOAD,), (WORKLOAD,), flops=lambda _: ROWS * COLS)
    alone = truth(op, WORKLOAD, "normal", 3, {"x": x, "mean": x.mean(-1)})
    given = replace(alone, op=replace(op, tolerance=Tolerance(given=("mean",))))
    assert alone.perturbed[0].median() > 3 * given.perturbed[0].median() > 0


def _centred(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    return (x - mean[:, None]).sum(-1)


def test_integers_are_not_perturbed() -> None:
    assert summing(x=torch.ones(ROWS, COLS, dtype=torch.int32)).perturbed[0].tolist() == [0.0] * ROWS


def test_an_infinite_result_does_not_move() -> None:
    x = torch.randn(ROWS, COLS)
    x[5, 5] = -torch.inf
    moved = summing(x=x).perturbed[0]
    assert moved[5] == 0
    assert bool(moved.isfinite().all())


def test_no_error_is_explained_if_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("the GPU's memory is full")

    known = summing()
    assert not known.short_of_memory
    monkeypatch.setattr(Op, "call_in_float64", full)
    assert known.perturbed[0].tolist() == [0.0] * ROWS
    assert known.short_of_memory
    assert known.fault(0, known.pytorch[0] + 1e-3) != ""


def test_the_inputs_are_not_modified() -> None:
    x = torch.randn(ROWS, COLS, dtype=torch.float64)
    known = summing(x=x.clone())
    assert known.perturbed
    assert torch.equal(known.inputs["x"], x)


def test_one_of_a_few_sums_may_be_off_if_its_terms_cancel() -> None:
    """PyTorch's result happens to be exact."""
    x = torch.randn(ROWS, COLS)
    x[0] = torch.cat([torch.full((COLS // 2,), 1e4 / 3), torch.full((COLS // 2,), -1e4 / 3)])
    in_turn = x.flip(0).cumsum(-1)[:, -1].flip(0)
    in_turn[0] = 2e-3
    known = summing(x=x)
    assert known.fault(0, in_turn) == ""
    in_turn[1] += 2e-3
    assert "[1]" in known.fault(0, in_turn)


def clipped(values: str, **inputs: torch.Tensor) -> Truth:
    """Return the truth about a clamp at zero. There are so few inputs that all may be negative."""
    place = Workload("float32", (("n", 2),))
    op = Op("clipped", lambda x: x.clamp(min=0), tensors(x="n"), tensors(out="n"), (place,), (place,), lambda _: 2)
    return truth(op, place, values, 3, inputs or inputs_at(op, place, 3, "cpu", values))


def test_a_few_results_that_happen_to_be_zero_are_compared_by_their_usual_error() -> None:
    known = clipped("large", x=torch.tensor([-700.0, -1200.0]))
    assert known.fault(0, torch.tensor([-6e-9, 0.0])) == ""
    assert "[1]" in known.fault(0, torch.tensor([0.0, 2e-3]))


def test_a_few_results_that_pytorch_happens_to_get_right_are_compared_by_its_usual_error() -> None:
    """The numbers happen to be equal in this draw and differ in others."""
    place = Workload("float32", (("n", 2),))
    known = clipped("normal", x=torch.tensor([1.0, 1.0]))
    op = replace(known.op, reference=lambda x: ((1000 + x) - 1000).sum())
    known = truth(replace(op, outputs=tensors(out="")), place, "normal", 3, known.inputs)
    assert known.pytorch[0] == 2
    assert known.fault(0, torch.tensor(2.00003)) == ""
    assert known.fault(0, torch.tensor(2.003)) != ""


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int32, torch.bool])
def test_a_few_results_of_any_dtype_have_usual_errors(dtype: torch.dtype) -> None:
    known = clipped("normal")
    known = replace(known, op=replace(known.op, reference=lambda x: x.clamp(min=0).to(dtype)))
    assert list(known.usual_errors) == [(0, known.groups(0)[0])]
    assert 0 < known.usual_errors[0, known.groups(0)[0]] < 1e-6


def test_the_usual_error_of_a_few_results_is_rarely_underestimated() -> None:
    """Otherwise a right sum of one row is refused where PyTorch's own error happened to be small in most draws."""
    place = Workload("float32", (("n", 4104),))
    op = replace(clipped("normal").op, reference=lambda x: x.sum(), inputs=tensors(x="n"), outputs=tensors(out=""))
    usual, errors = [], []
    for seed in range(0, 4000, 40):
        known = truth(op, place, "normal", seed, inputs_at(op, place, seed, "cpu"))
        usual.append(known.usual_errors[0, known.groups(0)[0]])
        error = (known.pytorch[0].double() - known.expected[0]).abs()
        errors.append(float((error - UNIT * known.expected[0].abs()).clamp(min=0)))
    true = float(torch.tensor(errors, dtype=torch.float64).square().mean().sqrt())
    assert sum(one < true for one in usual) <= len(usual) // 5


def test_a_few_results_that_are_always_small_are_compared_as_such() -> None:
    known = clipped("faint", x=torch.tensor([-1e-9, -2e-9]))
    assert "[0]" in known.fault(0, torch.tensor([-1e-14, 0.0]))
    assert known.fault(0, torch.tensor([-1e-17, 0.0])) == ""


def test_the_sizes_that_a_reference_accepts_are_found_by_calls() -> None:
    def in_pairs(x: torch.Tensor) -> torch.Tensor:
        assert len(x) % 2 == 0, "an odd number"
        return x.reshape(-1, 2).sum(1)

    def of(n: int) -> Workload:
        return Workload("float32", (("n", n),))

    listed = (of(8),)
    x, out = tensors(x="n"), tensors(out="pairs")
    op = Op("in_pairs", in_pairs, x, out, listed, listed, derived={"pairs": lambda known: known["n"] // 2},
            flops=lambda known: known["n"])  # fmt: skip
    assert [defined(op, of(n), "cpu") for n in (8, 9, 10)] == [True, False, True]


def test_results_of_8_bits_are_tested_for_finite_values_too() -> None:
    op = catalog.load("quantise_rows_fp8")
    workload = op.emulated[0]
    assert any(output.element_size() == 1 for output in op.call(inputs_at(op, workload, 0, "cpu"), workload))
    assert defined(op, workload, "cpu", finite=True)


def test_an_error_that_rounding_makes_large_is_found_even_if_pytorch_is_exact_by_chance() -> None:
    """The error of 1 - n * n for a rounded n near 1 follows from n's rounding, not from roundings of the inputs."""
    x = torch.linspace(0, 6, ROWS * COLS).view(ROWS, COLS)
    declared, out = tensors(x="rows cols"), tensors(out="rows cols")
    op = Op("slope", lambda x: 1 - x.tanh().square(), declared, out, (WORKLOAD,), (WORKLOAD,), flops=lambda _: 1)
    known = truth(op, WORKLOAD, "normal", 3, {"x": x})
    late, early = known.repeated_errors[0][-1] / known.expected[0][-1], known.repeated_errors[0][0]
    assert late.median() > 100 * UNIT
    assert early.median() < 2 * UNIT
    assert late.median() > 10 * (known.perturbed[0][-1] / known.expected[0][-1]).median()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_exact_division_by_pytorch_has_the_error_of_values_nearby(dtype: str) -> None:
    """The gradient of x / |x| is exactly 0 where only one x is not, and a power of two divides exactly."""
    op, workload = catalog.load("l2_normalize_backward"), Workload(dtype, (("rows", ROWS), ("cols", 2)))
    inputs = inputs_at(op, workload, 3, "cpu")
    inputs["x"].copy_(torch.tensor([0.0, 0.25]))
    inputs["grad_out"].copy_(torch.tensor([3.0, 5.0]))
    known = truth(op, workload, "normal", 3, inputs)
    assert not known.expected[0][:, 1].any()
    assert not known.pytorch[0][:, 1].any()
    assert known.repeated_errors[0][:, 1].median() == pytest.approx(UNIT * 5 / 0.25, rel=0.9)


def test_a_row_divided_by_its_norm_has_right_gradients_in_any_order_of_products() -> None:
    op = catalog.load("l2_normalize_backward")
    for dtype in ("float32", "float16", "bfloat16"):
        workload = Workload(dtype, (("rows", 20011), ("cols", 2)))
        inputs = inputs_at(op, workload, 3, "cpu", "heavy_tail")
        grad_out, x = inputs["grad_out"].float(), inputs["x"].float()
        scale = 1 / x.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-12)
        share = (x * grad_out).sum(-1, keepdim=True) * scale * scale
        found = ((grad_out - x * share) * scale).to(inputs["x"].dtype)
        assert not truth(op, workload, "heavy_tail", 3, inputs).fault(0, found)


def judged_with_nan_for_infinities(**outputs: str) -> str:
    """Return the fault that is found if infinities in the last output of an op, the mean of each row, become NaN."""
    declared, results = tensors(x="rows cols"), tensors(**outputs)
    reference = (lambda x: (x - x.mean(-1, keepdim=True), x.mean(-1))) if len(results) > 1 else (lambda x: x.mean(-1))
    op = Op("centred", reference, declared, results, (WORKLOAD,), (WORKLOAD,), flops=lambda _: ROWS * COLS)
    known = truth(op, WORKLOAD, INFINITE, 3, inputs_at(op, WORKLOAD, 3, "cpu", INFINITE))
    means = known.pytorch[-1]
    assert bool(means.isinf().any())
    return known.fault(len(results) - 1, torch.where(means.isinf(), torch.nan, means))


def test_the_mean_of_a_row_with_an_infinity_may_be_nan_where_the_row_is_nan() -> None:
    assert judged_with_nan_for_infinities(centred="rows cols", mean="rows") == ""


def test_a_single_output_that_is_infinite_may_not_be_nan() -> None:
    assert "not finite where they should be" in judged_with_nan_for_infinities(mean="rows")


@pytest.mark.parametrize("values", [EQUAL_INFINITIES, OPPOSITE_INFINITIES])
def test_a_difference_of_equal_infinities_must_be_nan(values: str) -> None:
    op = catalog.load("mse")
    known = truth(op, op.emulated[0], values, 3, inputs_at(op, op.emulated[0], 3, "cpu", values))
    assert bool(known.pytorch[0].isnan()) == (values == EQUAL_INFINITIES)
    assert known.fault(0, known.pytorch[0]) == ""
    assert "not finite where they should be" in known.fault(0, torch.tensor(1.0))


def bump(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-x.square())


def test_a_gate_that_large_numbers_saturate_depends_on_nan_nevertheless() -> None:
    declared, results = tensors(x="rows cols"), tensors(out="rows cols")
    op = Op("bump", bump, declared, results, (WORKLOAD,), (WORKLOAD,), flops=lambda _: ROWS * COLS)
    known = truth(op, WORKLOAD, NAN, 3, inputs_at(op, WORKLOAD, 3, "cpu", NAN))
    assert bool(known.pytorch[0].isnan().any())
    assert "not finite where they should be" in known.fault(0, known.pytorch[0].nan_to_num(0.0))


def test_a_use_of_a_parameter_has_finite_results() -> None:
    op = catalog.load("adamw")
    zero = replace(op.emulated[0], parameters=tuple((n, 0 if n == "step" else v) for n, v in op.emulated[0].parameters))
    assert not defined(op, zero, "cpu", finite=True)  # at step 0 the bias corrections divide by zero
    assert defined(op, op.emulated[0], "cpu", finite=True)


@pytest.mark.parametrize("name", ["gelu", "geglu", "gemm_bias_gelu", "conv2d_bias_gelu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pytorch_does_not_leave_gelu_of_infinity_open(name: str, dtype: str) -> None:
    """PyTorch's vectorised code on the CPU returns NaN for it."""
    op = catalog.load(name)
    workload = next(one for one in op.emulated if one.dtype == dtype)
    for values in (INFINITE, *(one for one in (EQUAL_INFINITIES, OPPOSITE_INFINITIES) if one in op.arrangements)):
        known = truth(op, workload, values, 3, inputs_at(op, workload, 3, "cpu", values))
        infinite = known.expected[0].isinf()
        assert bool(infinite.any())
        assert torch.equal(known.pytorch[0][infinite].double(), known.expected[0][infinite])


def test_a_fault_of_the_gpu_in_pytorch_itself_is_named() -> None:
    def crashing(x: torch.Tensor) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    places = (WORKLOAD,)
    op = Op("crashing", crashing, tensors(x="rows cols"), tensors(out="rows"), places, places, flops=lambda _: 1)
    for use in (lambda: defined(op, WORKLOAD, "cpu"), lambda: truth(op, WORKLOAD, "normal", 3, {"x": torch.ones(2)})):
        with pytest.raises(torch.AcceleratorError) as caught:
            use()
        assert caught.value.__notes__ == ["while PyTorch computed the expected results at rows=32 cols=64 float32"]

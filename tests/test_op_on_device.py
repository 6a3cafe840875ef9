"""Tests of the speed of light, which follows from the bytes to move and the rate of the units for the arithmetic."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from records import GPU
from small_op import OP

from archive.library import shipped
from evolve.op_on_device import accepts_any, speed_of_light, without_tensor_cores_us
from reference_ops import catalog
from reference_ops.op import Op, Workload

RATES = (("float32", 50.0), ("tf32", 400.0), ("bfloat16", 800.0), ("float16", 800.0))
DEVICE = replace(GPU, copy_gb_s=4000.0, tflops=RATES)


def billions(_: Mapping[str, int]) -> int:
    return 8 * 10**9


def nothing(_: Mapping[str, int]) -> int:
    return 0


PRODUCT = replace(OP, flops=nothing, matrix_flops=billions)


def at(op: Op, dtype: str) -> Workload:
    return replace(op.gpu[0], dtype=dtype)


def test_bytes_move_at_the_copy_rate() -> None:
    workload = OP.gpu[0]
    assert speed_of_light(OP, workload, DEVICE).bytes_us == pytest.approx(OP.least_bytes(workload) / 4000e3)


@pytest.mark.parametrize(
    ("op", "dtype", "expected_us"),
    [
        (replace(OP, flops=billions), "bfloat16", 160.0),
        (PRODUCT, "bfloat16", 10.0),
        (PRODUCT, "float32", 30.0),
        (replace(PRODUCT, tf32=True), "float32", 10.0),
        (replace(PRODUCT, flops=billions), "bfloat16", 160.0),
        (replace(PRODUCT, flops=billions), "float32", 160.0),
    ],
    ids=["ordinary", "tensor cores", "three float16 products", "float16 for TF32", "both at once", "both in float32"],
)
def test_arithmetic_runs_at_the_rate_of_the_fastest_units(op: Op, dtype: str, expected_us: float) -> None:
    assert speed_of_light(op, at(op, dtype), DEVICE).arithmetic_us == pytest.approx(expected_us)


def test_without_fast_halves_float32_products_run_beside_the_ordinary_arithmetic() -> None:
    op, device = replace(PRODUCT, flops=billions), replace(DEVICE, tflops=RATES[:1])
    assert speed_of_light(op, at(op, "float32"), device).arithmetic_us == pytest.approx(320.0)


def test_the_time_without_tensor_cores_is_at_the_ordinary_rate() -> None:
    assert without_tensor_cores_us(PRODUCT, at(PRODUCT, "bfloat16"), DEVICE) == pytest.approx(160.0)


def test_without_known_rates_the_bound_is_zero() -> None:
    assert speed_of_light(PRODUCT, at(PRODUCT, "float16"), replace(DEVICE, copy_gb_s=0.0, tflops=())).us == 0


def test_bytes_that_need_not_be_read_do_not_count() -> None:
    halved = replace(OP, touched={OP.inputs[0].name: lambda _: 10})
    workload = halved.gpu[0]
    whole = OP.bytes_of(OP.inputs[:1], workload)
    itemsize = 2 if workload.dtype == "bfloat16" else 4
    assert OP.least_bytes(workload) - halved.least_bytes(workload) == whole - 10 * itemsize
    assert halved.nbytes(workload) == OP.least_bytes(workload)


def test_a_kernel_for_long_rows_accepts_no_workload_of_the_emulated_device() -> None:
    softmax = catalog.load("softmax")
    long = next(kernel for kernel in shipped("softmax") if "65536" in kernel.plan.when)
    assert accepts_any(long, softmax, "cuda")
    assert not accepts_any(long, softmax, "emulated")
    assert accepts_any(shipped("softmax")[-1], softmax, "emulated")

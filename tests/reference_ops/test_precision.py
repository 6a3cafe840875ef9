"""Precision of references. A CPU without AVX-512 sums bfloat16 convolutions in bfloat16; a GPU does not."""

from collections.abc import Iterator

import pytest
import torch

from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import DTYPES, EXACT, DType, Op, Workload
from reference_ops.precision import TORCH_DTYPES, rounded_once

CONVOLUTIONS = [name for name in catalog.names() if catalog.family(name) == "convolution"]


def test_sizes_of_dtypes_are_those_of_torch() -> None:
    sizes = {name: DType(dtype.itemsize, dtype.is_floating_point) for name, dtype in TORCH_DTYPES.items()}
    assert sizes == DTYPES


def test_a_function_rounded_once_computes_in_float32_at_least() -> None:
    seen: list[torch.dtype] = []

    def called(x: torch.Tensor, y: torch.Tensor, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
        seen.extend((x.dtype, y.dtype))
        return x + shift, x * y

    ones = torch.ones(3, dtype=torch.bfloat16)
    results = rounded_once(called)(ones, ones, shift=2.0**-9)
    assert seen == [torch.float32, torch.float32]
    assert [result.dtype for result in results] == [torch.bfloat16, torch.bfloat16]
    assert rounded_once(called)(ones.double(), ones.double(), shift=2.0**-40)[0].tolist() == [1 + 2.0**-40] * 3


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if EXACT in catalog.load(name).values])
def test_a_16_bit_convolution_of_small_integers_is_rounded_only_at_its_end(name: str) -> None:
    op = catalog.load(name)
    for workload in in_16_bits(op):
        for seed in range(4):
            inputs = inputs_at(op, workload, seed, "cpu", EXACT)
            exact = op.call_in_float64(inputs, workload)
            for result, sums in zip(op.call(inputs, workload), exact, strict=True):
                assert torch.equal(result, sums.to(result.dtype)), (workload, seed)


def in_16_bits(op: Op) -> Iterator[Workload]:
    return (workload for workload in (*op.emulated, *op.awkward) if workload.dtype != "float32")

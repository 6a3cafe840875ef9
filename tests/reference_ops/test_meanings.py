"""References compared with their definitions in cases where PyTorch leaves a choice."""

import pytest
import torch

from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import Workload


def test_topk_puts_the_lower_index_of_equal_values_first() -> None:
    op = catalog.load("topk")
    workload = Workload("float32", (("rows", 1), ("cols", 6)), (("k", 4),))
    _, indices = op.call({"x": torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, 2.0]])}, workload)
    assert indices.tolist() == [[1, 2, 4, 3]]


def test_topk_treats_zeros_of_both_signs_as_equal() -> None:
    op = catalog.load("topk")
    workload = Workload("float32", (("rows", 1), ("cols", 3)), (("k", 3),))
    _, indices = op.call({"x": torch.tensor([[-0.0, 0.0, -0.0]])}, workload)
    assert indices.tolist() == [[0, 1, 2]]


def test_a_causal_convolution_depends_only_on_the_past() -> None:
    op = catalog.load("causal_conv1d")
    workload = op.emulated[-1]
    inputs = inputs_at(op, workload, 0, "cpu")
    (before,) = op.call(inputs, workload)
    inputs["x"][..., 100:] = 0
    (after,) = op.call(inputs, workload)
    assert torch.equal(before[..., :100], after[..., :100])


def test_a_dilated_convolution_equals_the_sum_in_its_note() -> None:
    op = catalog.load("causal_conv1d")
    workload = next(w for w in op.awkward if dict(w.parameters)["dilation"] == 3 and w.dtype == "float32")
    x, weight, bias = inputs_at(op, workload, 0, "cpu").values()
    padding, length = op.sizes(workload)["padding"], x.shape[-1]
    padded = torch.nn.functional.pad(x, (padding, 0))
    taps = (weight[:, j, None] * padded[..., 3 * j : 3 * j + length] for j in range(weight.shape[1]))
    torch.testing.assert_close(op.call({"x": x, "weight": weight, "bias": bias}, workload)[0], sum(taps, bias[:, None]))


def test_add_rms_norm_is_the_norm_of_the_rounded_sum() -> None:
    op = catalog.load("add_rms_norm")
    workload = next(w for w in op.emulated if w.dtype == "bfloat16")
    inputs = inputs_at(op, workload, 0, "cpu")
    out, summed = op.call(inputs, workload)
    norm = catalog.load("rms_norm")
    assert torch.equal(out, norm.call({"x": summed, "weight": inputs["weight"]}, workload)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adaptive_avg_pool1d", "adaptive_avg_pool1d_backward"])
def test_adaptive_pools_of_rows_whose_products_exceed_32_bits_are_right_on_a_gpu(name: str) -> None:
    op = catalog.load(name)
    workload = next(w for w in op.awkward if 262_147 in dict((*w.dims, *w.parameters)).values())
    inputs = inputs_at(op, workload, 0, "cpu")
    (found,) = op.call({name: values.cuda() for name, values in inputs.items()}, workload)
    torch.testing.assert_close(found.cpu(), op.call(inputs, workload)[0])

"""Inputs that an op draws itself, because normally distributed numbers lack properties of real inputs."""

import pytest
import torch

from reference_ops import catalog
from reference_ops.attention import decode_attention
from reference_ops.inputs import inputs_at
from reference_ops.loss import ctc_loss
from reference_ops.op import Workload
from reference_ops.recurrent._shared import in_time

SPEECH = Workload("float32", tuple(ctc_loss.at(400, 16, 30, 60).items()))


def unevenness(log_probs: torch.Tensor, frames: int) -> float:
    """Return the largest difference between the share of labels and the share of frames up to a frame."""
    heard = log_probs[:frames].argmax(-1)
    begins = (heard != ctc_loss.BLANK) & (heard != torch.nn.functional.pad(heard[:-1], (1, 0)))
    spoken = begins.cumsum(0) / begins.sum()
    return float((spoken - torch.arange(1, frames + 1) / frames).abs().max())


@pytest.mark.parametrize("seed", range(5))
def test_labels_of_ctc_have_uneven_lengths(seed: int) -> None:
    inputs = inputs_at(catalog.load("ctc_loss"), SPEECH, seed, "cpu")
    lengths = inputs["input_lengths"].tolist()
    found = [unevenness(inputs["log_probs"][:, sample], frames) for sample, frames in enumerate(lengths)]
    assert torch.tensor(found).median() > 0.15


def test_8_bit_weights_include_the_lowest_value() -> None:
    op = catalog.load("int8_gemv")
    weight = inputs_at(op, op.emulated[0], 1, "cpu")["weight"]
    assert (int(weight.min()), int(weight.max())) == (-128, 127)


def test_pairs_of_cache_lengths_are_random_and_their_sum_matches_the_cost_model() -> None:
    op, batch, keys = catalog.load("decode_attention"), 9, 100
    workload = Workload("float32", tuple(decode_attention.at(batch, 2, 2, keys, 8).items()))
    drawn = [inputs_at(op, workload, seed, "cpu")["lengths"] for seed in range(5)]
    assert all(int(lengths.sum()) == decode_attention.cached_keys(dict(workload.dims)) for lengths in drawn)
    assert all(1 <= lengths.min() <= lengths.max() <= keys for lengths in drawn)
    partners = [(lengths[0] + lengths[1:] == keys + 1).nonzero().flatten().tolist() for lengths in drawn]
    assert len({tuple(found) for found in partners}) > 1


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("steps", [100, 256])
def test_the_end_of_a_sequence_depends_on_more_than_its_last_steps(name: str, steps: int) -> None:
    op, workload = catalog.load(name), Workload("float32", tuple(in_time(steps, 4, 64, 64).items()))
    inputs = inputs_at(op, workload, 1, "cpu")
    piece = {spec: values * (spec not in {"h0", "c0"}) for spec, values in inputs.items()} | {"x": inputs["x"][-32:]}
    whole, cut = op.call(inputs, workload)[0][-1], op.call(piece, workload)[0][-1]
    assert float((whole - cut).square().mean() / whole.square().mean()) > 4 * torch.finfo(torch.bfloat16).eps ** 2


@pytest.mark.parametrize("name", ["lstm_backward", "gru_backward", "rnn_tanh_backward"])
def test_the_gradient_at_the_start_of_a_sequence_depends_on_its_end(name: str) -> None:
    op, workload = catalog.load(name), Workload("float32", tuple(in_time(100, 4, 32, 32).items()))
    inputs = inputs_at(op, workload, 1, "cpu")
    inputs["grad_out"][:-32] = 0
    found = {spec.name: gradient for spec, gradient in zip(op.outputs, op.call(inputs, workload), strict=True)}
    assert max(float(found[name].abs().max()) for name in found.keys() & {"grad_h0", "grad_c0"}) > 0.05


def test_timed_and_other_workloads_include_clipped_and_unclipped_gradients() -> None:
    op = catalog.load("clip_grad_norm")
    for workloads in (op.emulated, op.awkward):
        clipped = {clips(workload) for workload in workloads if op.nbytes(workload) > 4096}
        assert clipped == {True, False}


def clips(workload: Workload) -> bool:
    op = catalog.load("clip_grad_norm")
    _, norm = op.call(inputs_at(op, workload, 1, "cpu"), workload)
    return float(norm) > dict(workload.parameters)["max_norm"]


def test_a_constant_group_has_no_variance_in_any_order_of_summation() -> None:
    op = catalog.load("group_norm")
    groups = inputs_at(op, op.emulated[0], 0, "cpu", "constant")["x"].reshape(4, 16, -1)
    assert len(groups.unique()) > 8
    assert groups.flatten(0, 1).unique(dim=1).shape[1] == 1
    one_after_another = torch.zeros(4, 16)
    for column in groups.unbind(-1):
        one_after_another += column
    assert torch.equal(one_after_another / groups.shape[-1], groups[..., 0])

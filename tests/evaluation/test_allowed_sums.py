"""The error that sums may have at an op's workload."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from evolve.evaluation.truth import truth
from reference_ops import catalog
from reference_ops.inputs import RowGroup, inputs_at
from reference_ops.op import Op, Workload, tensors

UNIT = 2.0**-24
WORKLOAD = Workload("float32", (("rows", 3), ("cols", 5)))


@pytest.mark.parametrize(("scale", "alike"), [(0.0128, True), (0.125, False)], ids=["not listed", "listed"])
def test_a_warp_may_lose_small_terms_next_to_large_ones_where_a_small_scale_makes_them_alike(
    scale: float, alike: bool
) -> None:
    op = catalog.load("causal_softmax")
    sizes = (("batch", 1), ("heads", 1), ("queries", 19), ("keys", 5760))
    workload = replace(op.emulated[0], dtype="float32", dims=sizes, parameters=(("scale", scale),))
    inputs = inputs_at(op, workload, 3, "cpu", "heavy_tail")
    scores = inputs["x"][0, 0] * scale
    terms = torch.exp(scores - scores.amax(-1, keepdim=True))
    lanes = torch.zeros(19, 32)
    for of_lanes in terms.view(19, -1, 32).unbind(1):
        lanes += of_lanes
    lost = float((lanes.double().sum(1) / terms.double().sum(1) - 1).square().mean().sqrt())
    allowed = truth(op, workload, "heavy_tail", 3, inputs).sums(0, RowGroup("heavy_tail")).unit
    assert lost < allowed
    assert (lost > 5 * UNIT) is alike
    assert (allowed > 30 * UNIT) is alike


def test_a_warp_may_sum_a_long_row_whose_last_number_is_far_ahead_of_almost_equal_ones() -> None:
    op, values = catalog.load("cross_entropy"), "last_ahead_in_logits"
    sizes = (("rows", 16), ("vocab", 2**17))
    workload = replace(op.emulated[0], dtype="bfloat16", dims=sizes)
    inputs = inputs_at(op, workload, 3, "cpu", values)
    terms = torch.exp(inputs["logits"].float())  # the largest logit is 0
    terms[:, -1] = 0
    lanes = torch.zeros(16, 32)
    for of_lanes in terms.view(16, -1, 32).unbind(1):
        lanes += of_lanes
    found = torch.log1p(lanes.double().sum(1).float())
    assert not truth(op, workload, values, 3, inputs).fault(1, found)
    assert truth(op, workload, values, 3, inputs).fault(1, found * 1.001)


def test_blocks_may_add_up_thousands_of_values_that_have_equal_weights() -> None:
    op = catalog.load("decode_attention")
    sizes = (("batch", 1), ("heads", 1), ("kv_heads", 1), ("keys", 11120), ("dim", 104))
    workload = replace(op.emulated[0], dtype="float32", dims=sizes)
    inputs = inputs_at(op, workload, 3, "cpu", "tiny")
    parts = torch.zeros(8, 104)
    for of_parts in inputs["v"].view(-1, 8, 104).unbind(0):
        parts += of_parts
    means = inputs["v"].double().mean((0, 1, 2))
    error = float((parts.double().sum(0) / 11120 - means).square().mean().sqrt() / means.square().mean().sqrt())
    assert 5 * UNIT < error < truth(op, workload, "tiny", 3, inputs).sums(0, RowGroup("tiny")).unit


def test_only_a_sequence_has_steps() -> None:
    for name, sizes, steps in (("lstm", {"out": 4, "h_n": 1, "c_n": 1}, 4), ("softmax", {"out": 1}, 1)):
        op = catalog.load(name)
        place = op.emulated[0]
        known = truth(op, place, "zero", 3, inputs_at(op, place, 3, "cpu", "zero"))
        found = {spec.name: known.sums(at, RowGroup("zero")).steps for at, spec in enumerate(op.outputs)}
        assert found == sizes
        assert max(found.values()) == steps


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("instance_norm", lambda known: known["batch"] * known["channels"]),
        ("group_norm", lambda known: known["batch"] * known["groups"]),
        ("batch_norm", lambda known: known["channels"]),
        ("layer_norm", lambda _: 0),  # each row is a sum
    ],
)
def test_images_groups_and_channels_count_as_sums(name: str, counted: Callable[[Mapping[str, Any]], int]) -> None:
    op = catalog.load(name)
    place = op.emulated[0]
    known = truth(op, place, "normal", 3, inputs_at(op, place, 3, "cpu"))
    sizes = {**op.sizes(place), **dict(place.parameters)}
    assert known.sums(0, RowGroup("normal")).independent == counted(sizes)


def test_a_first_dim_that_is_a_number_is_not_a_sequence_of_unknown_length() -> None:
    """Foreign tasks have parameters such as one bias for all channels, of the shape (1,)."""
    declared, place = tensors(bias="1 cols", x="rows cols"), WORKLOAD
    outputs = tensors(twice="1 cols", out="rows cols")
    op = Op(
        "biased",
        lambda bias, x: (bias * 2, x + bias),
        declared,
        outputs,
        (place,),
        (place,),
        flops=lambda _: 1,
        by_rows=False,
    )
    known = truth(op, place, "normal", 3, inputs_at(op, place, 3, "cpu"))
    assert known.sums(0, RowGroup("normal")).steps == 1
    assert known.fault(0, known.pytorch[0]) == ""

"""Histogram: the number of values in each of many bins of equal width."""

from collections.abc import Mapping

import torch

from reference_ops.arrangements import filled, sprinkled
from reference_ops.op import COMMON, Op, Tensors, rotated, tensors, workloads


def histogram(x: torch.Tensor, bins: int) -> torch.Tensor:
    places = x.float() * bins
    beyond = torch.full_like(places, bins)
    found = torch.where((x >= 0) & (x <= 1), places.clamp(max=bins - 1), beyond).long()
    return torch.bincount(found, minlength=bins + 1)[:bins]


def of_torch(x: torch.Tensor, bins: int) -> torch.Tensor:
    return torch.histc(x.float(), bins, 0.0, 1.0).long()


def on_edges(inputs: Tensors, generator: torch.Generator, known: Mapping[str, int]) -> None:
    """Draw the smallest number of each bin, as float32 rounds it, and numbers just outside."""
    x = inputs["x"]
    chosen = torch.randint(-1, known["bins"] + 2, x.shape, generator=generator, device=x.device)
    x.copy_(chosen / known["bins"])


def at(n: int) -> dict[str, int]:
    return {"n": n}


op = Op(
    name="histogram",
    note="out[b] counts, as int64, the values x with 0 <= x <= 1 whose float32 product x * bins, cut off to an "
    "integer, is b; 1 itself counts in the last bin, and values elsewhere are not counted. bins is at most 4096.",
    reference=histogram,
    baseline=of_torch,
    inputs=tensors(x="n"),
    outputs=tensors(out="int64[bins]"),
    derived={"bins": lambda known: known["bins"]},  # this dim occurs only in an output
    gpu=(
        *workloads("float32 bfloat16", at(2**26), bins=256),  # the brightness of images
        *workloads("float32", at(2**26), bins=2048),  # a calibration of quantisation
        *workloads("float32", at(2**22), bins=64),
        *workloads("float32", at(50_000_017), bins=1000),
    ),
    emulated=(
        *workloads("float32 bfloat16", at(8192), bins=16),
        *workloads("float32", at(16384), bins=64),
        *workloads("float32", at(12_007), bins=100),
    ),
    awkward=(
        *rotated("float32 bfloat16", at(1), at(31), at(1009), bins=1),
        *rotated("bfloat16 float32", at(33), at(4097), bins=257),
        *rotated("float32", at(4095), bins=4096),
    ),
    # Too many tiny and constant values fall into the first bin, so that the float32 counts of `torch.histc` are
    # inexact.
    values=tuple(name for name in COMMON if name not in {"tiny", "constant"}),
    by_rows=False,
    arranged={"one_value": filled(x=0.375), "on_edges": on_edges, **sprinkled("x", 1 / 16, minus_zero=-0.0)},
    valid=lambda known: known["bins"] <= 4096,
    flops=lambda dims: 2 * dims["n"],
)

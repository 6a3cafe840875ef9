"""Batch normalisation of images with the running statistics."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.arrangements import filled
from reference_ops.normalization.batch_norm import AWKWARD, CHANNELS, EPS, IMAGES, at, draw_variance, emulated, gpu
from reference_ops.op import Op, Tensors, rotated, tensors

FAR = 1024.0


def batch_norm_inference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    return functional.batch_norm(x, running_mean, running_var, weight, bias, training=False, eps=eps)


def spread_widely(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Draw variances between 1 and 2**40, and numbers so far from zero that they are not lost beside the bias."""
    inputs["x"].mul_(FAR)
    inputs["running_var"].uniform_(0, 40, generator=generator).exp2_()


op = Op(
    name="batch_norm_inference",
    note="out = (x - running_mean) / sqrt(running_var + eps) * weight + bias, where these four tensors are per channel "
         "and in float32.",
    reference=batch_norm_inference,
    inputs=tensors(x=IMAGES, weight=CHANNELS, bias=CHANNELS, running_mean=CHANNELS, running_var=CHANNELS),
    outputs=tensors(out=IMAGES),
    gpu=gpu(eps=EPS),
    emulated=emulated(eps=EPS),
    awkward=rotated("float32 bfloat16 float16", *AWKWARD, at(1, 1, 1, 1), eps=EPS),
    draw=draw_variance,
    arranged={
        "no_variance": filled(running_var=0.0),
        "wide_variance": spread_widely,
        "infinite_variance": filled(running_var=math.inf, bias=0.0),
    },
    flops=lambda dims: 2 * dims["batch"] * dims["channels"] * dims["height"] * dims["width"],
    # The default tolerance suffices for a product and a sum in float32, rounded once.
)  # fmt: skip

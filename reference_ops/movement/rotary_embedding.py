"""Rotary position embedding in the layout of models: a token's heads are contiguous, with angles of whole heads.

This is `x * cos + rotate_half(x) * sin`, as Hugging Face's models write it.
"""

from collections.abc import Mapping

import torch

from reference_ops.arrangements import nan_in, scaled
from reference_ops.op import Op, Tensors, rotated, tensors, workloads

BASE, LONGEST = 10000.0, 100000


def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)).to(x.dtype)


def rotary_embedding_backward(grad_out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = (grad_out * sin.unsqueeze(1)).chunk(2, dim=-1)
    return (grad_out * cos.unsqueeze(1) + torch.cat((second, -first), dim=-1)).to(grad_out.dtype)


def draw(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw the angles of consecutive positions from a random start; the two halves may differ."""
    cos, sin = inputs["cos"], inputs["sin"]
    start = torch.empty(1, device=cos.device).uniform_(0, LONGEST, generator=generator).floor_()
    positions = start + torch.arange(cos.shape[0], device=cos.device)
    exponents = torch.arange(cos.shape[1], device=cos.device) / cos.shape[1]
    angles = positions.unsqueeze(1) * BASE**-exponents
    cos.copy_(angles.cos())
    sin.copy_(angles.sin())


def from_the_first(inputs: Tensors, _: torch.Generator, __: Mapping[str, int]) -> None:
    """Set the angles of positions 0, 1, 2 and so on, with equal halves: the first are zero, others very small."""
    cos, sin = inputs["cos"], inputs["sin"]
    half = cos.shape[1] // 2
    exponents = torch.arange(half, device=cos.device).repeat(2) / half
    angles = torch.arange(len(cos), device=cos.device).unsqueeze(1) * BASE**-exponents
    cos.copy_(angles.cos())
    sin.copy_(angles.sin())


def at(tokens: int, heads: int, dim: int) -> dict[str, int]:
    return {"tokens": tokens, "heads": heads, "dim": dim}


GPU = (
    *workloads("bfloat16 float32 float16", at(4 * 4096, 32, 128)),  # the queries of Llama 8B
    *workloads("bfloat16", at(4 * 8192, 8, 128)),  # its keys
    *workloads("float32", at(16 * 2048, 12, 64)),
    *workloads("bfloat16", at(64, 32, 128)),  # one token each
    *workloads("bfloat16", at(3 * 1021, 7, 66)),
)
EMULATED = workloads("float32 bfloat16 float16", at(40, 3, 64), at(33, 2, 40))
AWKWARD = rotated("float32 bfloat16 float16", at(1, 1, 2), at(31, 2, 6), at(33, 1, 62), at(7, 6, 10), at(5, 31, 66))
# Models of long contexts scale cosines and sines beyond one.
ARRANGED = {**nan_in("cos", "sin"), **scaled(cos=4.0, sin=4.0), "from_the_first_position": from_the_first}
ANGLES = {"cos": "float32[tokens dim]", "sin": "float32[tokens dim]"}
ops = (
    Op(
        name="rotary_embedding",
        note="With a and b the first and the second half of a head, and cos and sin halved alike into c, d and s, t, "
        "out is a * c - b * s, then b * d + a * t. cos and sin are float32, one number for each token and element of a "
        "head, the same for all heads; their halves may differ. Inside it is float32 throughout.",
        reference=rotary_embedding,
        inputs=tensors(x="tokens heads dim", **ANGLES),
        outputs=tensors(out="tokens heads dim"),
        valid=lambda known: known["dim"] % 2 == 0,
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw,
        arranged=ARRANGED,
        flops=lambda dims: 3 * dims["tokens"] * dims["heads"] * dims["dim"],
        # The default factor suffices for a sum of two products in float32, rounded once.
        backward=("rotary_embedding_backward",),
    ),
    Op(
        name="rotary_embedding_backward",
        note="With a and b the halves of a head of grad_out, and cos and sin halved alike into c, d and s, t, grad_x "
        "is a * c + b * t, then b * d - a * s. cos and sin are float32, the same for all heads; their "
        "halves may differ. Inside it is float32 throughout.",
        reference=rotary_embedding_backward,
        inputs=tensors(grad_out="tokens heads dim", **ANGLES),
        outputs=tensors(grad_x="tokens heads dim"),
        valid=lambda known: known["dim"] % 2 == 0,
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw,
        arranged=ARRANGED,
        flops=lambda dims: 3 * dims["tokens"] * dims["heads"] * dims["dim"],
        # The default factor suffices for a sum of two products in float32, rounded once.
    ),
)

"""Rotary position embedding (RoPE), as in Llama, and its backward."""

from collections.abc import Mapping

import torch

from reference_ops.op import Op, Tensors, rotated, tensors, workloads

BASE, LONGEST = 10000.0, 100000


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rope_backward(grad_out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return rope(grad_out, cos, -sin)


def draw(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw the angles of consecutive positions from a random start."""
    start = torch.empty(1, device=inputs["cos"].device).uniform_(0, LONGEST, generator=generator).floor_()
    turn(inputs, start)


def from_the_first(inputs: Tensors, _: torch.Generator, __: Mapping[str, int]) -> None:
    """Set the angles of positions 0, 1, 2 and so on: the first are zero, and others are very small."""
    turn(inputs, torch.zeros(1, device=inputs["cos"].device))


def turn(inputs: Tensors, start: torch.Tensor) -> None:
    cos, sin = inputs["cos"], inputs["sin"]
    positions = start + torch.arange(cos.shape[0], device=cos.device)
    exponents = torch.arange(cos.shape[1], device=cos.device) / cos.shape[1]
    angles = positions.unsqueeze(1) * BASE**-exponents
    cos.copy_(angles.cos())
    sin.copy_(angles.sin())


def at(batch: int, heads: int, seq: int, half: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "seq": seq, "half": half}


GPU = (
    *workloads("bfloat16 float32 float16", at(4, 32, 4096, 64)),  # the queries of Llama 8B
    *workloads("bfloat16", at(4, 8, 8192, 64)),  # its keys
    *workloads("float32", at(16, 12, 2048, 32)),
    *workloads("bfloat16", at(64, 32, 1, 64)),  # one token each
    *workloads("bfloat16", at(3, 7, 1021, 33)),
)
EMULATED = workloads("float32 bfloat16 float16", at(2, 3, 20, 32), at(1, 2, 33, 20))
AWKWARD = rotated(
    "float32 bfloat16 float16", at(1, 1, 1, 1), at(2, 31, 1, 3), at(1, 1, 33, 31), at(3, 2, 7, 5), at(1, 5, 31, 33)
)
ops = (
    Op(
        name="rope",
        note="With a and b the first and the second half of the last dim, out is a * cos - b * sin, then b * cos + "
        "a * sin. cos and sin are float32, one number for each position and pair; all computations are in float32.",
        reference=rope,
        inputs=tensors(x="batch heads seq dim", cos="float32[seq half]", sin="float32[seq half]"),
        outputs=tensors(out="batch heads seq dim"),
        derived={"dim": lambda known: 2 * known["half"]},
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw,
        arranged={"from_the_first_position": from_the_first},
        flops=lambda dims: 3 * dims["batch"] * dims["heads"] * dims["seq"] * dims["dim"],
        # The default factor suffices for a sum of two products in float32, rounded once.
        backward=("rope_backward",),
    ),
    Op(
        name="rope_backward",
        note="The rotation back: with a and b the halves of grad_out, grad_x is a * cos + b * sin, then b * cos - "
        "a * sin. cos and sin are float32, one number for each position and pair; all computations are in float32.",
        reference=rope_backward,
        inputs=tensors(grad_out="batch heads seq dim", cos="float32[seq half]", sin="float32[seq half]"),
        outputs=tensors(grad_x="batch heads seq dim"),
        derived={"dim": lambda known: 2 * known["half"]},
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw,
        arranged={"from_the_first_position": from_the_first},
        flops=lambda dims: 3 * dims["batch"] * dims["heads"] * dims["seq"] * dims["dim"],
        # The default factor suffices for a sum of two products in float32, rounded once.
    ),
)

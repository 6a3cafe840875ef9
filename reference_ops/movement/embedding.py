"""Embedding: rows of a table selected by indices, and the gradient of the table."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from reference_ops.arrangements import mostly_zero, of_indices
from reference_ops.op import COMMON, Op, Tensors, Tolerance, Workload, rotated, tensors, workloads
from reference_ops.precision import wide

STEPS = 64  # number of steps of the integral by which different indices are counted


def embedding(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.embedding(weight, indices)


def embedding_backward(grad_out: torch.Tensor, indices: torch.Tensor, vocab: int) -> torch.Tensor:
    return backward_as_called(wide(grad_out), indices, vocab).to(grad_out.dtype)


def backward_as_called(grad_out: torch.Tensor, indices: torch.Tensor, vocab: int) -> torch.Tensor:
    grad_weight: torch.Tensor = torch.ops.aten.embedding_dense_backward(grad_out, indices, vocab, -1, False)
    return grad_weight


def draw_repeats(indices: torch.Tensor, count: int, generator: torch.Generator) -> None:
    """Draw indices below `count`. The lowest occurs about sqrt(count) / 2 times as often as a middle one."""
    chance = torch.empty(indices.shape, device=indices.device).uniform_(generator=generator)
    indices.copy_(chance.square_().mul_(count)).clamp_(max=count - 1)


def most_repeats(drawn: int, count: int) -> int:
    """Estimate how often the lowest index occurs."""
    return math.ceil(drawn / math.sqrt(count))


def different(drawn: int, count: int) -> int:
    """Estimate how many different indices occur: the sum of their probabilities of occurring, as an integral."""
    roots = [(step + 0.5) / STEPS for step in range(STEPS)]
    share = sum(2 * root * (1 - math.exp(-drawn / (2 * count * root))) for root in roots) / STEPS
    return max(1, int(count * share))


def draw(inputs: Tensors, generator: torch.Generator) -> None:
    draw_repeats(inputs["indices"], len(inputs["weight"]), generator)


def draw_of_backward(inputs: Tensors, generator: torch.Generator, known: Mapping[str, int]) -> None:
    draw_repeats(inputs["indices"], known["vocab"], generator)


def at(tokens: int, vocab: int, dim: int) -> dict[str, int]:
    return {"vocab": vocab, "tokens": tokens, "dim": dim}


def of_backward(points: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """Return workloads with the table's size as a parameter, because no input of the backward has this size."""
    return tuple(replace(point, dims=point.dims[1:], parameters=point.dims[:1]) for point in points)


GPU = (
    *workloads("bfloat16 float32 float16", at(16384, 32000, 4096)),  # Llama 2
    *workloads("bfloat16", at(8192, 128256, 2048)),  # Llama 3.2 1B
    *workloads("float32", at(16384, 30522, 768)),  # BERT
    *workloads("bfloat16", at(65536, 50257, 1024)),  # GPT-2
    *workloads("float32", at(10007, 1009, 301)),
)
EMULATED = workloads("float32 bfloat16 float16", at(60, 50, 64), at(40, 200, 33))
AWKWARD = rotated(
    "float32 bfloat16 float16",
    at(1, 1, 1),
    at(33, 31, 3),
    at(257, 7, 31),
    at(5, 1009, 1),
    at(300, 1, 33),
    at(3, 5, 1100),
)
ops = (
    Op(
        name="embedding",
        note="out[t] = weight[indices[t]]; indices are within bounds, and repeat.",
        reference=embedding,
        inputs=tensors(weight="vocab dim", indices="int64[tokens]"),
        outputs=tensors(out="tokens dim"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw,
        arranged=of_indices("indices", "vocab"),
        touched={"weight": lambda known: different(known["tokens"], known["vocab"]) * known["dim"]},
        flops=lambda dims: dims["tokens"] * dims["dim"],
        tolerance=Tolerance(exact=True),  # no arithmetic: the op only moves numbers
        backward=("embedding_backward",),
    ),
    Op(
        name="embedding_backward",
        note="grad_weight[i] is the sum of grad_out[t] over all t with indices[t] = i, and 0 where there are none: "
        "every row is written. Some indices occur hundreds of times. Sums are in float32 and rounded once.",
        reference=embedding_backward,
        baseline=backward_as_called,
        baseline_free=("grad_weight",),  # in 16 bits PyTorch rounds at every step for up to 3072 tokens
        inputs=tensors(grad_out="tokens dim", indices="int64[tokens]"),
        outputs=tensors(grad_weight="vocab dim"),
        derived={
            "vocab": lambda known: known["vocab"],
            "repeats": lambda known: most_repeats(known["tokens"], known["vocab"]),
        },
        gpu=of_backward(GPU),
        emulated=of_backward(EMULATED),
        awkward=of_backward(AWKWARD),
        # Sums of "heavy_tail" would overflow float16.
        values=(*(name for name in COMMON if name != "heavy_tail"), "integers"),
        draw=draw_of_backward,
        arranged={**of_indices("indices", "vocab"), **mostly_zero("grad_out")},
        flops=lambda dims: dims["tokens"] * dims["dim"],
        tolerance=Tolerance(sums="repeats"),  # the default factor suffices for sums in float32, rounded once
    ),
)

"""Shared code of the recurrent ops: draws weights, and computes float32 products as precisely as cuDNN."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.nn import functional

from reference_ops.op import Tensors, rotated, workloads
from reference_ops.precision import wide
from reference_ops.recurrent._memory import hold_pulses, keep_for_long

# Weights are separate inputs. cuDNN copies them into one buffer, in microseconds, while a sequence takes milliseconds.
warnings.filterwarnings("ignore", message="RNN module weights are not part")
WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh")
# Numbers hundreds of times larger than in a model saturate every gate, and all gradients vanish.
VALUES = ("uniform", "tiny")
# With "tiny", a few numbers make up a weight's gradient, and their rounding to the dtype is as large as the other
# numbers.
OF_GRADIENTS = ("uniform",)


def draw(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw weights as PyTorch initialises them, and states as in networks, for any distribution of x.

    With larger weights, sequences would be chaotic. The gradients of the last states are as large as those of a step.
    Larger gradients would fade step by step and hide the gradients of other steps.
    """
    hidden = inputs["w_hh"].shape[1]
    for name in WEIGHTS:
        if name in inputs:
            inputs[name].uniform_(-(hidden**-0.5), hidden**-0.5, generator=generator)
    if inputs["x"].ndim > 2 and "grad_out" not in inputs:
        hold_pulses(inputs, generator)
    elif inputs["x"].ndim > 2 and "b_ih" in inputs:
        keep_for_long(inputs, generator)
    for name in ("h0", "c0", "grad_h_n", "grad_c_n"):
        if name in inputs:
            inputs[name].uniform_(-1, 1, generator=generator)
    if "grad_out" in inputs:
        size = inputs["grad_out"].float().square().mean().sqrt()
        for name in inputs.keys() & {"grad_h_n", "grad_c_n"}:
            inputs[name].mul_(size)


@contextmanager
def precision_of_cudnn(tensor: torch.Tensor) -> Iterator[None]:
    """Compute products in TF32 where PyTorch's own recurrent networks do, which is the default."""
    before = torch.get_float32_matmul_precision()
    if tensor.is_cuda:
        torch.set_float32_matmul_precision("high" if torch.backends.cudnn.allow_tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Apply a linear layer without rounding to the dtype."""
    return functional.linear(wide(x), wide(weight), wide(bias))


def rounded(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Round to the dtype of `like`, as for tensor cores, but return float32 for the product."""
    return wide(tensor.to(like.dtype))


def leaves(inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [tensor.detach().requires_grad_() for tensor in inputs]


def as_on_a_gpu(network: Callable[..., tuple[torch.Tensor, ...]], *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Compute in float32 and round once on a CPU, where PyTorch, unlike cuDNN, rounds to 16 bits at each operation."""
    if given[0].is_cuda or given[0].element_size() > 2:
        return network(*given)
    return tuple(found.to(given[0].dtype) for found in network(*(tensor.float() for tensor in given)))


def at_once(batch: int, width: int, hidden: int) -> dict[str, int]:
    return {"batch": batch, "input": width, "hidden": hidden}


def in_time(time: int, batch: int, width: int, hidden: int) -> dict[str, int]:
    return {"time": time, "batch": batch, "input": width, "hidden": hidden}


def gates(count: int) -> dict[str, Callable[[Mapping[str, int]], int]]:
    return {"gates": lambda known: count * known["hidden"]}


def products(dims: Mapping[str, int]) -> int:
    """Return the operations of products with the weights over all steps, two for each multiply-add."""
    return dims.get("time", 1) * dims["batch"] * dims["gates"] * (dims["input"] + dims["hidden"])


def units(dims: Mapping[str, int]) -> int:
    return dims.get("time", 1) * dims["batch"] * dims["hidden"]


# Number of rows over which the gradients of weights are summed.
ROWS: dict[str, Callable[[Mapping[str, int]], int]] = {"rows": lambda known: known["time"] * known["batch"]}
DTYPES = "float32 bfloat16 float16"
SEQUENCES_GPU = (
    *workloads("bfloat16 float32 float16", in_time(256, 64, 256, 256)),
    *workloads("bfloat16 float32", in_time(128, 32, 512, 512)),
    *workloads("bfloat16", in_time(200, 64, 80, 320), in_time(100, 33, 123, 257)),
)
SEQUENCES_EMULATED = workloads(DTYPES, in_time(4, 16, 24, 16), in_time(2, 17, 7, 33))
SEQUENCES_AWKWARD = (
    *rotated(
        DTYPES,
        *(in_time(1, 1, 1, 1), in_time(2, 3, 31, 5), in_time(7, 5, 3, 31), in_time(4, 1, 65, 8), in_time(33, 2, 1, 2)),
    ),
    *workloads("float32", in_time(129, 3, 2, 17)),
)
CELLS_GPU = (
    *workloads("bfloat16 float32 float16", at_once(1024, 1024, 1024)),
    *workloads("bfloat16 float32", at_once(4096, 512, 512)),
    *workloads("bfloat16", at_once(64, 2048, 2048), at_once(257, 123, 1001)),
)
CELLS_EMULATED = workloads(DTYPES, at_once(8, 24, 32), at_once(17, 33, 31))
CELLS_AWKWARD = rotated(
    DTYPES, at_once(1, 1, 1), at_once(31, 3, 33), at_once(2, 129, 5), at_once(65, 7, 31), at_once(3, 64, 65)
)

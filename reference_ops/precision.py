"""Precision: torch's dtypes by name, and references in float32 for ops in which PyTorch rounds at every step."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from reference_ops.op import DTYPES

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
HALVES = (torch.float16, torch.bfloat16)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float32, or in its own dtype if that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def in_float32_on_cpu(
    called: Callable[..., torch.Tensor], dtypes: tuple[torch.dtype, ...] = HALVES
) -> Callable[..., torch.Tensor]:
    """Make a function compute in float32 on the CPU, where PyTorch lacks it for some dtypes, or rounds or crashes."""

    def computed(x: torch.Tensor, *others: Any, **parameters: int) -> torch.Tensor:
        if x.is_cpu and x.dtype in dtypes:
            floats = [other.float() if isinstance(other, torch.Tensor) else other for other in (x, *others)]
            return called(*floats, **parameters).to(x.dtype)
        return called(x, *others, **parameters)

    return computed


def rounded_once(called: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function compute in float32 or wider, and round its results to the dtype of its first tensor."""

    @functools.wraps(called)
    def computed(*tensors: torch.Tensor, **parameters: float) -> torch.Tensor | tuple[torch.Tensor, ...]:
        results = called(*map(wide, tensors), **parameters)
        dtype = tensors[0].dtype
        return results.to(dtype) if isinstance(results, torch.Tensor) else tuple(result.to(dtype) for result in results)

    return computed

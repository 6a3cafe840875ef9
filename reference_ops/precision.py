"""Precision: torch's dtypes by name, and references in float32 for ops in which PyTorch rounds at every step."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from reference_ops.op import DTYPES

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float32, or in its own dtype if that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def rounded_once(called: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function compute in float32 or wider, and round its results to the dtype of its first tensor."""

    @functools.wraps(called)
    def computed(*tensors: torch.Tensor, **parameters: float) -> torch.Tensor | tuple[torch.Tensor, ...]:
        results = called(*map(wide, tensors), **parameters)
        dtype = tensors[0].dtype
        return results.to(dtype) if isinstance(results, torch.Tensor) else tuple(result.to(dtype) for result in results)

    return computed

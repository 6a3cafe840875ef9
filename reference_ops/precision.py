"""What references compute in where PyTorch, left alone, would round 16-bit numbers at every step."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def rounded_once(called: Callable[..., Any]) -> Callable[..., Any]:
    """What is called, in float32 at least, with its results rounded to the dtype of the tensors that it was given."""

    @functools.wraps(called)
    def computed(*tensors: torch.Tensor, **parameters: float) -> torch.Tensor | tuple[torch.Tensor, ...]:
        results = called(*map(wide, tensors), **parameters)
        dtype = tensors[0].dtype
        return results.to(dtype) if isinstance(results, torch.Tensor) else tuple(result.to(dtype) for result in results)

    return computed

"""Precision: torch's dtypes by name, and references in float32 for ops in which PyTorch rounds at every step."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from reference_ops.op import DTYPES

GELUS = (functional.gelu, torch.ops.aten.gelu, torch.ops.aten.gelu.default)
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


class GeluOfInfinity(TorchFunctionMode):
    """A context in which gelu of +inf is +inf on the CPU, as on a GPU, in float64 and for a single number.

    For 8 numbers and more, PyTorch 2.13 returns NaN on the CPU. Its results then seem to leave gelu of +inf open.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in GELUS and args and args[0].device.type == "cpu":
            result = torch.where(args[0] == math.inf, args[0], result)
        return result

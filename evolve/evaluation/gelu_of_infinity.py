"""gelu of +inf on the CPU, which some releases of PyTorch compute as NaN."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

GELUS = (functional.gelu, torch.ops.aten.gelu, torch.ops.aten.gelu.default)


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

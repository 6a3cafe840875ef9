"""Optimizers of torch.optim that update large parameters with kernels where these are faster.

A kernel writes new tensors. The moments use their memory from then on, and the parameter is overwritten with a copy.
Whether this is faster than the same optimizer of PyTorch is measured once for each size, because the package has no
times of PyTorch's fused optimizers. Everything else, such as small parameters, which PyTorch updates together, is left
to PyTorch.
"""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from evolve.export.template.dispatch import Primitive
from reference_ops.op import Number

LEAST_ELEMENTS = 1 << 20  # fewest elements of a parameter that is worth a separate launch
Primitives = Mapping[str, Primitive]


class _Steps:
    """The steps of an optimizer that kernels compute, and the sizes at which these are faster."""

    def __init__(self, primitive: Primitive) -> None:
        self._primitive = primitive
        self._pays: dict[object, bool] = {}

    def step(self, optimizer: torch.optim.Optimizer, tensors: tuple[Tensor, ...], given: Mapping[str, Number]) -> bool:
        """Update a parameter, which is the first tensor, and its moments, from the third tensor on.

        Return whether it was updated.
        """
        param, gradient = tensors[:2]
        if param.numel() < LEAST_ELEMENTS or not all(_plain(x, param) for x in tensors):
            return False
        flat = tuple(x.detach().view(-1) for x in tensors)
        key = (param.numel(), param.dtype, gradient.dtype, param.device)
        if key not in self._pays:
            self._pays[key] = self._measured(optimizer, flat, given)
        return self._pays[key] and self._stepped(flat, tensors, given)

    def _stepped(self, flat: tuple[Tensor, ...], tensors: tuple[Tensor, ...], given: Mapping[str, Number]) -> bool:
        outputs = self._primitive.run(flat, given)
        if outputs is None:
            return False
        tensors[0].copy_(outputs[0].view(tensors[0].shape))
        for moment, out in zip(tensors[2:], outputs[1:], strict=True):
            moment.set_(out.view(moment.shape))  # type: ignore[call-overload]
        return True

    def _measured(
        self, optimizer: torch.optim.Optimizer, flat: tuple[Tensor, ...], given: Mapping[str, Number]
    ) -> bool:
        """Return whether a kernel's step takes less time than PyTorch's on copies of these tensors."""
        if self._primitive.run(flat, given) is None:
            return False
        ours = tuple(x.clone() for x in flat)
        param = torch.nn.Parameter(flat[0].clone())
        param.grad = flat[1].clone()
        kind = next(one for one in type(optimizer).__mro__ if one.__module__.startswith("torch.optim"))
        settings = {name: value for name, value in optimizer.defaults.items() if name in _arguments(kind)}
        theirs: Any = kind([param], **copy.deepcopy(settings))
        time = self._primitive.machine.device_us
        device = param.device
        return time(lambda: self._stepped(ours, ours, given), device) < time(theirs.step, device)


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`, with kernels where they are faster."""

    primitives: ClassVar[Primitives] = {}

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        complex_there = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        plain = not any(group[flag] for flag in ("amsgrad", "maximize", "capturable", "differentiable", "fused"))
        plain = plain and not complex_there and isinstance(group["lr"], float) and group["decoupled_weight_decay"]
        if plain and (steps := _steps(self, "adamw")):
            params, grads, averages, squares, _, counts = lists
            beta1, beta2 = group["betas"]
            given = {"lr": group["lr"], "beta1": beta1, "beta2": beta2, "eps": group["eps"]}
            given["weight_decay"] = float(group["weight_decay"])
            left = []
            for row in zip(params, grads, averages, squares, counts, strict=True):
                if steps.step(self, row[:4], {**given, "step": int(row[4]) + 1}):
                    row[4].add_(1)
                else:
                    left.append(row)
            for of, values in zip((params, grads, averages, squares, counts), _columns(left, 5), strict=True):
                of[:] = values
        return complex_there


class SGD(torch.optim.SGD):
    """`torch.optim.SGD`, with kernels where they are faster and there is momentum."""

    primitives: ClassVar[Primitives] = {}

    def _init_group(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], moments: list[Any]) -> Any:
        sparse = super()._init_group(group, params, grads, moments)  # type: ignore[no-untyped-call]
        plain = not any(group[flag] for flag in ("dampening", "nesterov", "maximize", "differentiable", "fused"))
        if plain and not sparse and group["momentum"] and isinstance(group["lr"], float):
            given = {name: float(group[name]) for name in ("lr", "momentum", "weight_decay")}
            steps = _steps(self, "sgd_momentum")
            rows = zip(params, grads, moments, strict=True)  # there is no moment before the first step
            left = [row for row in rows if row[2] is None or not steps or not steps.step(self, row, given)]
            for of, values in zip((params, grads, moments), _columns(left, 3), strict=True):
                of[:] = values
        return sparse


def _steps(optimizer: Any, op: str) -> _Steps | None:
    """Return an optimizer's steps with kernels, or None if PyTorch must compute them."""
    scaled = getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None
    if op not in optimizer.primitives or scaled or torch.compiler.is_compiling():
        return None
    found = optimizer.__dict__.get("_steps_by_kernels")
    if found is None:
        found = optimizer.__dict__["_steps_by_kernels"] = _Steps(optimizer.primitives[op])
    return found  # type: ignore[no-any-return]


def _plain(x: Tensor, like: Tensor) -> bool:
    return x.is_contiguous() and x.shape == like.shape and x.device == like.device and not x.is_sparse


def _columns(rows: list[Any], count: int) -> list[list[Any]]:
    return [[row[at] for row in rows] for at in range(count)]


def _arguments(kind: type) -> set[str]:
    """Return the names of an optimizer's arguments."""
    code = kind.__init__.__code__  # type: ignore[misc]
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

"""Attempts of calls by kernels, and trials: whether a call takes longer by kernels than by PyTorch.

A trial counts the backward and the time of the host.
"""

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evolve.export.template.deciding import SHORT_US, Decision
from evolve.export.template.forms import Call
from evolve.export.template.plans import saves, tensors_in
from evolve.export.template.unrolled import Run

Given = tuple[tuple[Any, ...], Mapping[str, Any]]  # the arguments of a call
Timer = Callable[[Callable[[], object], torch.device], float]


@dataclass(frozen=True)
class Attempt:
    """The outcome of a call: its result or ELSEWHERE, and the op's call, decision and outputs if a kernel ran."""

    result: Any
    call: Call | None = None
    place: int = 0  # place of the op's call among those to which the function's call may be lowered
    decision: Decision | None = None
    outputs: tuple[Tensor, ...] = ()
    is_whole: bool = True  # whether the call is not composed of other calls
    is_slow: bool = False  # PyTorch runs because launching the kernel takes the host too long
    given: tuple[Tensor, ...] = ()  # the tensors of the call after autocast


def unplanned(*_tensors: Tensor) -> Any:
    """The plan of a call that must be lowered and decided each time."""
    return None


def is_tried(found: Attempt, plan: Run) -> bool:
    """Return whether a call is tried: its kernel is short, and the time of its launch is not all that counts.

    That is so for a call that requires gradients, and for one that changes tensors of the caller. Hooks for saved
    tensors would count the calls of a trial, so with them nothing is tried.
    """
    call, decision = found.call, found.decision
    if not call or not decision or decision.kernel_us > SHORT_US or math.isinf(decision.saves_us):
        return False
    return (bool(call.records) or (_learns(found) and plan is not unplanned)) and saves() is None


def _learns(found: Attempt) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in found.given)


class Trials:
    """Outcomes of trials.

    A kernel that won with some dtypes and gradients also wins where it saves more time, and one that lost also loses
    where it saves less, because the time of the host does not depend on sizes.
    """

    def __init__(self) -> None:
        # by kind of call: the most time that a losing kernel saved, and the least that a winning one did
        self._bounds: dict[Hashable, tuple[float, float]] = {}

    def loses(self, found: Attempt, takes_longer: Callable[[], bool]) -> bool:
        """Return whether a call by a kernel takes longer than PyTorch's, which is tried only if it is not known."""
        if not found.call or not found.decision:
            return False
        kinds = tuple([(x.dtype, x.requires_grad) for x in found.given])
        kind, saves_us = (found.call.op, found.decision.kernel, kinds, _learns(found)), found.decision.saves_us
        lost, won = self._bounds.get(kind, (-math.inf, math.inf))
        if lost < saves_us < won:
            if takes_longer():
                lost = saves_us
            else:
                won = saves_us
            self._bounds[kind] = lost, won
        return saves_us <= lost


def takes_longer(ours: Run, theirs: Run, given: Given, changed: Collection[int], timer: Timer) -> bool:
    """Return whether the first call takes longer than the second one, with the backward if it requires gradients.

    `changed` holds the ids of tensors that the calls change; these are copied. The answer is no if a call fails, as
    PyTorch's backward may under deterministic algorithms, or for want of memory.
    """
    learns = torch.is_grad_enabled()
    with (
        suppress(RuntimeError),
        torch._C.DisableTorchFunction(),  # noqa: SLF001 - there is no public way
        torch.inference_mode(False),
        torch.set_grad_enabled(learns),
    ):
        arguments, named = (_apart(values, changed) for values in (given[0], tuple(given[1].values())))
        names = dict(zip(given[1], named, strict=True))
        tensors = list(tensors_in((*arguments, *named)))
        learning = [x for x in tensors if learns and x.requires_grad]
        gradients: list[Tensor] = []

        def timed(call: Run) -> float:
            return timer(lambda: _with_backward(call(arguments, names), learning, gradients), tensors[0].device)

        return timed(ours) > timed(theirs)
    return False


def _apart(values: tuple[Any, ...], changed: Collection[int]) -> tuple[Any, ...]:
    """Return the arguments with leaves of autograd in place of tensors, which share their memory if nothing changes."""

    def one(x: Any) -> Any:
        if isinstance(x, Tensor):
            copied = x.detach().clone() if id(x) in changed or x.is_inference() else x.detach()
            return copied.requires_grad_(x.requires_grad)
        return type(x)(map(one, x)) if type(x) in {tuple, list} else x

    return tuple(map(one, values))


def _with_backward(result: Any, learning: list[Tensor], gradients: list[Tensor]) -> None:
    """Compute the gradients of a result, of which those of its tensors are made once."""
    outputs = [x for x in tensors_in([result]) if x.requires_grad] if learning else []
    if outputs:
        gradients.extend(torch.ones_like(out) for out in outputs[len(gradients) :])
        torch.autograd.grad(outputs, learning, gradients[: len(outputs)], allow_unused=True)

"""Weights that no output depends on although they go into it, as a bias before a normalisation that takes it out."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from reference_ops.tasks.calling import reference_of
from reference_ops.tasks.drawing import laws_of
from reference_ops.tasks.skeleton import Placed, quiet_random
from reference_ops.tasks.tracing import Fact, Traced

MOST_OPERATIONS, MOST_ELEMENTS = 1_000_000_000, 30_000_000  # of a call on the CPU, forward and backward
NOTHING = 1e-9  # of the influence that its layer has, in float64
PROBES = 2


def without_inert(tracings: Sequence[Traced]) -> tuple[list[Traced], tuple[str, ...]]:
    """The same without them, and their names: those that make no difference at the two largest sizes at hand.

    Sizes with all of the task's channels come first: a normalisation over one channel takes out what one over several
    does not. Very small ones will not do either: of one pixel it takes out everything.
    """
    own = tracings[0].weights
    if not any(map(_like_a_bias, own.values())):
        return [*tracings], ()
    cheap = sorted(
        (found for found in tracings if _cheap(found)),
        key=lambda found: (found.weights != own, -found.operations - found.elements),
    )
    judged = [frozenset(_inert(found)) for found in cheap[:PROBES]]
    names = frozenset.intersection(*judged) if judged else frozenset()
    return [_without(found, names) for found in tracings], tuple(name for name in tracings[0].weights if name in names)


def _cheap(found: Traced) -> bool:
    between = sum(elements for _, elements, _ in found.products)
    return found.operations < MOST_OPERATIONS and found.elements + between < MOST_ELEMENTS


def _without(found: Traced, names: frozenset[str]) -> Traced:
    kept = {name: fact for name, fact in found.weights.items() if name not in names}
    gone = {name: fact for name, fact in found.weights.items() if name in names}
    return replace(found, weights=kept, idle={**found.idle, **gone})


def _inert(found: Traced) -> list[str]:
    """By how much outputs change with each, beside the others of the same layer: a gradient tells for all at once."""
    try:
        sizes = _influences(found)
    except Exception:  # noqa: BLE001 - a task without gradients keeps all its weights
        return []
    inert = []
    for name, size in sizes.items():
        beside = [other for known, other in sizes.items() if _layer(known) == _layer(name) and known != name]
        greatest = max(beside or sizes.values())
        if _like_a_bias(found.weights[name]) and size <= NOTHING * greatest and greatest > 0:
            inert.append(name)
    return inert if len(inert) <= len(sizes) // 2 else []


def _like_a_bias(weight: Fact) -> bool:
    return weight.shape[1:] == ()


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _influences(found: Traced) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), Placed("cpu"), quiet_random("cpu"):
        given = dict(zip((name for name, _ in found.arguments), found.case.inputs(), strict=False))
        laws = laws_of(found, "cpu")
        given |= {name: torch.randn(found.inputs[name].shape, dtype=found.inputs[name].dtype)
                  for name in found.drawn_inside}  # fmt: skip
        tensors = [given[name].detach() for name in found.inputs]
        for name, fact in found.weights.items():
            tensors.append(torch.empty(fact.shape, dtype=fact.dtype))
            laws[name].fill(tensors[-1], generator)
    doubled = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    weights = dict(zip(found.weights, doubled[len(found.inputs) :], strict=True))
    wanted = {name: weight.requires_grad_() for name, weight in weights.items() if weight.is_floating_point()}
    with torch.enable_grad():
        outputs = reference_of([found])(*doubled, **found.constants)
        ends = [output for output in outputs if output.requires_grad]
        along = [torch.empty_like(output).normal_(generator=generator) for output in ends]
        slopes = torch.autograd.grad(ends, list(wanted.values()), along, allow_unused=True)
    return {
        name: float(slope.norm() * weight.detach().norm())
        for (name, weight), slope in zip(wanted.items(), slopes, strict=True)
        if slope is not None
    }

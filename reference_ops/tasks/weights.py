"""Weights of a task: draws them, and finds those without influence on any output."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from reference_ops.op import Tensors
from reference_ops.tasks.calling import OnDevice, make_deterministic, parameters_and_buffers, seeded
from reference_ops.tasks.source import TaskError
from reference_ops.tasks.tracing import Fact, Find, Traced, reference_of

NEAR = 0.2  # largest relative distance from its constant of a weight that is initialised to one, as after some training
NEAR_ZERO = 0.1
MOST_OPERATIONS, MOST_ELEMENTS = 1_000_000_000, 30_000_000  # limits for a forward and backward pass on the CPU
NEGLIGIBLE = 1e-9  # influence below this share of the greatest in its layer, in float64, is negligible
PROBES = 2  # number of sizes at which influence is measured


@dataclass(frozen=True)
class Distribution:
    """How a weight is drawn: as a fixed tensor, uniformly between two numbers, or normally."""

    fixed: torch.Tensor | None = None
    least: float = 0.0
    greatest: float = 0.0
    mean: float = 0.0
    std: float = 0.0

    def fill(self, tensor: torch.Tensor, generator: torch.Generator) -> None:
        if self.fixed is not None:
            tensor.copy_(self.fixed)
        elif self.std:
            tensor.normal_(self.mean, self.std, generator=generator)
        else:
            tensor.uniform_(self.least, self.greatest, generator=generator)


def drawing(find: Find, names: Mapping[str, str], own: frozenset[str]) -> Callable[[Tensors, torch.Generator], None]:
    """Return a function that draws the weights, and the inputs in `own` as the task itself draws them.

    `names` maps the task's names of tensors to those of the op.
    """
    known: dict[tuple[int, str], dict[str, Distribution]] = {}

    def draw(inputs: Tensors, generator: torch.Generator) -> None:
        found = find(tuple(tuple(tensor.shape) for tensor in inputs.values()))
        if found is None:
            raise TaskError("the task has no size with these shapes")
        device = str(next(iter(inputs.values())).device)
        if found.weights:
            key = (id(found), device)
            if key not in known:
                known[key] = distributions_of(found, device)
            for name, distribution in known[key].items():
                distribution.fill(inputs[names[name]], generator)
        if own:
            with torch.no_grad(), OnDevice(device), seeded(device, generator.initial_seed()):
                given = dict(zip((name for name, _ in found.arguments), found.case.inputs(), strict=False))
            for name in own:
                if name in given:
                    inputs[names[name]].copy_(given[name])
                else:
                    _plainly(inputs[names[name]], found.inputs[name].drawn, generator)

    return draw


def _plainly(tensor: torch.Tensor, how: str, generator: torch.Generator) -> None:
    tensor.uniform_(generator=generator) if how == "rand" else tensor.normal_(generator=generator)


def distributions_of(found: Traced, device: str) -> dict[str, Distribution]:
    """Return the distribution of each weight, from two modules with different seeds: weights that differ are random."""
    first, second = (_made(found, device, seed) for seed in (0, 1))
    parameters = {name for name, _ in first.named_parameters()}
    one, other = (parameters_and_buffers(model) for model in (first, second))
    return {
        name: _distribution(one[name].detach(), other[name].detach(), free=name in parameters) for name in found.weights
    }


def _made(found: Traced, device: str, seed: int) -> nn.Module:
    with torch.no_grad(), OnDevice(device), seeded(device, seed):
        model = found.case.model()
    make_deterministic(model)
    return model


def _distribution(one: torch.Tensor, other: torch.Tensor, *, free: bool) -> Distribution:
    if not one.is_floating_point() or not one.numel():
        return Distribution(fixed=one)
    least, greatest = (float(value) for value in one.aminmax())
    if torch.equal(one, other):
        if not free or least < greatest:
            return Distribution(fixed=one)
        if not least:
            return Distribution(std=NEAR_ZERO)
        near = sorted((least * (1 - NEAR), least * (1 + NEAR)))
        return Distribution(least=near[0], greatest=near[1])
    if least >= 0:
        return Distribution(least=least, greatest=max(greatest, least + NEAR_ZERO * (least == greatest)))
    values = one.float()
    spread = float(values.std()) if one.numel() > 1 else abs(greatest)
    return Distribution(mean=float(values.mean()) if one.numel() > 1 else 0.0, std=spread)


def without_inert(tracings: Sequence[Traced]) -> tuple[list[Traced], tuple[str, ...]]:
    """Return the task without weights that have no influence on its outputs, such as a bias before a normalisation.

    Also returns the names of these weights. Influence is measured at the two largest sizes that a CPU can compute.
    Sizes with all of the task's channels come first, because a normalisation over one channel, or one pixel, cancels
    more than the task's own normalisation.
    """
    own = tracings[0].weights
    if not any(map(_like_a_bias, own.values())):
        return [*tracings], ()
    cheap = sorted(
        (found for found in tracings if _cheap(found)),
        key=lambda found: (found.weights != own, -found.operations - found.elements),
    )
    inert = [frozenset(_inert(found)) for found in cheap[:PROBES]]
    names = frozenset.intersection(*inert) if inert else frozenset()
    return [_without(found, names) for found in tracings], tuple(name for name in tracings[0].weights if name in names)


def _cheap(found: Traced) -> bool:
    between = sum(elements for _, elements, _ in found.products)
    return found.operations < MOST_OPERATIONS and found.elements + between < MOST_ELEMENTS


def _without(found: Traced, names: frozenset[str]) -> Traced:
    kept = {name: fact for name, fact in found.weights.items() if name not in names}
    gone = {name: fact for name, fact in found.weights.items() if name in names}
    return replace(found, weights=kept, idle={**found.idle, **gone})


def _inert(found: Traced) -> list[str]:
    """Return the biases whose influence is negligible beside that of the other weights of their layer."""
    try:
        influences = _influences(found)
    except Exception:  # noqa: BLE001 - a task without gradients keeps all its weights
        return []
    inert = []
    for name, influence in influences.items():
        others = [other for known, other in influences.items() if _layer(known) == _layer(name) and known != name]
        greatest = max(others or influences.values())
        if _like_a_bias(found.weights[name]) and influence <= NEGLIGIBLE * greatest and greatest > 0:
            inert.append(name)
    return inert if len(inert) <= len(influences) // 2 else []


def _like_a_bias(weight: Fact) -> bool:
    return weight.shape[1:] == ()


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _influences(found: Traced) -> dict[str, float]:
    """Return the influence of each weight on the outputs, from one gradient in float64."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), OnDevice("cpu"), seeded("cpu"):
        given = dict(zip((name for name, _ in found.arguments), found.case.inputs(), strict=False))
        distributions = distributions_of(found, "cpu")
        given |= {name: torch.randn(found.inputs[name].shape, dtype=found.inputs[name].dtype)
                  for name in found.drawn_inside}  # fmt: skip
        tensors = [given[name].detach() for name in found.inputs]
        for name, fact in found.weights.items():
            tensors.append(torch.empty(fact.shape, dtype=fact.dtype))
            distributions[name].fill(tensors[-1], generator)
    doubled = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    weights = dict(zip(found.weights, doubled[len(found.inputs) :], strict=True))
    variables = {name: weight.requires_grad_() for name, weight in weights.items() if weight.is_floating_point()}
    with torch.enable_grad():
        outputs = reference_of(lambda _: found)(*doubled, **found.constants)
        ends = [output for output in outputs if output.requires_grad]
        directions = [torch.empty_like(output).normal_(generator=generator) for output in ends]
        gradients = torch.autograd.grad(ends, list(variables.values()), directions, allow_unused=True)
    return {
        name: float(gradient.norm() * weight.detach().norm())
        for (name, weight), gradient in zip(variables.items(), gradients, strict=True)
        if gradient is not None
    }

"""robust-kbench tasks: folders with `func_forward.py` or `func_backward.py`, and the sizes in JSON files."""

import inspect
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from reference_ops.op import DTYPES, Op
from reference_ops.tasks.assembling import assembled, sized
from reference_ops.tasks.calling import flat
from reference_ops.tasks.smaller import smaller
from reference_ops.tasks.source import ROBUST_KBENCH_FILES, TaskError, config_of, read
from reference_ops.tasks.standalone import TaskOrigin
from reference_ops.tasks.tracing import Case, Traced, traced

MOST_SETTINGS = 6
GRADIENT = "grad_out"  # name of an output's gradient
Settings = tuple[dict[str, Any], dict[str, Any]]  # settings of the module, and of its inputs


def load(path: Path) -> Op:
    """Return a forward, or all its gradients as one op whose baseline computes the forward again, as autograd does."""
    source = read(path)
    module = source.run()
    settings = _settings(json.loads(config_of(path).read_text(encoding="utf-8")))
    backward = path.name == ROBUST_KBENCH_FILES[1]
    own, *others = (traced(_case(module, one, backward=backward)) for one in settings)
    sizes = {name: value for name, value in {**settings[0][0], **settings[0][1]}.items() if _is_size(value)}
    small = smaller(lambda changed: _case(module, _changed(settings[0], changed), backward=backward), own, sizes)
    alike = [tuple(other.weights) == tuple(own.weights) for other in (own, *others)]
    gpu = list(itertools.compress((own, *others), alike))
    each = (_accepted(module.Model, init) for init, _ in itertools.compress(settings, alike))
    name = re.sub(r"\W+", "_", path.parent.name).lower()
    note = f"robust-kbench's {path.parent.name}, a module in training mode."
    if backward:
        note += " Gradients of its inputs and weights; PyTorch's time includes the forward."
    named = f"rk_{name}_backward" if backward else f"rk_{name}"
    found, inert = sized(gpu, small)
    made = tuple(f"_calling.skeleton(lambda: Model(**{given!r}))[0]" for given in each)
    obstacle = "autograd computes its gradients from the forward: export the forward instead" if backward else ""
    forward = module.Model.forward
    origin = TaskOrigin(forward, source.module_name, path.name, source.text, ("Model",), made, obstacle)
    op = assembled(named, found, note + inert, origin)
    return op if not backward else _renamed(op, found.gpu[0])


def _renamed(op: Op, own: Traced) -> Op:
    """Name each output after the tensor whose gradient it is."""
    gradients = len([name for name in own.inputs if name.startswith(GRADIENT)])
    inputs = (*op.inputs[: len(own.inputs) - gradients], *op.inputs[len(own.inputs) :])
    reals = [spec.name for spec in inputs if not spec.dtype or DTYPES[spec.dtype].is_floating_point]
    outputs = tuple(replace(spec, name=f"grad_{name}") for spec, name in zip(op.outputs, reals, strict=True))
    return replace(op, outputs=outputs)


def _settings(config: Mapping[str, Any]) -> list[Settings]:
    """Return the settings with which the task is timed, then the others. Shared settings override the rest."""
    found: list[Settings] = []
    for kind in ("single", "multi"):
        each = [config.get(f"{kind}_{part}_configs") or [{}] for part in ("init", "input", "shared")]
        for init, inputs, shared in itertools.product(*each):
            settings = ({**init, **shared}, {**inputs, **shared})
            if settings not in found:
                found.append(settings)
    if not found:
        raise TaskError("its configuration names no sizes")
    return found[:MOST_SETTINGS]


def _changed(settings: Settings, sizes: Mapping[str, int]) -> Settings:
    init, inputs = ({name: sizes.get(name, value) for name, value in part.items()} for part in settings)
    return init, inputs


def _case(module: ModuleType, settings: Settings, *, backward: bool) -> Case:
    init, given = settings
    sizes = tuple((name, value) for name, value in {**init, **given}.items() if _is_size(value))

    def model() -> nn.Module:
        made: nn.Module = module.Model(**_accepted(module.Model, init))
        return made

    def inputs() -> list[Any]:
        return list(module.get_inputs(**_accepted(module.get_inputs, given)))

    forward = Case(model, inputs, sizes)
    return _gradients(forward, [*getattr(module, "input_names", ())]) if backward else forward


def _gradients(forward: Case, names: list[str]) -> Case:
    """Return the backward: from the inputs and the outputs' gradients to gradients of all floating-point tensors."""
    found = traced(forward)
    names = names or list(found.inputs)
    ends = [GRADIENT] if len(found.outputs) == 1 else [f"{GRADIENT}{index}" for index in range(len(found.outputs))]

    def model() -> nn.Module:
        made = forward.model()
        inner = made.forward

        def backward(*given: Any) -> tuple[torch.Tensor, ...]:
            tensors, gradients = given[: -len(ends)], given[-len(ends) :]
            weights = {name: weight.detach().requires_grad_() for name, weight in made.named_parameters()}
            inputs = [value.detach().requires_grad_(value.is_floating_point()) for value in tensors]
            variables = [value for value in (*inputs, *weights.values()) if value.requires_grad]
            made.forward = inner
            try:
                with torch.enable_grad():
                    outputs = flat(torch.func.functional_call(made, weights, tuple(inputs)))
                    return torch.autograd.grad(outputs, variables, gradients)
            finally:
                made.forward = backward

        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in (*names, *ends)]
        backward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        made.forward = backward
        return made

    def inputs() -> list[Any]:
        gradients = [torch.randn(fact.shape, dtype=fact.dtype) for fact in found.outputs]
        return [*forward.inputs(), *gradients]

    return Case(model, inputs, forward.sizes)


def _accepted(function: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a function accepts; shared settings may belong to another function."""
    known = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return dict(settings)
    return {name: value for name, value in settings.items() if name in known}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0

"""Layers of torch.nn whose forward calls functions of the package, and models whose layers are exchanged for them.

An exchanged layer keeps its parameters, buffers, hooks and names: only its class changes, so state dicts stay valid.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from evolve.export.template.forms import LAYERS, RECURRENT, Arguments, Layer, counted, tracked
from evolve.export.template.functions import Function
from evolve.export.template.fusing import form_of, found_in
from evolve.export.template.options import current
from evolve.export.template.patterns import written_out_norm

GIVEN = ("placeholder", "get_attr")  # names of the input and the weight of a module that is only a norm
WHOLE = "(the model itself)"
ORIGINAL = "_exchanged_for"  # attribute of a class that was created for a module; it holds the original class


@dataclass(frozen=True)
class Patched:
    """The result of an exchange of layers: the names of the exchanged layers, and the reasons why others were left."""

    replaced: tuple[str, ...]
    left: tuple[tuple[str, str], ...]  # the layer's name, and the reason

    def __str__(self) -> str:
        names = ", ".join(name or WHOLE for name in self.replaced) or "none"
        lines = [f"{counted(len(self.replaced), 'layer')} replaced: {names}"]
        return "\n".join([*lines, *(f"layer {name or WHOLE} left: {why}" for name, why in self.left)])


def made(functions: Mapping[str, Function], module: str) -> dict[str, type[nn.Module]]:
    """Return a subclass for each layer whose function the package has, by name.

    `module` is the name of their module.
    """
    return {one.kind.__name__: _subclass(one, functions, module) for one in LAYERS if one.function in functions}


def forwards(functions: Mapping[str, Function]) -> dict[str, Callable[..., Any]]:
    """Return the calls of layers without states: functions of a layer of torch.nn and its inputs."""

    def forward(function: Function, rest: Callable[[Any], Arguments], layer: nn.Module, *inputs: Tensor) -> Any:
        return function(*inputs, *rest(layer))

    found = [one for one in LAYERS if one.function in functions and one.is_pure]
    return {one.kind.__name__: partial(forward, functions[one.function], one.rest) for one in found}


def _subclass(layer: Layer, functions: Mapping[str, Function], module: str) -> type[nn.Module]:
    function = functions[layer.function]
    if layer.function == "batch_norm":
        forward = _batch_norm(function, _names(layer))
    elif layer.function in RECURRENT:
        forward = _recurrent(layer, function)
    else:
        names = _names(layer)

        def forward(self: Any, *inputs: Tensor, **named: Tensor) -> Any:
            if named:
                inputs = _in_order(names, inputs, named)
            return function(*inputs, *layer.rest(self))

    content = {
        "forward": forward,
        "__module__": module,
        "__doc__": f"`torch.nn.{layer.kind.__name__}`, run by kernels.",
    }
    return type(layer.kind.__name__, (layer.kind,), content)


def _names(layer: Layer) -> tuple[str, ...]:
    """Return the names of the inputs of a layer's forward."""
    forward: Any = layer.kind.forward
    return tuple(signature(forward).parameters)[1:]


def _in_order(names: tuple[str, ...], inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return the inputs of a layer, some of which are given by name."""
    rest = names[len(inputs) :]
    if len(inputs) > len(names) or sorted(named) != sorted(rest):
        given = [*map(str, range(len(inputs))), *named]
        raise TypeError(f"forward() takes the inputs {', '.join(names)}, but was given {', '.join(given)}")
    return (*inputs, *[named[name] for name in rest])


def _batch_norm(function: Function, names: tuple[str, ...]) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Tensor, **named: Tensor) -> Any:
        (x,) = _in_order(names, inputs, named)
        if tracked(self):
            return super(type(self), self).forward(x)
        self._check_input_dim(x)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return function(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )

    return forward


class _Instead(TorchFunctionMode):
    """Calls one function in place of another one of torch."""

    def __init__(self, theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
        super().__init__()
        self._theirs, self._ours = theirs, ours

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._ours if func == self._theirs else func)(*args, **(kwargs or {}))


def _recurrent(layer: Layer, function: Function) -> Callable[..., Any]:
    """Return PyTorch's forward of a layer, which creates states and unpacks sequences, with calls of this function."""
    kind: Any = layer.kind

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        with _Instead(function.form.pytorch, function):
            return kind.forward(self, *given, **named)

    return forward


class WrittenOut:
    """Subclasses of norms that a model defines itself. Their forward calls a function of the package.

    Each is created when it is first needed, and is used for all modules of a class with the same constants.
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._classes: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}

    def __call__(self, module: nn.Module) -> type[nn.Module] | None:
        """Return the class for a module; None if it is not such a norm, or consists of more than a norm."""
        if "rms_norm" not in self._functions or len(list(module.parameters())) != 1 or list(module.children()):
            return None
        graphs = [_traced(module, training) for training in (module.training, not module.training)]
        if None in graphs or str(graphs[0]) != str(graphs[1]):
            return None
        key = type(module), str(graphs[0])
        if key not in self._classes and (found := self._made(type(module), graphs[0])):
            self._classes[key] = found
        return self._classes.get(key)

    def _made(self, kind: type[nn.Module], graph: Any) -> type[nn.Module] | None:
        found = found_in(graph, ("rms_norm",), (written_out_norm,))
        if len(found) != 1 or found[0].match.results != tuple(graph.find_nodes(op="output")[0].args):
            return None
        match = found[0].match
        x, weight = match.given
        if {*graph.nodes} != {*match.inside, x, weight, graph.output_node()} or (x.op, weight.op) != GIVEN:
            return None
        function, name, of_weight = (
            self._functions["rms_norm"].of(form_of(match, found[0].written)),
            x.target,
            weight.target,
        )

        def forward(self: Any, *given: Tensor, **named: Tensor) -> Any:
            return function(*given, *[named[name] for _ in named], getattr(self, of_weight))

        content = {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__, ORIGINAL: kind}
        content |= {"__reduce_ex__": _reduced} | ({} if hasattr(kind, "__deepcopy__") else {"__deepcopy__": _copied})
        return type(kind.__name__, (kind,), content)


def _reduced(self: Any, _protocol: Any) -> Any:
    """Return the pickled form of an exchanged module, which has the original class: the new class has no name."""
    kind: Any = getattr(type(self), ORIGINAL)
    function, given, *rest = kind.__reduce_ex__(self, 0)  # later protocols require the object's own class
    return (function, tuple([kind if one is type(self) else one for one in given]), *rest)


def _copied(self: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of an exchanged module, which is exchanged as well."""
    kind: Any = type(self)
    made = memo[id(self)] = kind.__new__(kind)
    made.__setstate__(copy.deepcopy(self.__dict__ if is_parametrized(self) else self.__getstate__(), memo))
    return made


def _traced(module: nn.Module, training: bool) -> Any:
    """Return the graph of a module's forward; None if it cannot be traced."""
    before = module.training
    module.training = training
    try:
        return fx.Tracer().trace(module)
    except Exception:  # noqa: BLE001 - whatever a forward raises whose arguments are not tensors
        return None
    finally:
        module.training = before


def patch(
    model: nn.Module,
    layers: Mapping[str, type[nn.Module]],
    written_out: WrittenOut | None = None,
    functions: Mapping[str, Function] | None = None,
) -> Patched:
    """Exchange the layers of a model in place, and return a report of exchanged and other layers.

    With the package's functions, layers of a model on a GPU are left if no kernel for them was measured on such a GPU:
    their calls would only take the host longer.
    """
    device = next((x.device for x in chain(model.parameters(), model.buffers())), torch.device("meta"))
    takes = {one.kind: one.takes for one in LAYERS}
    used = {one.kind: functions[one.function] for one in LAYERS if functions and one.function in functions}
    replaced, left = [], []
    for name, module in model.named_modules():
        kind = _kind(module)
        if kind not in takes:
            found = written_out(module) if written_out and not hasattr(kind, ORIGINAL) else None
            why = _unused(used.get(nn.RMSNorm), device) if found else f"the package has no {kind.__name__}"
            if found and not why:
                module.__class__ = found
                replaced.append(name)
            elif not list(module.children()) and kind not in layers.values():
                left.append((name, why))
        elif kind.__name__ not in layers:
            left.append((name, f"the package has no {kind.__name__}"))
        elif why := takes[kind](module) or _unused(used.get(kind), device):
            left.append((name, why))
        else:
            _exchange(module, layers[kind.__name__])
            replaced.append(name)
    return Patched(tuple(replaced), tuple(left))


def _unused(function: Function | None, device: torch.device) -> str:
    """Return the reason why no kernel of a function can run on a device, or an empty string if one may."""
    given = [one for one in function.primitives.values() if one.device_type == device.type] if function else []
    if not given:
        return ""
    info = given[0].machine.info(device)
    measured = [one for primitive in given for kernel in primitive.kernels for one in kernel.measured]
    # autotuning tries kernels that were measured on another device with the same machine code
    if any(one.device == info.name or (current().autotune and one.arch == info.arch) for one in measured):
        return ""
    return f"no kernel for it was measured on {info.name}"


def unpatch(model: nn.Module, layers: Mapping[str, type[nn.Module]]) -> tuple[str, ...]:
    """Restore the classes of a model's layers, and return the names of the layers."""
    kinds = {layers[one.kind.__name__]: one.kind for one in LAYERS if one.kind.__name__ in layers}
    restored = []
    for name, module in model.named_modules():
        kind = _kind(module)
        if original := getattr(kind, ORIGINAL, None) or kinds.get(kind):
            _exchange(module, original)
            restored.append(name)
    return tuple(restored)


def _kind(module: nn.Module) -> type[nn.Module]:
    """Return the class of a layer. PyTorch gives a parametrized layer, such as one with weight norm, a new subclass."""
    kind = type(module)
    return kind.__bases__[0] if is_parametrized(module) else kind


def _exchange(module: nn.Module, kind: type[nn.Module]) -> None:
    own = type(module)
    if is_parametrized(module):  # copies of the module may share its class
        content = {name: value for name, value in vars(own).items() if name not in {"__dict__", "__weakref__"}}
        kind = type(own.__name__, (kind,), content)
    module.__class__ = kind

"""Layers of torch.nn whose forward calls functions of the package, and models whose layers are exchanged for them.

An exchanged layer keeps its parameters, buffers, hooks and names: only its class changes, so state dicts stay valid.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from evolve.export.template.functions import Function

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Layer:
    """A layer of torch.nn: the function that it calls, and the arguments that it passes beside its inputs."""

    kind: type[nn.Module]
    function: str
    rest: Callable[[Any], Arguments]
    takes: Callable[[Any], str] = lambda _: ""  # why a layer cannot be exchanged; empty if it can


def _conv(layer: Any) -> Arguments:
    return (layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _zeros(layer: Any) -> str:
    return "" if layer.padding_mode == "zeros" else f"its padding_mode is {layer.padding_mode!r}"


def _pool(layer: Any) -> Arguments:
    return (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices)


def _average(layer: Any) -> Arguments:
    return (layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad)


def _tracked(layer: Any) -> str:
    plain = layer.track_running_stats and layer.affine and layer.momentum is not None
    return "" if plain else "it has no running statistics, weights or momentum"


LAYERS = (
    *(Layer(kind, kind.__name__.lower(), lambda m: (m.inplace,)) for kind in (nn.ReLU, nn.SiLU, nn.Mish, nn.Hardswish)),
    *(Layer(kind, kind.__name__.lower(), lambda _: ()) for kind in (nn.Sigmoid, nn.Tanh)),
    Layer(nn.ELU, "elu", lambda m: (m.alpha, m.inplace)),
    Layer(nn.LeakyReLU, "leaky_relu", lambda m: (m.negative_slope, m.inplace)),
    Layer(nn.GELU, "gelu", lambda m: (m.approximate,)),
    Layer(nn.Softplus, "softplus", lambda m: (m.beta, m.threshold)),
    Layer(nn.Softmax, "softmax", lambda m: (m.dim,)),
    Layer(nn.LogSoftmax, "log_softmax", lambda m: (m.dim,)),
    Layer(nn.LayerNorm, "layer_norm", lambda m: (m.normalized_shape, m.weight, m.bias, m.eps)),
    Layer(nn.RMSNorm, "rms_norm", lambda m: (m.normalized_shape, m.weight, m.eps)),
    Layer(nn.GroupNorm, "group_norm", lambda m: (m.num_groups, m.weight, m.bias, m.eps)),
    *(Layer(kind, "batch_norm", lambda _: (), _tracked) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)),
    Layer(nn.Linear, "linear", lambda m: (m.weight, m.bias)),
    *(Layer(kind, kind.__name__.lower(), _conv, _zeros) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    Layer(nn.MaxPool1d, "max_pool1d", _pool),
    Layer(nn.MaxPool2d, "max_pool2d", _pool),
    Layer(nn.MaxPool3d, "max_pool3d", _pool),
    Layer(nn.AvgPool1d, "avg_pool1d", _average),
    Layer(nn.AvgPool2d, "avg_pool2d", lambda m: (*_average(m), m.divisor_override)),
    Layer(nn.AvgPool3d, "avg_pool3d", lambda m: (*_average(m), m.divisor_override)),
    Layer(nn.AdaptiveAvgPool1d, "adaptive_avg_pool1d", lambda m: (m.output_size,)),
    Layer(nn.AdaptiveAvgPool2d, "adaptive_avg_pool2d", lambda m: (m.output_size,)),
    Layer(nn.AdaptiveAvgPool3d, "adaptive_avg_pool3d", lambda m: (m.output_size,)),
    Layer(nn.MSELoss, "mse_loss", lambda m: (None, None, m.reduction)),
    Layer(nn.HuberLoss, "huber_loss", lambda m: (m.reduction, m.delta)),
    Layer(nn.KLDivLoss, "kl_div", lambda m: (None, None, m.reduction, m.log_target)),
    Layer(
        nn.CrossEntropyLoss,
        "cross_entropy",
        lambda m: (m.weight, None, m.ignore_index, None, m.reduction, m.label_smoothing),
    ),
    Layer(nn.CosineSimilarity, "cosine_similarity", lambda m: (m.dim, m.eps)),
)


@dataclass(frozen=True)
class Patched:
    """What an exchange of layers did: the names of the exchanged ones, and why others were left."""

    replaced: tuple[str, ...]
    left: tuple[tuple[str, str], ...]  # a layer's name, and why

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} layers replaced: {', '.join(self.replaced) or 'none'}"]
        return "\n".join([*lines, *(f"{name} left: {why}" for name, why in self.left)])


def made(functions: Mapping[str, Function], module: str) -> dict[str, type[nn.Module]]:
    """Return a subclass for each layer whose function the package has, by name. `module` is where they are found."""
    return {one.kind.__name__: _subclass(one, functions, module) for one in LAYERS if one.function in functions}


def forwards(functions: Mapping[str, Function]) -> dict[str, Callable[..., Any]]:
    """Return what layers without a state of their own call: functions of a layer of torch.nn and its inputs."""

    def forward(function: Function, rest: Callable[[Any], Arguments], layer: nn.Module, *inputs: Tensor) -> Any:
        return function(*inputs, *rest(layer))

    found = [one for one in LAYERS if one.function in functions and one.function != "batch_norm"]
    return {one.kind.__name__: partial(forward, functions[one.function], one.rest) for one in found}


def _subclass(layer: Layer, functions: Mapping[str, Function], module: str) -> type[nn.Module]:
    function = functions[layer.function]
    if layer.function == "batch_norm":
        forward = _batch_norm(function)
    else:

        def forward(self: Any, *inputs: Tensor) -> Any:
            return function(*inputs, *layer.rest(self))

    content = {"forward": forward, "__module__": module, "__doc__": f"`torch.nn.{layer.kind.__name__}` by kernels."}
    return type(layer.kind.__name__, (layer.kind,), content)


def _batch_norm(function: Function) -> Callable[..., Any]:
    def forward(self: Any, x: Tensor) -> Any:
        if _tracked(self):
            return super(type(self), self).forward(x)
        self._check_input_dim(x)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return function(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )

    return forward


def patch(model: nn.Module, layers: Mapping[str, type[nn.Module]]) -> Patched:
    """Exchange the layers of a model in place, and return what was exchanged and what was left."""
    takes = {one.kind: one.takes for one in LAYERS}
    replaced, left = [], []
    for name, module in model.named_modules():
        kind = type(module)
        if kind not in takes:
            if not list(module.children()) and kind not in layers.values():
                left.append((name, f"the package has no {kind.__name__}"))
        elif kind.__name__ not in layers:
            left.append((name, f"the package has no {kind.__name__}"))
        elif why := takes[kind](module):
            left.append((name, why))
        else:
            module.__class__ = layers[kind.__name__]
            replaced.append(name)
    return Patched(tuple(replaced), tuple(left))


def unpatch(model: nn.Module, layers: Mapping[str, type[nn.Module]]) -> tuple[str, ...]:
    """Give the layers of a model their classes back, and return their names."""
    kinds = {layers[one.kind.__name__]: one.kind for one in LAYERS if one.kind.__name__ in layers}
    restored = []
    for name, module in model.named_modules():
        if type(module) in kinds:
            module.__class__ = kinds[type(module)]
            restored.append(name)
    return tuple(restored)

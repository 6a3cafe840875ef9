"""Forms: translate calls with PyTorch's signatures into calls of ops, and list the layers that make such calls.

A form has a function with PyTorch's own arguments. The function returns the call of an op, or the reason why no op
computes the result. Tensors are given as views: their leading dims beyond those of the op are folded into the op's
first dim, and copies are made only once a kernel is chosen.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reference_ops.op import Number

CALL_US, BYTES_PER_US = 8.0, 1e6  # time of a call that adds or copies, and the bandwidth of a slow GPU
INTEGER = str(int)
CHANNELS_LAST = "the channels are last in memory, and the results of this function's kernels have another layout"
Arguments = tuple[Any, ...]
RECURRENT = ("lstm", "gru", "rnn_tanh", "lstm_cell", "gru_cell")  # functions that layers call after creating states
LOW, FLOAT32, NOTHING = "low", "float32", "nothing"  # how autocast changes a function's tensors on a GPU
# Functions whose tensors autocast leaves unchanged on a CPU.
UNCHANGED_ON_CPU = frozenset(
    ("cosine_similarity", "cumprod", "cumsum", "group_norm", "group_norm_silu", "gru_cell", "layer_norm", "log_softmax",
     "lstm_cell", "masked_softmax", "mv", "softmax", "softplus", "sum")
)  # fmt: skip


class Lost(NamedTuple):
    """The bytes that are moved in addition because the compiler cannot fuse a call with its neighbours in a graph."""

    forward: int
    backward: int


NOTHING_LOST = Lost(0, 0)


class Call(NamedTuple):
    """A call of an op: its inputs as views, its parameters, and a function from the op's outputs to the result."""

    op: str
    views: tuple[Tensor, ...]
    parameters: Mapping[str, Number]
    finish: Callable[[tuple[Tensor, ...]], Any]
    # bytes of results that `finish` copies or adds to; the kernel must save more time than that takes
    after_bytes: int = 0
    # pairs of an output and the view to which `finish` copies it, a tensor of the caller such as running statistics
    records: tuple[tuple[int, int], ...] = ()
    # A tensor of the caller, its replacement among the views, and the function that creates the replacement, if the
    # gradients differ.
    replaced: tuple[Tensor, Tensor, Callable[[Tensor], Tensor]] | None = None

    def recorded(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """Return the places among the caller's tensors to which outputs are copied; -1 if a view is not one of them."""
        views = [self.views[at] for _, at in self.records]
        return tuple([next((at for at, x in enumerate(tensors) if x is view), -1) for view in views])


# Arguments of the calls of which another call is composed. The generator is sent the result of each, and returns the
# result of the composed call.
Parts = Generator[tuple[Any, ...], Any, Any]
Lowered = Call | list[Call] | str  # calls in order of preference, or the reason why there is none


@dataclass(frozen=True)
class Form:
    """A function of the package: the ops that it may call, and PyTorch's function of the same arguments."""

    name: str
    ops: tuple[str, ...]
    lower: Callable[..., Lowered]
    pytorch: Callable[..., Any]
    autocast: str = ""  # LOW, FLOAT32 or NOTHING; if it is empty, PyTorch runs under autocast
    same: tuple[Callable[..., Any], ...] = ()  # functions of torch that take the same arguments
    result: str = "Tensor"  # type of the result
    own: bool = False  # whether PyTorch lacks the op
    # returns the calls of this function of which a call is composed
    parts: Callable[..., Parts | None] | None = None

    def autocast_to(self, device_type: str) -> torch.dtype | None:
        """Return the dtype that autocast gives to arguments: float64 if it changes none, None if it is unknown."""
        if device_type == "cpu" and self.name in UNCHANGED_ON_CPU:
            return torch.float64
        if self.autocast == LOW:
            return torch.get_autocast_dtype(device_type)
        return {FLOAT32: torch.float32, NOTHING: torch.float64}.get(self.autocast)


class Scalars(NamedTuple):
    """The arguments of a form that are not tensors."""

    names: tuple[str, ...]  # names of all arguments of the form
    flags: frozenset[str]
    others: Mapping[str, str]  # the types of numbers and other arguments

    @classmethod
    def of(cls, lower: Callable[..., Any]) -> "Scalars":
        kinds = {name: kind for name, kind in getattr(lower, "__annotations__", {}).items() if name != "return"}
        flags = frozenset(name for name, kind in kinds.items() if kind is bool)
        # The types are text, because a graph that is being traced cannot convert a type to text.
        others = {name: str(kind) for name, kind in kinds.items() if kind is not Any and "Tensor" not in str(kind)}
        return cls(tuple(kinds), flags, others)

    def fault(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> str:
        """Return the reason why PyTorch refuses an argument or a call's key lacks it; empty if there is none."""
        for name, value in (*zip(self.names, arguments, strict=False), *named.items()):
            if name in self.flags and type(value) is not bool:
                return f"`{name}` is neither True nor False"
            if name in self.others and (fault := _misfit(name, self.others[name], value)):
                return f"`{name}` is {fault}"
        return ""


def _misfit(name: str, taken: str, value: Any) -> str:
    """Return the type of an argument that should be of another type; empty if it fits or cannot be checked."""
    if isinstance(value, Tensor):
        return "a tensor"
    if value is None and "None" not in taken:
        return "missing"
    if isinstance(value, str) and "str" not in taken:
        return "text"
    if isinstance(value, bool) and "bool" not in taken:
        return "no number"
    is_whole = taken == INTEGER or (name == "dim" and value is not None and not isinstance(value, list | tuple))
    return "" if not is_whole or isinstance(value, int) or hasattr(value, "__index__") else "no integer"


def with_fixed_numbers(call: Call) -> Call:
    """Return a call with fixed numbers in place of those that a graph leaves open.

    PyTorch's own functions also fix them.
    """
    if not any(isinstance(value, torch.SymFloat) for value in call.parameters.values()):
        return call
    fixed = {name: float(v) if isinstance(v, torch.SymFloat) else v for name, v in call.parameters.items()}
    return call._replace(parameters=fixed)


def counted(count: int, noun: str) -> str:
    """Return a number and a noun, such as `2 calls`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first(outputs: tuple[Tensor, ...]) -> Tensor:
    return outputs[0]


def whole(outputs: tuple[Tensor, ...]) -> Any:
    """Return a single output as a tensor, several as a tuple."""
    return outputs[0] if len(outputs) == 1 else outputs


def last(x: Tensor, dim: int) -> Tensor:
    """Return a view in which this dim is the last one."""
    return x if dim in (-1, x.dim() - 1) else x.movedim(dim, -1)


def back(out: Tensor, dim: int) -> Tensor:
    """Undo `last`."""
    return out if dim in (-1, out.dim() - 1) else out.movedim(-1, dim)


def copying_us(nbytes: int, bytes_per_us: float = BYTES_PER_US) -> float:
    """Return the time to copy, or to add to, this number of bytes."""
    return CALL_US + 2 * nbytes / bytes_per_us if nbytes else 0.0


def copied_bytes(x: Tensor) -> int:
    """Return the number of bytes that are copied before a kernel can read a tensor."""
    return 0 if x.is_contiguous() else x.numel() * x.dtype.itemsize


def contiguous(out: Tensor, dim: int) -> Tensor:
    """Undo `last`, and copy the result if its layout in memory then differs from PyTorch's."""
    return back(out, dim).contiguous()


def as_input(out: Tensor, x: Tensor) -> Tensor:
    """Return a result with the layout of PyTorch's elementwise functions: in the order of the input's dims."""
    return out if out.stride() == x.stride() else torch.empty_like(x, dtype=out.dtype).copy_(out)


def has_channels_last(*tensors: Tensor) -> bool:
    """Return whether the channels of images are last in memory. PyTorch's results then have this layout, too."""
    return any(x.dim() > 2 and not x.is_contiguous() and x.movedim(1, -1).is_contiguous() for x in tensors)


def as_sizes(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Return one number per dim, as PyTorch interprets `kernel_size=3`."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return sizes * count if len(sizes) == 1 else sizes


def single(value: int | Sequence[int], count: int) -> int | None:
    """Return the number that all dims share; None if they differ."""
    sizes = as_sizes(value, count)
    return sizes[0] if len(sizes) == count and len(set(sizes)) == 1 else None


def permuted(x: Tensor) -> tuple[int, ...] | None:
    """Return the order of dims in which a tensor is contiguous; None if there is none."""
    strides = x.stride()
    order: list[int] = []
    for dim in range(x.dim()):  # torch.compile cannot trace a sort by strides that are not constant
        place = dim
        while place and strides[order[place - 1]] < strides[dim]:
            place -= 1
        order.insert(place, dim)
    return tuple(order) if x.permute(order).is_contiguous() else None


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def elementwise(op: str, *tensors: Tensor, **parameters: Number) -> Lowered:
    """Return the call of an op on tensors of one shape, in their order in memory."""
    x = tensors[0]
    if any(other.shape != x.shape for other in tensors):
        return "the shapes differ"
    if not x.is_contiguous() and (order := permuted(x)):
        back_again = inverse(order)
        views = tuple(tensor.permute(order) for tensor in tensors)
        return Call(op, views, parameters, lambda outputs: outputs[0].permute(back_again))
    return Call(op, tensors, parameters, first)


def floating(*tensors: Tensor | None) -> bool:
    return all(tensor is not None and tensor.is_floating_point() for tensor in tensors)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Return arguments with all tensors of up to 32 bits converted to another dtype, as autocast does."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype != torch.float64 else value
    if isinstance(value, tuple | list):
        return type(value)(cast(one, dtype) for one in value)
    return value


def named(forms: Iterable[Form], names: Collection[str]) -> list[Form]:
    """Return the forms of these names."""
    return [form for form in forms if form.name in names]


@dataclass(frozen=True)
class Layer:
    """A layer of torch.nn: the function that it calls, and the arguments that it passes besides its inputs."""

    kind: type[nn.Module]
    function: str
    rest: Callable[[Any], Arguments]
    takes: Callable[[Any], str] = lambda _: ""  # the reason why a layer cannot be exchanged; empty if it can

    @property
    def is_pure(self) -> bool:
        """Whether its forward only calls the function."""
        return self.function not in {"batch_norm", *RECURRENT}


def _conv(layer: Any) -> Arguments:
    return (layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _zeros(layer: Any) -> str:
    return "" if layer.padding_mode == "zeros" else f"its padding_mode is {layer.padding_mode!r}"


def _pool(layer: Any) -> Arguments:
    return (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices)


def _average(layer: Any) -> Arguments:
    return (layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad)


def tracked(layer: Any) -> str:
    """Return the reason why the functional batch norm differs from a layer; empty if it does not."""
    plain = layer.track_running_stats and layer.affine and layer.momentum is not None
    return "" if plain else "it has no running statistics, weights or momentum"


def _tanh(layer: Any) -> str:
    return "" if layer.nonlinearity == "tanh" else f"its nonlinearity is {layer.nonlinearity!r}"


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
    *(Layer(kind, "batch_norm", lambda _: (), tracked) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)),
    Layer(
        nn.Embedding,
        "embedding",
        lambda m: (m.weight, m.padding_idx, m.max_norm, m.norm_type, m.scale_grad_by_freq, m.sparse),
    ),
    *(Layer(kind, kind.__name__.lower(), lambda _: ()) for kind in (nn.LSTM, nn.GRU)),
    Layer(nn.RNN, "rnn_tanh", lambda _: (), _tanh),
    Layer(nn.LSTMCell, "lstm_cell", lambda _: ()),
    Layer(nn.GRUCell, "gru_cell", lambda _: ()),
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

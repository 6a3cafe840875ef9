"""Modes that a task runs under: they build its module without values, and record random draws and dependencies."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.flop_counter import flop_registry

from reference_ops.tasks.source import TaskError

NEW = frozenset([
    "rand", "randn", "randint", "randperm", "zeros", "ones", "empty", "full", "eye", "arange", "linspace", "logspace",
    "tensor", "as_tensor", "normal", "tril_indices", "triu_indices", "range", "hann_window", "hamming_window",
])  # fmt: skip


META = "meta"  # PyTorch's device for tensors that have a shape and a dtype, but no values


class WithoutValues(TorchDispatchMode):
    """Moves every tensor that an operation takes to the meta device, where nothing is computed.

    PyTorch's FakeTensorMode does this and more, but it imports the compiler, which takes seconds.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(value, torch.Tensor) and not value.is_meta for value in tree_iter((args, kwargs))):
            args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(META), (args, kwargs))
        return func(*args, **kwargs)


class OnDevice(TorchFunctionMode):
    """A mode that creates tensors on this device, even where the task names another one."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in {"cuda", "cpu"} and args and isinstance(args[0], torch.Tensor):
            return args[0].to(self.device)
        if name == "to":
            args = tuple(self.device if _is_device(arg) else arg for arg in args)
        if name in NEW or kwargs.get("device") is not None:
            kwargs["device"] = self.device
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def skeleton(make: Callable[[], nn.Module]) -> tuple[nn.Module, list[str]]:
    """Return the module on the meta device, without values, and the random layers switched off in it, in words."""
    try:
        with torch.no_grad(), seeded("cpu"), OnDevice(META):
            model = make()
    except Exception:  # noqa: BLE001 - the constructor reads values, which meta tensors lack
        with torch.no_grad(), seeded("cpu"), OnDevice("cpu"):
            model = make()
    switched_off = make_deterministic(model)
    return model.to(META), switched_off


def make_deterministic(model: nn.Module) -> list[str]:
    """Make outputs depend on inputs, parameters and buffers alone; return the layers switched off, in words.

    Running statistics are removed, because in training mode no output depends on them. Tensors that are plain
    attributes become buffers, so that the caller can supply them.
    """
    switched_off = []
    for name, part in model.named_modules():
        if isinstance(part, _NormBase) and part.training:
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
        if isinstance(part, _DropoutNd) and part.p > 0 and part.training:
            switched_off.append(f"{name or 'dropout'} (p={part.p:g})")
            part.p = 0.0
        if isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout and part.training:
            switched_off.append(f"{name} (dropout={part.dropout:g})")
            part.dropout = 0.0
        if isinstance(part, nn.RNNBase):  # on a GPU this would move the weights to other memory
            part.flatten_parameters = lambda: None  # type: ignore[method-assign]
        for key, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                delattr(part, key)
                part.register_buffer(key, value.detach())
    return switched_off


def parameters_and_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by their dotted names, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@contextlib.contextmanager
def seeded(device: str, seed: int = 0) -> Iterator[None]:
    """Seed torch's random numbers, restore their state afterwards, and silence warnings of the task."""
    with (
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[torch.cuda.current_device()] if device.startswith("cuda") else []),
    ):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        yield


def _is_device(value: object) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in {"cuda", "cpu"})


MOST_STEPS = 100_000
STRUCTURED = frozenset(["tril", "triu", "diag", "diag_embed", "diagonal_backward", "eye", "tril_indices", "one_hot"])
RANDOM = frozenset([torch.rand, torch.randn, torch.rand_like, torch.randn_like])
RECURRENT = frozenset(["lstm", "gru", "rnn_tanh", "rnn_relu"])
STATISTICS = frozenset(["running_mean", "running_var"])


class Drawn(OnDevice):
    """A mode that records the tensors that come directly from `torch.rand` and `torch.randn`."""

    def __init__(self) -> None:
        super().__init__(META)
        self.plain: list[tuple[str, torch.Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)
        if func in {torch.rand, torch.randn}:
            self.plain.append((func.__name__, made))
        return made

    def how(self, tensor: torch.Tensor) -> str:
        return next((name for name, made in self.plain if made is tensor), "")


class Forward(OnDevice):
    """A mode that replaces random numbers with extra inputs, and a recurrent layer with one operation of equal cost.

    Traced step by step, a recurrent layer would take tens of thousands of operations.
    """

    def __init__(self, watch: "Watch") -> None:
        super().__init__(META)
        self.watch = watch
        self.given: dict[str, torch.Tensor] = {}

    def _given(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """Return an extra input for a tensor that the forward draws, and that would differ from call to call."""
        kwargs.pop("generator", None)
        kwargs["device"] = META
        like = func in {torch.randn_like, torch.rand_like}
        made: torch.Tensor = torch.empty_like(*args, **kwargs) if like else torch.empty(*args, **kwargs)
        name = f"{func.__name__}_{len(self.given)}"
        self.given[name] = made
        self.watch.follow(name, made)
        return made

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in RANDOM:
            return self._given(func, args, dict(kwargs or {}))
        if getattr(func, "__name__", "") not in RECURRENT or len(args) != 9 or not isinstance(args[2], list | tuple):
            return super().__torch_function__(func, types, args, kwargs)
        x, state, weights, _, layers, _, _, both, batch_first = args
        states = tuple(state) if isinstance(state, tuple | list) else (state,)
        everything = sum(part.flatten()[0] for part in (x, *states, *weights))
        out = (everything + x.new_empty((*x.shape[:2], states[0].shape[-1] * (1 + both)))).contiguous()
        last = tuple(everything + part for part in states)
        tokens = x.shape[0] * x.shape[1]
        operations = sum(2 * tokens * weight.numel() for weight in weights if weight.ndim == 2)
        self.watch.products += [(operations // layers, out.numel(), True)] * layers
        del batch_first  # the first two dims of the output are those of the input, in either order
        return (out, *last)


class Watch(TorchDispatchMode):
    """A mode that records which tensors depend on which, which inputs are written to, and how many operations run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.depends_on: dict[int, frozenset[str]] = {}  # names of inputs and weights, by storage
        self.names: dict[int, str] = {}  # of inputs and weights, by storage
        self.kept: list[torch.Tensor] = []  # keeps storages alive, because their addresses are keys
        self.changed: set[str] = set()
        self.products: list[tuple[int, int, bool]] = []
        self.structured = False
        self.steps = 0

    def follow(self, name: str, tensor: torch.Tensor) -> None:
        self.kept.append(tensor)
        self.names[_storage(tensor)] = name
        self.depends_on[_storage(tensor)] = frozenset([name])

    def sources(self, tensor: torch.Tensor) -> frozenset[str]:
        return self.depends_on.get(_storage(tensor), frozenset())

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TaskError(f"it takes more than {MOST_STEPS:,} operations")
        _refuse_random(func, args, kwargs)
        name = func._overloadpacket.__name__  # noqa: SLF001 - its only name
        self.structured |= name in STRUCTURED
        names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        sources = [
            self.sources(tensor)
            for key, value in given.items()
            if key not in STATISTICS
            for tensor in tree_iter(value)
            if isinstance(tensor, torch.Tensor)
        ]
        joined = frozenset().union(*sources)
        for argument in func._schema.arguments:  # noqa: SLF001
            if argument.alias_info and argument.alias_info.is_write:
                self._written(given.get(argument.name), name, given, joined)
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self.kept.append(tensor)
                own = self.sources(tensor)
                self.depends_on[_storage(tensor)] = own if name == "copy_" else own | joined
        if func._overloadpacket in flop_registry and isinstance(result, torch.Tensor):  # noqa: SLF001
            operations = flop_registry[func._overloadpacket](*args, **kwargs, out_val=result)  # noqa: SLF001
            self.products.append((int(operations), result.numel(), "conv" in name))
        return result

    def _written(self, value: object, name: str, given: dict[str, Any], joined: frozenset[str]) -> None:
        for tensor in tree_iter(value):
            if not isinstance(tensor, torch.Tensor):
                continue
            at = _storage(tensor)
            if at in self.names:
                self.changed.add(self.names[at])
            whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
            overwritten = name == "copy_" and whole and isinstance(given.get("src"), torch.Tensor)
            self.depends_on[at] = self.sources(given["src"]) if overwritten else self.sources(tensor) | joined


def _refuse_random(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TaskError if an operation is random. Attention is allowed, because its dropout is off."""
    if torch.Tag.nondeterministic_seeded not in func.tags or "attention" in func.__name__:
        return
    del args, kwargs
    raise TaskError(f"its forward draws random numbers ({func.__name__}), so there is no right output")


def _storage(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - a tensor without values has no other address
    return address

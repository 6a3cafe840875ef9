"""Modes for tracing a task: they compute no values, and record random draws and dependencies."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.flop_counter import flop_registry

from reference_ops.tasks.calling import META, RANDOM, OnDevice
from reference_ops.tasks.source import TaskError


class WithoutValues(TorchDispatchMode):
    """A mode that moves every tensor argument of an operation to the meta device, where nothing is computed.

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


MOST_STEPS = 100_000
STRUCTURED = frozenset(["tril", "triu", "diag", "diag_embed", "diagonal_backward", "eye", "tril_indices", "one_hot"])
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

    Step by step, a recurrent layer would be traced as tens of thousands of operations.
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
    """A mode that records the dependencies of tensors, the inputs that are written to, and the number of operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.depends_on: dict[int, frozenset[str]] = {}  # names of the inputs and weights on which a storage depends
        self.names: dict[int, str] = {}  # names of inputs and weights; key: storage
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
    raise TaskError(f"its forward draws random numbers ({func.__name__}), so there is no single right output")


def _storage(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - a tensor without values has no other address
    return address

"""Registration of the package's ops with PyTorch, for torch.compile and torch.export.

Each op becomes an opaque op of a library, `<package>_kernels::<op>`, with a shape function and a gradient. It is
defined when a graph first needs it, because defining all ops would make the import slower. A graph takes an opaque op
only where a kernel is known to beat the compiler's code, because nothing can be fused with an opaque op.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.library import Library, register_autograd
from torch.utils._python_dispatch import _disable_current_modes

from evolve.export.template.calls import TRANSFORMED
from evolve.export.template.folding import MOST_RANK
from evolve.export.template.forms import NOTHING_LOST, Call, Lost
from evolve.export.template.gradients import Gradients, Step, keep, left
from reference_ops.op import Number, Op
from reference_ops.precision import TORCH_DTYPES

Tensors = tuple[Tensor, ...]
ASKS = "wins"  # the op whose result's size shows a graph whether a kernel wins
# the last argument of each opaque op: bytes that are moved because its backward is fused with nothing
LOST = "int lost_bytes=0"


class Primitive(Protocol):
    """The implementation of an opaque op: an op of the package, run by a kernel or by PyTorch."""

    op: Op
    gradients: Gradients

    @property
    def kernels(self) -> Sequence[object]: ...

    def in_graph(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Run as an opaque op, by a kernel or by PyTorch, whose outputs are contiguous."""

    def loses(
        self,
        metas: Tensors,
        device: torch.device,
        parameters: Mapping[str, Number],
        after_bytes: int,
        lost: Lost,
        learning: Collection[str],
    ) -> str:
        """Return the reason why no kernel wins for tensors like these, or an empty string."""


class Registry:
    """The opaque ops of a package."""

    def __init__(self, namespace: str, primitives: Mapping[str, Primitive]) -> None:
        self.namespace = namespace
        self._primitives = primitives
        self._library: Library | None = None
        self._defined: set[str] = set()
        self._reasons: dict[str, str] = {}  # the reason why no kernel won at the last call of each op
        self._lock = threading.RLock()

    def define(self, name: str) -> bool:
        """Define the opaque op of this name, and those of its backward. Return whether a graph may contain it now."""
        if name not in self._primitives or not self._primitives[name].kernels:
            return False
        if torch._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001 - there is no public way to ask
            self._reasons[name] = TRANSFORMED  # an opaque op has no rule for batches
            return False
        if name not in self._defined:
            with self._lock, _disable_current_modes():
                self._define(name)
        return True

    def ask(self, call: Call, lost: Lost) -> bool:
        """Return whether a kernel wins although bytes are copied after it and it is fused with nothing.

        In a graph, this adds no guard on sizes.
        """
        values = _as_declared(self._primitives[call.op].op, call.parameters).values()
        integers = [value for value in values if not isinstance(value, float)]
        floats = [value for value in values if isinstance(value, float)]
        # Determined here, because an op does not know which of its tensors require gradients.
        learns = [x.requires_grad and torch.is_grad_enabled() for x in call.views]
        asks = getattr(getattr(torch.ops, self.namespace), ASKS)
        flag = asks(list(call.views), call.op, integers, floats, call.after_bytes, list(lost), learns)
        return bool(flag.shape[0])

    def reason(self, calls: Sequence[Call]) -> str:
        """Return the reason why no kernel won for these calls, each of which was just tried."""
        known = (self._reasons.get(call.op) or "the package has no kernel for it" for call in calls)
        return "; ".join(dict.fromkeys(known))

    def run(self, call: Call, lost: Lost) -> Tensors:
        """Call the opaque op on tensors whose leading dims are folded first."""
        name, views = call.op, call.views
        op = self._primitives[name].op
        dim = (*op.outputs[0].dims[:1], *op.inputs[0].dims[:1])[0]
        inputs: list[Tensor] = []
        leading: Any = None
        for spec, x in zip(op.inputs, views, strict=True):
            extra = x.dim() - len(spec.dims)
            if extra and spec.dims[:1] == (dim,) and len(spec.dims) <= MOST_RANK:
                leading = x.shape[: extra + 1]
                inputs.append(x.flatten(0, extra) if extra > 0 else x.unsqueeze(0))
            else:
                inputs.append(x)
        outputs = self.opaque(name, tuple(inputs), call.parameters, lost.backward)
        if leading is None:
            return outputs
        folded = [spec.dims[:1] == (dim,) for spec in op.outputs]
        pairs = zip(outputs, folded, strict=True)
        return tuple([out.reshape((*leading, *out.shape[1:])) if fold else out for out, fold in pairs])

    def opaque(self, name: str, inputs: Tensors, parameters: Mapping[str, Number], lost_bytes: int = 0) -> Tensors:
        """Call the opaque op on tensors of the op's own ranks."""
        values = _as_declared(self._primitives[name].op, parameters).values()
        outputs = getattr(getattr(torch.ops, self.namespace), name)(*inputs, *values, lost_bytes)
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    def _define(self, name: str) -> None:
        if self._library is None:
            self._library = Library(self.namespace, "FRAGMENT")
            given = "Tensor[] views, str op, SymInt[] integers, float[] floats, SymInt after_bytes"
            given += ", int[] lost, bool[] learns"
            self._library.define(f"{ASKS}({given}) -> Tensor")
            self._library.impl(ASKS, self._flag, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{self.namespace}::{ASKS}", self._flag, lib=self._library)
        if name in self._defined:
            return
        primitive, library = self._primitives[name], self._library
        op, qualified = primitive.op, f"{self.namespace}::{name}"
        library.define(f"{name}{schema(op)}", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, _run_of(primitive), "CompositeExplicitAutograd")
        torch.library.register_fake(qualified, _fake_of(op), lib=library)
        self._defined.add(name)
        if primitive.gradients.steps:
            for step in primitive.gradients.steps:
                self.define(step.op.name)
            setup, backward = _autograd_of(primitive.gradients, self._traced)
            register_autograd(qualified, backward, setup_context=setup, lib=library)

    def _flag(
        self,
        views: list[Tensor],
        op: str,
        integers: Sequence[Any],
        floats: Sequence[float],
        after_bytes: Any,
        lost: Sequence[int],
        learns: Sequence[bool],
    ) -> Tensor:
        """Return one element if a kernel wins, none otherwise."""
        primitive = self._primitives[op]
        parameters = _named(primitive.op, integers, floats)
        learning = frozenset(spec.name for spec, asks in zip(primitive.op.inputs, learns, strict=True) if asks)
        if missing := primitive.gradients.missing(learning):
            self._reasons[op] = f"the package has no gradient of {op} with respect to {', '.join(sorted(missing))}"
        else:
            self._reasons[op] = self._loses(op, tuple(views), parameters, after_bytes, Lost(*lost), learning)
        wins = not self._reasons[op]
        return views[0].new_empty(int(wins), dtype=torch.bool)

    def _loses(
        self,
        name: str,
        views: Tensors,
        parameters: Mapping[str, Any],
        after_bytes: Any = 0,
        lost: Lost = NOTHING_LOST,
        learning: Collection[str] = (),
    ) -> str:
        """Return the reason why no kernel wins for tensors without memory or with symbolic sizes; empty if one does."""
        layouts = [(_hints(x.shape), _hints(x.stride())) for x in views]
        copied = hint(after_bytes)
        hints = {name: value if isinstance(value, float) else hint(value) for name, value in parameters.items()}
        values = {name: value for name, value in hints.items() if value is not None}
        if None in [part for layout in layouts for part in layout] or copied is None or len(values) < len(hints):
            return "a size depends on the values of tensors"
        with _disable_current_modes(), torch.no_grad():
            metas = tuple(
                torch.empty_strided(shape or (), stride or (), dtype=x.dtype, device="meta")
                for (shape, stride), x in zip(layouts, views, strict=True)
            )
        with _disable_current_modes(), torch.no_grad():
            return self._primitives[name].loses(metas, views[0].device, values, copied, lost, learning)

    def _traced(self, step: Step, lost_bytes: int) -> Callable[[Tensors, Mapping[str, Number]], Tensors]:
        """Return the step of a backward in a graph: the opaque op where it wins, or else PyTorch."""
        name = step.op.name

        def run(inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
            if name in self._defined and not self._loses(name, inputs, parameters, lost=Lost(lost_bytes, 0)):
                return self.opaque(name, inputs, parameters)
            return step.pytorch(inputs, parameters)

        return run


def schema(op: Op) -> str:
    """Return the schema of an op, such as `(Tensor x, Tensor weight, float eps, int lost_bytes=0) -> Tensor`."""
    kinds = {name: "float" if isinstance(value, float) else "SymInt" for name, value in op.parameters.items()}
    arguments = [*(f"Tensor {spec.name}" for spec in op.inputs), *(f"{kind} {name}" for name, kind in kinds.items())]
    arguments.append(LOST)
    outputs = ", ".join(["Tensor"] * len(op.outputs))
    return f"({', '.join(arguments)}) -> {outputs if len(op.outputs) == 1 else f'({outputs})'}"


def _as_declared(op: Op, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters in the op's order. A caller may give an integer for a float, as with PyTorch's `beta=1`."""
    return {
        name: float(parameters[name]) if isinstance(value, float) else parameters[name]
        for name, value in op.parameters.items()
    }


def _named(op: Op, integers: Sequence[Any], floats: Sequence[float]) -> dict[str, Any]:
    rest = {float: iter(floats), int: iter(integers)}
    return {name: next(rest[float if isinstance(value, float) else int]) for name, value in op.parameters.items()}


def hint(size: Any) -> int | None:
    """Return a size, or the size for which a graph with symbolic sizes is traced."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return None if hint is None else int(hint)


def _hints(shape: Sequence[Any]) -> tuple[int, ...] | None:
    found = [hint(size) for size in shape]
    return None if None in found else tuple(size for size in found if size is not None)


def _run_of(primitive: Primitive) -> Callable[..., Any]:
    count = len(primitive.op.inputs)
    names = tuple(primitive.op.parameters)
    several = len(primitive.op.outputs) > 1

    def run(*arguments: Any) -> Any:
        inputs, values = arguments[:count], arguments[count : count + len(names)]
        learns = torch.is_grad_enabled()
        if learns:
            torch._C._set_grad_enabled(False)  # noqa: SLF001 - the public context takes a microsecond
        try:
            outputs = primitive.in_graph(inputs, dict(zip(names, values, strict=True)))
        finally:
            if learns:
                torch._C._set_grad_enabled(True)  # noqa: SLF001
        return outputs if several else outputs[0]

    return run


class _Sizes(dict[str, Any]):
    """Sizes by name. Derived dims are computed only if needed, because each may restrict a symbolic size."""

    def __init__(self, known: Mapping[str, Any], derived: Mapping[str, Callable[[Mapping[str, Any]], Any]]) -> None:
        super().__init__(known)
        self._derived = derived

    def __missing__(self, name: str) -> Any:
        self[name] = self._derived[name](self)
        return self[name]


def _fake_of(op: Op) -> Callable[..., Any]:
    """Return the function that creates an op's outputs without values, whose sizes may be symbolic."""

    def fake(*arguments: Any) -> Any:
        inputs, given = arguments[: len(op.inputs)], arguments[len(op.inputs) :]
        parameters = dict(zip(op.parameters, given, strict=False))  # followed by the bytes for the backward
        sizes = _Sizes(parameters, op.derived)
        for spec, x in zip(op.inputs, inputs, strict=True):
            sizes.update(zip(spec.dims, x.shape, strict=True))
        free = next(x.dtype for spec, x in zip(op.inputs, inputs, strict=True) if not spec.dtype)
        try:
            shapes = [[int(dim) if dim.isdigit() else sizes[dim] for dim in spec.dims] for spec in op.outputs]
        except KeyError:  # the dim occurs only in an output, such as the gradient of an enlarged image
            found = op.reference(*inputs, **parameters)
            shapes = [list(out.shape) for out in ((found,) if isinstance(found, Tensor) else found)]
        dtypes = [TORCH_DTYPES[spec.dtype] if spec.dtype else free for spec in op.outputs]
        outputs = [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return fake


def _autograd_of(
    gradients: Gradients, traced: Callable[[Step, int], Callable[[Tensors, Mapping[str, Number]], Tensors]]
) -> tuple[Callable[..., None], Callable[..., Any]]:
    op = gradients.op
    count = len(op.inputs)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = (output,) if isinstance(output, Tensor) else tuple(output)
        keep(ctx, gradients, inputs[:count], outputs)
        *values, ctx.lost_bytes = inputs[count:]
        ctx.parameters = dict(zip(op.parameters, values, strict=True))

    def backward(ctx: Any, *grads: Any) -> Any:
        needed = frozenset(
            spec.name for spec, need in zip(op.inputs, ctx.needs_input_grad[:count], strict=True) if need
        )
        of_outputs = dict(zip([spec.name for spec in op.outputs], grads, strict=True))
        lost_bytes = ctx.lost_bytes
        found = gradients.by_steps(
            left(ctx, gradients), of_outputs, ctx.parameters, needed, lambda step: traced(step, lost_bytes)
        )
        return (*(found.get(spec.name) for spec in op.inputs), *[None] * (len(op.parameters) + 1))

    return setup, backward

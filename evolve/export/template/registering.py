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

from evolve.export.template.calls import contiguous_outputs
from evolve.export.template.deciding import COMPILED, FOR_BACKWARD
from evolve.export.template.folding import MOST_RANK
from evolve.export.template.forms import Call
from evolve.export.template.gradients import Gradients, Step, keep, left
from reference_ops.op import Number, Op
from reference_ops.precision import TORCH_DTYPES

Tensors = tuple[Tensor, ...]
ASKS = "wins"  # the op whose result's size shows a graph whether a kernel wins


class Primitive(Protocol):
    """The implementation of an opaque op: an op of the package, run by a kernel or by PyTorch."""

    op: Op
    gradients: Gradients

    @property
    def has_kernels(self) -> bool: ...

    def run(self, views: Tensors, parameters: Mapping[str, Number], where: str) -> Tensors | None:
        """Run a kernel, or return None where none wins."""

    def pytorch(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors: ...

    def loses(
        self,
        metas: Tensors,
        device: torch.device,
        parameters: Mapping[str, Number],
        after_bytes: int,
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
        """Define the opaque op of this name, and those of its backward. Return whether there is one."""
        if name not in self._primitives or not self._primitives[name].has_kernels:
            return False
        if name not in self._defined:
            with self._lock, _disable_current_modes():
                self._define(name)
        return True

    def ask(
        self, call_op: str, views: Sequence[Tensor], parameters: Mapping[str, Number], after_bytes: int = 0
    ) -> bool:
        """Return whether a kernel wins although this many bytes are copied after it.

        In a graph, this adds no guard on sizes.
        """
        integers = [value for value in parameters.values() if not isinstance(value, float)]
        floats = [value for value in parameters.values() if isinstance(value, float)]
        # Determined here, because an op does not know which of its tensors require gradients.
        learns = [x.requires_grad and torch.is_grad_enabled() for x in views]
        asks = getattr(getattr(torch.ops, self.namespace), ASKS)
        flag = asks(list(views), call_op, integers, floats, after_bytes, learns)
        return bool(flag.shape[0])

    def reason(self, calls: Sequence[Call]) -> str:
        """Return the reason why no kernel won for these calls, each of which was just tried."""
        known = (self._reasons.get(call.op) or "the package has no kernel for it" for call in calls)
        return "; ".join(dict.fromkeys(known))

    def run(self, name: str, views: Sequence[Tensor], parameters: Mapping[str, Number]) -> Tensors:
        """Call the opaque op on tensors whose leading dims are folded first."""
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
        outputs = self.opaque(name, tuple(inputs), parameters)
        if leading is None:
            return outputs
        folded = [spec.dims[:1] == (dim,) for spec in op.outputs]
        pairs = zip(outputs, folded, strict=True)
        return tuple([out.reshape((*leading, *out.shape[1:])) if fold else out for out, fold in pairs])

    def opaque(self, name: str, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Call the opaque op on tensors of the op's own ranks."""
        op = self._primitives[name].op
        outputs = getattr(getattr(torch.ops, self.namespace), name)(*inputs, *[parameters[p] for p in op.parameters])
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    def _define(self, name: str) -> None:
        if self._library is None:
            self._library = Library(self.namespace, "FRAGMENT")
            given = "Tensor[] views, str op, SymInt[] integers, float[] floats, SymInt after_bytes, bool[] learns"
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
            gradients = Gradients(
                op, tuple(Step(step.op, self._traced(step), step.pytorch) for step in primitive.gradients.steps)
            )
            setup, backward = _autograd_of(gradients)
            register_autograd(qualified, backward, setup_context=setup, lib=library)

    def _flag(
        self,
        views: list[Tensor],
        op: str,
        integers: Sequence[Any],
        floats: Sequence[float],
        after_bytes: Any,
        learns: Sequence[bool],
    ) -> Tensor:
        """Return one element if a kernel wins, none otherwise."""
        primitive = self._primitives[op]
        parameters = _named(primitive.op, integers, floats)
        learning = frozenset(spec.name for spec, asks in zip(primitive.op.inputs, learns, strict=True) if asks)
        if missing := primitive.gradients.missing(learning):
            self._reasons[op] = f"the package has no gradient of {op} with respect to {', '.join(sorted(missing))}"
        else:
            self._reasons[op] = self._loses(op, tuple(views), parameters, after_bytes, learning)
        wins = not self._reasons[op]
        return views[0].new_empty(int(wins), dtype=torch.bool)

    def _loses(
        self,
        name: str,
        views: Tensors,
        parameters: Mapping[str, Any],
        after_bytes: Any = 0,
        learning: Collection[str] = (),
    ) -> str:
        """Return the reason why no kernel wins for tensors without memory or with symbolic sizes; empty if one does."""
        layouts = [(_hints(x.shape), _hints(x.stride())) for x in views]
        copied = _hint(after_bytes)
        hints = {name: value if isinstance(value, float) else _hint(value) for name, value in parameters.items()}
        values = {name: value for name, value in hints.items() if value is not None}
        if None in [part for layout in layouts for part in layout] or copied is None or len(values) < len(hints):
            return "a size depends on the values of tensors"
        with _disable_current_modes(), torch.no_grad():
            metas = tuple(
                torch.empty_strided(shape or (), stride or (), dtype=x.dtype, device="meta")
                for (shape, stride), x in zip(layouts, views, strict=True)
            )
        with _disable_current_modes(), torch.no_grad():
            return self._primitives[name].loses(metas, views[0].device, values, copied, learning)

    def _traced(self, step: Step) -> Callable[[Tensors, Mapping[str, Number]], Tensors]:
        """Return the step of a backward in a graph: the opaque op where it wins, or else PyTorch."""
        name = step.op.name

        def run(inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
            if name in self._defined and not self._loses(name, inputs, parameters):
                return self.opaque(name, inputs, parameters)
            return step.pytorch(inputs, parameters)

        return run


def schema(op: Op) -> str:
    """Return the schema of an op, such as `(Tensor x, Tensor weight, float eps) -> Tensor`."""
    kinds = {name: "float" if isinstance(value, float) else "SymInt" for name, value in op.parameters.items()}
    arguments = [*(f"Tensor {spec.name}" for spec in op.inputs), *(f"{kind} {name}" for name, kind in kinds.items())]
    outputs = ", ".join(["Tensor"] * len(op.outputs))
    return f"({', '.join(arguments)}) -> {outputs if len(op.outputs) == 1 else f'({outputs})'}"


def _named(op: Op, integers: Sequence[Any], floats: Sequence[float]) -> dict[str, Any]:
    rest = {float: iter(floats), int: iter(integers)}
    return {name: next(rest[float if isinstance(value, float) else int]) for name, value in op.parameters.items()}


def _hint(size: Any) -> int | None:
    """Return a size, or the size for which a graph with symbolic sizes is traced."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return None if hint is None else int(hint)


def _hints(shape: Sequence[Any]) -> tuple[int, ...] | None:
    found = [_hint(size) for size in shape]
    return None if None in found else tuple(size for size in found if size is not None)


def _run_of(primitive: Primitive) -> Callable[..., Any]:
    count = len(primitive.op.inputs)
    names = tuple(primitive.op.parameters)

    def run(*arguments: Any) -> Any:
        inputs, parameters = arguments[:count], dict(zip(names, arguments[count:], strict=True))
        with torch.no_grad():
            outputs = primitive.run(inputs, parameters, COMPILED)
            if outputs is None and primitive.gradients.steps:
                outputs = primitive.run(inputs, parameters, FOR_BACKWARD)
            if outputs is None:
                with _autograd_inside():
                    outputs = contiguous_outputs(primitive.pytorch(inputs, parameters), inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    return run


def _autograd_inside() -> Any:
    """Return a context in which PyTorch may differentiate within an op, as for a recurrent layer's backward."""
    key = torch._C.DispatchKey.AutogradFunctionality  # noqa: SLF001 - there is no public way
    return torch._C._SetExcludeDispatchKeyGuard(key, False)  # noqa: SLF001


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
        parameters = dict(zip(op.parameters, given, strict=True))
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


def _autograd_of(gradients: Gradients) -> tuple[Callable[..., None], Callable[..., Any]]:
    op = gradients.op
    count = len(op.inputs)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = (output,) if isinstance(output, Tensor) else tuple(output)
        keep(ctx, gradients, inputs[:count], outputs)
        ctx.parameters = dict(zip(op.parameters, inputs[count:], strict=True))

    def backward(ctx: Any, *grads: Any) -> Any:
        needed = frozenset(
            spec.name for spec, need in zip(op.inputs, ctx.needs_input_grad[:count], strict=True) if need
        )
        of_outputs = dict(zip([spec.name for spec in op.outputs], grads, strict=True))
        found = gradients.of(left(ctx, gradients), of_outputs, ctx.parameters, needed)
        return (*(found.get(spec.name) for spec in op.inputs), *[None] * len(op.parameters))

    return setup, backward

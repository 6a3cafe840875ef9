"""Functions of an exported package: a kernel where one wins, and PyTorch's function of the same arguments elsewhere."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import starmap
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.compiler import is_dynamo_compiling

from evolve.export.template import choosing
from evolve.export.template.arrays import called_with_arrays, is_foreign
from evolve.export.template.deciding import Decision
from evolve.export.template.dispatch import Explanation, Primitive
from evolve.export.template.forms import NOTHING_LOST, Call, Form, Lost, Parts, Scalars, cast, whole, with_fixed_numbers
from evolve.export.template.learning import runnable
from evolve.export.template.plans import (
    MOST_PLANS,
    Key,
    Made,
    Reading,
    key_of,
    overrides,
    same,
    saves,
    tensors_in,
    with_casts,
    with_records,
    with_replaced,
)
from evolve.export.template.registering import Registry
from evolve.export.template.trials import Attempt, Given, Trials, is_tried, takes_longer, unplanned
from evolve.export.template.unrolled import ELSEWHERE, REFUSALS, Kinds, Run, by_pytorch
from reference_ops.op import Number, Op

COUNTERS = frozenset(choosing.COUNTERS)  # a call with one of these parameters is not made twice
NOT_EXPORTED = "the package has no kernel for it"
LOST = "at the first call it took longer than PyTorch, with the host's time and the backward"


class Function:
    """A function of the package."""

    def __init__(self, form: Form, primitives: Mapping[str, Primitive], registry: Registry | None = None) -> None:
        self.form = form
        self._known = primitives
        self._registry = registry
        # A function that refers only to a name: PyTorch 2.11 cannot trace constant functions that refer to other
        # objects.
        self._defined = _constant(lambda name: registry is not None and registry.define(name))
        self._scalars = Scalars.of(form.lower)
        self.primitives = {name: primitives[name] for name in form.ops if name in primitives}
        self._plans: dict[Key | None, Run] = {}
        self._decided: dict[Key | None, tuple[int, Run]] = {}  # decisions for calls that have no plan
        self._trials = Trials()
        self._kinds = Kinds()
        self._of_shapes, self._pytorch = self._kinds.known, form.pytorch
        self.recall = self._kinds.recall  # like `attempt`, but returns None for a call of an unknown kind
        self._uses_tf32 = any(one.op.tf32 for one in self.primitives.values())
        self._device_type = next((one.device_type for one in self.primitives.values()), "cuda")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if is_dynamo_compiling():
            return self.traced(arguments, named)
        try:  # the same as `recall`, without the time of a call
            known = self._of_shapes.get(arguments[0].shape, ())
        except REFUSALS:
            known = ()
        for one in known:
            result = one(arguments, named)
            if result is not None:
                return self._pytorch(*arguments, **named) if result is ELSEWHERE else result
        return self._called(arguments, named)

    def _called(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the result of a call of an unknown kind."""
        if torch.compiler.is_compiling():
            return self.traced(arguments, named)
        if arguments and is_foreign(arguments[0]):
            return called_with_arrays(self, arguments, named)
        result = self._attempt(arguments, named)
        return self._pytorch(*arguments, **named) if result is ELSEWHERE else result

    def attempt(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the result of a kernel, or ELSEWHERE if PyTorch must run."""
        result = self.recall(arguments, named)
        return self._attempt(arguments, named) if result is None else result

    def _attempt(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        tensors: list[Tensor] = []
        key = key_of(arguments, named, tensors)
        plan = self._plans.get(key)
        if plan is not None:
            result = plan(*tensors)
            if result is not None:
                return result
        repeats = plan is None and saves() is not None and self._can_repeat(arguments, named)
        with saved_tensors_hooks(same, same) if repeats else nullcontext():
            found = self._attempted(arguments, named, self._decided.get(key))
        if plan is None and key is not None and not self._captures(tensors):
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
                self._decided.clear()
            records = found.call.records if found.call else ()
            # a checkpoint would find that the repeated call saves other tensors
            plan = unplanned if records and saves() is not None else self._planned(tensors, found)
            if plan is unplanned and found.call and found.decision and COUNTERS.isdisjoint(found.call.parameters):
                self._decided[key] = found.place, self._launch(found.call, found.decision, found.outputs)
            if self._loses((arguments, named), found, plan, key):
                plan = self._pytorch_unless_captured
            self._plans[key] = plan
            if plan is not unplanned:
                self._kinds.remember(arguments, named, tensors, plan, self._uses_tf32)
        if not repeats or found.result is ELSEWHERE:
            return found.result
        # A checkpoint makes the call again, which is then a repeated call, and compares the shapes of the saved
        # tensors.
        return self._attempt(arguments, named) if key in self._plans else self._attempted(arguments, named).result

    def _can_repeat(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
        """Return whether a call that requires gradients leaves the caller's tensors unchanged."""
        calls = self._lowered(arguments, named)
        return torch.is_grad_enabled() and (isinstance(calls, str) or not any(call.records for call in calls))

    def _attempted(
        self, arguments: tuple[Any, ...], named: Mapping[str, Any], decided: tuple[int, Run] | None = None
    ) -> Attempt:
        """Return the outcome of a call; `decided` is the decision for another call with the same key, if any."""
        if decided is None and any(map(overrides, (*arguments, *named.values()))):
            return Attempt(ELSEWHERE)
        given = self._as_cast(arguments, named)
        calls = given if isinstance(given, str) else self._lowered_as(*given)
        if isinstance(calls, str) or isinstance(given, str):
            parts = self._parts(arguments, named)
            return Attempt(self._composed(parts) if parts else ELSEWHERE, is_whole=parts is None)
        if decided:
            call = calls[decided[0]]
            return Attempt(call.finish(decided[1](*call.views)))
        is_slow = False
        for place, call in enumerate(calls):
            if primitive := self.primitives.get(call.op):
                decision = primitive.decision(call.views, call.parameters, after_bytes=call.after_bytes)
                if decision.ready:
                    return self._launched(calls, given, place, decision)
                is_slow |= decision.is_slow_to_launch
        return Attempt(ELSEWHERE, is_slow=is_slow)

    def _launched(self, calls: Sequence[Call], given: Given, place: int, decision: Decision) -> Attempt:
        call = calls[place]
        outputs = self.primitives[call.op].launch(decision, call.views, call.parameters)
        every = tuple(tensors_in((*given[0], *given[1].values())))
        return Attempt(call.finish(outputs), call, place, decision, outputs, given=every)

    def _launch(self, call: Call, decision: Decision, outputs: tuple[Tensor, ...]) -> Run:
        """Return a function that computes a call's outputs for the views of another call with the same key."""
        primitive = self.primitives[call.op]
        reads = tuple(starmap(Reading, zip(call.views, decision.inputs, strict=True)))
        made = Made(reads, outputs, outputs, call.parameters)
        known = runnable(decision.ready, made, call.views, primitive.gradients) if decision.ready else None
        return known or partial(_launched, primitive, decision, call.parameters)

    def _loses(self, given: Given, found: Attempt, plan: Run, key: Key) -> bool:
        """Return whether the call that was just made takes longer than PyTorch's."""
        recorded = found.call.recorded(found.given) if found.call else ()
        if not found.call or -1 in recorded or not is_tried(found, plan):
            return False
        tensors, decided = list(tensors_in((*given[0], *given[1].values()))), self._decided.get(key)
        changed = {id(tensors[at]) for at in recorded}

        def ours(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
            if plan is unplanned:
                return self._attempted(arguments, named, decided).result
            return plan(*tensors_in((*arguments, *named.values())))

        def theirs(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
            return self.form.pytorch(*arguments, **named)

        timer = self.primitives[found.call.op].machine.device_us
        return self._trials.loses(found, lambda: takes_longer(ours, theirs, given, changed, timer))

    def _planned(self, tensors: Sequence[Tensor], found: Attempt) -> Run:
        """Return the plan of a call that was just made."""
        call, decision = found.call, found.decision
        if found.result is ELSEWHERE and found.is_whole:
            # a captured graph does not count the host's time
            return self._pytorch_unless_captured if found.is_slow else by_pytorch
        if call is None or decision is None or not decision.ready:
            return unplanned
        recorded = call.recorded(found.given)
        if -1 in recorded or not COUNTERS.isdisjoint(call.parameters):
            return unplanned
        reads = tuple(starmap(Reading, zip(call.views, decision.inputs, strict=True)))
        result = (found.result, *[found.outputs[at] for at, _ in call.records]) if call.records else found.result
        made = Made(reads, found.outputs, result, call.parameters)
        given = [call.replaced[1] if call.replaced and x is call.replaced[0] else x for x in found.given]
        run = runnable(decision.ready, made, given, self.primitives[call.op].gradients)
        if run and call.replaced:
            run = partial(with_replaced, run, [x is call.replaced[1] for x in given].index(True), call.replaced[2])
        run = partial(with_records, run, recorded) if run and recorded else run
        casts = [None if x is own else own.dtype for x, own in zip(tensors, found.given, strict=True)]
        return partial(with_casts, run, casts) if run and any(casts) else run or unplanned

    def _pytorch_unless_captured(self, *tensors: Tensor) -> Any:
        return None if self._captures(tensors) else ELSEWHERE

    def _captures(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether a CUDA graph is being captured."""
        primitive = next(iter(self.primitives.values()), None)
        return primitive is not None and bool(tensors) and primitive.captures(tensors[0].device)

    def _parts(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Parts | None:
        """Return the calls of this function of which a call is composed; None if there are none."""
        if self.form.parts is None or torch.is_autocast_enabled(self._device_type):
            return None
        if self._scalars.fault(arguments, named):
            return None
        try:
            return self.form.parts(*arguments, **named)
        except REFUSALS:
            return None

    def _composed(self, parts: Parts) -> Any:
        """Return the result of a composed call; ELSEWHERE if no kernel computes its first part."""
        found: Any = None
        try:
            while True:
                given = next(parts) if found is None else parts.send(found)
                result = self.attempt(given, {})
                if result is ELSEWHERE and found is None:
                    return ELSEWHERE
                found = self.form.pytorch(*given) if result is ELSEWHERE else result
        except StopIteration as done:
            return done.value

    def of(self, form: Form) -> "Function":
        """Return the function of another form with the same kernels."""
        return Function(form, self._known, self._registry)

    def traced(
        self,
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
        told: Callable[[str], None] | None = None,
        lost: Lost = NOTHING_LOST,
    ) -> Any:
        """Return the result in a graph that is being traced: from opaque ops where a kernel wins, or else from PyTorch.

        `told` is called with the reason why PyTorch runs, or with an empty string.
        """
        registry = self._registry
        calls: list[Call] | str = self._lowered(arguments, named) if registry else NOT_EXPORTED
        if registry and not isinstance(calls, str):
            for call in map(with_fixed_numbers, calls):
                if self._defined(call.op) and registry.ask(call, lost):
                    if told:
                        told("")
                    return call.finish(registry.run(call, lost))
        if told:
            told(registry.reason(calls) if registry and not isinstance(calls, str) else str(calls))
        return self.form.pytorch(*arguments, **named)

    def explain(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Explanation:
        """Return the kernel that a call would run, if any, and the reason."""
        if any(map(overrides, (*arguments, *named.values()))):
            return Explanation(self.form.name, "", "an argument overrides PyTorch's functions")
        calls = self._lowered(arguments, named)
        if isinstance(calls, str):
            parts = self._parts(arguments, named)
            return self.explain(next(parts), {}) if parts else Explanation(self.form.name, "", calls)
        reasons = []
        for call in calls:
            if call.op not in self.primitives:
                reasons.append(NOT_EXPORTED + (f" ({call.op})" if call.op != self.form.name else ""))
                continue
            found = self.primitives[call.op].explain(call.views, call.parameters, call.after_bytes)
            if found.kernel and self._plans.get(key_of(arguments, named, [])) == self._pytorch_unless_captured:
                return Explanation(self.form.name, "", LOST)
            if found.kernel:
                return Explanation(self.form.name, found.kernel, found.reason)
            reasons.append(found.reason)
        return Explanation(self.form.name, "", "; ".join(dict.fromkeys(reasons)))

    def _lowered(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> list[Call] | str:
        """Return the calls of ops that compute a call, or the reason why PyTorch must run."""
        given = self._as_cast(arguments, named)
        return given if isinstance(given, str) else self._lowered_as(*given)

    def _lowered_as(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> list[Call] | str:
        """Return the calls of ops for arguments that autocast has already cast."""
        if fault := self._scalars.fault(arguments, named):
            return fault
        try:
            found = self.form.lower(*arguments, **named)
        except REFUSALS as error:  # PyTorch raises its own error to the caller
            return f"the arguments are refused: {type(error).__name__}: {error}"
        return [found] if isinstance(found, Call) else found

    def _as_cast(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Given | str:
        """Return the arguments after autocast, or say that they are not known."""
        if not torch.is_autocast_enabled(self._device_type):
            return arguments, named
        to = self.form.autocast_to(self._device_type)
        if to is None:
            return "autocast is on, and may choose another dtype"
        if to is torch.float64:
            return arguments, named
        return cast(arguments, to), {name: cast(value, to) for name, value in named.items()}


def _launched(primitive: Primitive, decision: Decision, parameters: Mapping[str, Number], *views: Tensor) -> Any:
    return primitive.launch(decision, views, parameters)


def _constant(function: Callable[..., bool]) -> Callable[..., bool]:
    """Mark a function whose result is a constant of a traced graph; PyTorch's own mark imports the compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001
    return function


def own(op: Op, primitive: Primitive) -> Form:
    """Return the form of an op that PyTorch lacks: its arguments are the op's inputs and parameters."""
    names = [spec.name for spec in op.inputs]
    every = [*names, *primitive.entry.parameters]
    defaults = {name: value for name, value in primitive.entry.parameters.items() if value is not None}

    def split(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = {**defaults, **dict(zip(every, arguments, strict=False)), **named}
        if missing := [name for name in every if name not in given]:
            raise TypeError(f"{op.name}() misses {', '.join(missing)}")
        return tuple([given[name] for name in names]), {name: given[name] for name in op.parameters}

    takes_more_dims = _constant(lambda: primitive.takes_more_dims)

    def lower(*arguments: Any, **named: Any) -> Call | str:
        views, parameters = split(arguments, named)
        ranks = [x.dim() == len(spec.dims) for spec, x in zip(op.inputs, views, strict=True)]
        if not all(ranks) and not takes_more_dims():
            return f"with other dims than those of {op.name}, PyTorch computes something else"
        return Call(op.name, views, parameters, whole)

    def pytorch(*arguments: Any, **named: Any) -> Any:
        return whole(primitive.pytorch(*split(arguments, named)))

    result = "Tensor" if len(op.outputs) == 1 else f"tuple[{', '.join(['Tensor'] * len(op.outputs))}]"
    return Form(op.name, (op.name,), lower, pytorch, "", (), result, own=True)


class Functions(Mapping[str, Function]):
    """The functions of a package by name: these forms, and one for each other op. Each is created on first access.

    With a namespace, graphs of torch.compile use ops that are registered under it.
    """

    def __init__(self, forms: Iterable[Form], primitives: Mapping[str, Primitive], namespace: str = "") -> None:
        self._forms = {form.name: form for form in forms}
        self._primitives = primitives
        self.registry = Registry(namespace, primitives) if namespace else None
        self._names = sorted({*self._forms, *primitives})
        self.made: dict[str, Function] = {}

    def __getitem__(self, name: str) -> Function:
        if name not in self.made:
            form = self._forms.get(name) or own(self._primitives[name].op, self._primitives[name])
            self.made.setdefault(name, Function(form, self._primitives, self.registry))
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def explain(
    known: Mapping[str, Function], name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> Explanation:
    """Return the kernel that a call would run, compiled if necessary, or why PyTorch would run."""
    if name not in known:
        raise ValueError(f"there is no `{name}` in this package, only {', '.join(known)}")
    return known[name].explain(arguments, named)

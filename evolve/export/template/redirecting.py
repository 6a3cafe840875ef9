"""Redirection of a program's own calls of PyTorch to the package: in a block of eager code, and in compiled graphs."""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from evolve.export.template.forms import Lost, counted
from evolve.export.template.functions import Function
from evolve.export.template.fusing import form_of, found_in, replace
from evolve.export.template.matching import Pattern
from evolve.export.template.neighbours import Edge, edges
from evolve.export.template.patterns import OF_SEVERAL_CALLS, PATTERNS
from evolve.export.template.unrolled import ELSEWHERE

LOG = logging.getLogger(__name__)
Torch = Callable[..., Any]
NO_GRAPH = (
    "no graph was compiled yet; if the model ran, PyTorch did not trace it: a model whose forward calls nn.LSTM, "
    "nn.GRU or nn.RNN is traced only if torch._dynamo.config.allow_rnn is True"
)

SINGLE = (
    "only single calls were redirected; torch.compile with the package's `backend` also finds calls that one op "
    "computes together, such as x * sigmoid(x){ops}, and `patch` replaces layers, and norms that a model defines"
)


@dataclass
class Redirected:
    """Counts of a redirection: how often each function ran a kernel or PyTorch, and the first reason for PyTorch."""

    replaced: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    not_seen: str = ""  # a sentence on calls that the redirection cannot find

    def __str__(self) -> str:
        ran = [f"{name}: {counted(count, 'call')} by kernels" for name, count in sorted(self.replaced.items())]
        left = [
            f"{name}: {counted(count, 'call')} by PyTorch, first because {self.reasons[name]}"
            for name, count in self.left.items()
        ]
        found = [*ran, *left] or ["no call of a function that the package has"]
        return "\n".join([*found, *([self.not_seen] if self.not_seen else [])])


def by_torch(functions: Mapping[str, Function]) -> dict[Torch, Function]:
    """Return the package's functions by the functions of torch that they replace."""
    found: dict[Torch, Function] = {}
    for function in functions.values():
        if not function.form.own:
            found.update(dict.fromkeys((function.form.pytorch, *function.form.same), function))
    return found


class _Mode(TorchFunctionMode):
    def __init__(self, functions: Mapping[str, Function], report: Redirected) -> None:
        super().__init__()
        self._functions = by_torch(functions)
        self._report = report

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        function = self._functions.get(func)
        if function is None:
            return func(*args, **kwargs)
        named = _without_stacklevel(kwargs)
        if torch.compiler.is_compiling():
            return function(*args, **named)
        result = function.attempt(args, named)
        name = function.form.name
        if result is not ELSEWHERE:
            self._report.replaced[name] += 1
            return result
        self._report.left[name] += 1
        if name not in self._report.reasons:
            self._report.reasons[name] = function.explain(args, named).reason
        return func(*args, **kwargs)


def _without_stacklevel(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if name != "_stacklevel"}


@contextmanager
def enabled(functions: Mapping[str, Function]) -> Iterator[Redirected]:
    """Redirect calls of PyTorch in a block to kernels where these win.

    Yield a report of replaced and other calls.
    """
    several = [name for name in OF_SEVERAL_CALLS if name in functions]
    ops = f" and the ops {', '.join(several)}" if several else ""
    report = Redirected(not_seen=SINGLE.format(ops=ops))
    with _Mode(functions, report):
        yield report


class GraphPass:
    """A pass over a graph traced by torch.compile, before ops are decomposed. It redirects calls to the package.

    Several calls that one op computes are redirected together. `uuid` changes with the package, so that Inductor's
    cache does not return another package's code. After a graph has been compiled, `report` lists the calls that run
    kernels, and the reasons for the others.
    """

    def __init__(self, functions: Mapping[str, Function], content: str) -> None:
        self._of_package = functions
        self._functions = by_torch(functions)
        self._methods = {getattr(one, "__name__", ""): one for one in self._functions if _is_method(one)}
        self._content = content
        self._traced: list[_Traced] = []
        self._graphs = 0
        self.replaced: Counter[str] = Counter()

    def __deepcopy__(self, _memo: object) -> "GraphPass":
        """Return the pass itself, because Inductor copies its options and the caller reads this pass's report."""
        return self

    def uuid(self) -> str:
        return hashlib.sha256(self._content.encode()).hexdigest()

    def __call__(self, graph: fx.Graph) -> None:
        self._graphs += 1
        within: dict[fx.Graph, fx.Node] = {}
        self._redirect(graph, PATTERNS, self.replaced, within)
        graph.lint()
        for one in (graph, *within):
            for node in one.nodes:
                if isinstance(node.target, _Traced):
                    node.target.edges = edges(node, within)

    @property
    def report(self) -> Redirected:
        """The calls of the compiled graphs that run kernels, and those that were left to PyTorch."""
        found = Redirected()
        for one in self._traced:
            if one.reason is None:  # not traced, because the calls that it would replace run a kernel
                continue
            (found.left if one.reason else found.replaced)[one.name] += 1
            if one.reason:
                found.reasons.setdefault(one.name, one.reason)
        return found

    def __str__(self) -> str:
        return str(self.report) if self._graphs else NO_GRAPH

    def _redirect(
        self, graph: fx.Graph, patterns: Sequence[Pattern], count: Counter[str], within: dict[fx.Graph, fx.Node]
    ) -> None:
        """Redirect the calls of a graph. `within` gets the call that replaces those of each written-out graph."""
        replaced: dict[fx.Node, fx.Node] = {}
        for match, written, place in found_in(graph, self._of_package, patterns):
            self._redirect(written, patterns[place + 1 :], Counter(), within)
            function = self._of_package[match.op].of(form_of(match, written))
            within[written] = replace(graph, match, self._target(function), replaced)
            count[function.form.name] += 1
        for node in graph.nodes:
            target = self._methods.get(node.target) if node.op == "call_method" else node.target
            if node.op not in {"call_function", "call_method"} or target not in self._functions:
                continue
            node.op, node.target = "call_function", self._target(self._functions[target])
            node.kwargs = _without_stacklevel(node.kwargs)
            count[node.target.name] += 1

    def _target(self, function: Function) -> "_Traced":
        self._traced.append(_Traced(function))
        return self._traced[-1]


class _Traced:
    """A function of the package as the target of a node: tracing it chooses between an opaque op and PyTorch."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self.name = function.form.name
        # the reason why PyTorch runs; empty if a kernel runs, None before a graph was traced
        self.reason: str | None = None
        self.edges: Sequence[Edge] = ()
        self.__name__ = self.__qualname__ = f"redirected_{self.name}"
        self.__module__ = __name__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function.traced(arguments, named, self._told, self._lost())

    def _lost(self) -> Lost:
        """Return the bytes that an opaque op moves in addition. Nothing is fused with a neighbour that is opaque."""
        opaque = (isinstance(one.maker, _Traced) and one.maker.reason == "" for one in self.edges)
        every = [one.lost for one, is_opaque in zip(self.edges, opaque, strict=True) if not is_opaque]
        return Lost(sum(one.forward for one in every), sum(one.backward for one in every))

    def _told(self, reason: str) -> None:
        self.reason = reason
        LOG.debug("%s in a graph: %s", self.name, f"PyTorch, because {reason}" if reason else "a kernel")


def _is_method(function: Torch) -> bool:
    return getattr(Tensor, getattr(function, "__name__", ""), None) is function


def backend(graph_pass: GraphPass) -> Callable[..., Any]:
    """Return a backend for `torch.compile` that redirects calls and then compiles with Inductor."""

    def compiled(module: fx.GraphModule, inputs: list[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        graph_pass(module.graph)
        module.recompile()
        return compile_fx(module, inputs)

    return compiled

"""Generated Python modules of an exported package: its functions, its layers, and the modules that list them.

As in `texts.py`, every value in a template is a checked name or a result of `literal` or `prose`.
"""

import inspect
import re
from collections.abc import Iterator, Sequence

from evolve.export import families
from evolve.export.template.forms import LAYERS, Form
from evolve.export.template.manifest import ExportedEntry
from evolve.export.texts import Described, Exported, functions, literal, prose
from evolve.prompting.op_sections import EXTREME
from reference_ops.op import Op

EVERY = (
    "backend",
    "enabled",
    "explain",
    "graph_pass",
    "kernels",
    "options",
    "patch",
    "set_options",
    "unpatch",
)  # functions that every package has

CONTENT = "_package"  # the module that holds the functions

INIT = '''"""CUDA kernels for PyTorch ops. A kernel runs where it was measured to be faster; elsewhere PyTorch runs.

Everything is imported when it is first used.
"""

from importlib import import_module as _import_module

_MODULES = ({modules})
__all__ = [{exported}]  # noqa: F822 - see __getattr__


def __getattr__(name):
    if name in _MODULES:
        return _import_module(f".{{name}}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    content = _import_module(".{content}", __name__)
    content._FUNCTIONS.get(name)  # made now, and not while a graph is traced
    found = globals()[name] = getattr(content, name)
    return found


def __dir__():
    return sorted({{*globals(), *_MODULES, *__all__}})
'''

STUB = '''"""Types of the package for editors and type checkers."""

{modules}
{names}

__all__ = [{exported}]
'''

MODULES = ("layers", "nn", "optim")  # modules that every package has and that users import by name

BODY = '''"""The functions of the package."""

from collections.abc import Sequence as _Sequence
from functools import cache as _cache
from contextlib import AbstractContextManager as _AbstractContextManager
from pathlib import Path as _Path
from typing import Any as _Any

from torch import Tensor as _Tensor
from torch import dtype as _dtype
from torch.nn import Module as _Module

from ._runtime import forms as _forms
from ._runtime import functions as _functions
from ._runtime import layers as _layers
from ._runtime import loading as _loading
from ._runtime import options as _options
from ._runtime import redirecting as _redirecting
from ._runtime.dispatch import Explanation as _Explanation
from ._runtime.layers import Patched as _Patched
from ._runtime.manifest import Shipped as _Shipped
from ._runtime.options import options, set_options
from ._runtime.redirecting import Redirected as _Redirected
{imports}

__all__ = [{exported}]

_HERE = _Path(__file__).parent
_PRIMITIVES = _loading.Primitives(__package__, _HERE, "{digest}")
_options.ops_of_package.update(_PRIMITIVES)
_FUNCTIONS = _functions.Functions([{forms}], _PRIMITIVES, f"{{__package__.replace('.', '_')}}_kernels")
_WRITTEN_OUT = _layers.WrittenOut(_FUNCTIONS)
_MADE = _FUNCTIONS.made  # a dictionary, which torch.compile can look into


@_cache
def _classes() -> dict[str, type[_Module]]:
    return _layers.made(_FUNCTIONS, f"{{__package__}}.nn")


def explain(function: str, *arguments: _Any, **named: _Any) -> _Explanation:
    """Return which kernel a call would run, and why: `explain("{first}", ...)` with the arguments of the call."""
    return _functions.explain(_FUNCTIONS, function, arguments, named)


def patch(model: _Module) -> _Patched:
    """Exchange a model's layers in place for those of `{name}.nn`. Returns what was exchanged, and why not others.

    RMS norms that the model writes out itself are exchanged, too. If the model is on a GPU, layers are left for which
    the package has no kernel that was measured on such a GPU.
    """
    return _layers.patch(model, _classes(), _WRITTEN_OUT, _FUNCTIONS)


def unpatch(model: _Module) -> tuple[str, ...]:
    """Undo `patch`. Returns the names of the layers."""
    return _layers.unpatch(model, _classes())


def enabled() -> _AbstractContextManager[_Redirected]:
    """Redirect a program's own calls of PyTorch in a block: `with enabled() as report: ...; print(report)`."""
    return _redirecting.enabled(_FUNCTIONS)


def graph_pass() -> _redirecting.GraphPass:
    """Return a pass that redirects the calls in a graph of torch.compile, before ops are decomposed."""
    return _redirecting.GraphPass(_FUNCTIONS, (_HERE / "manifest.json").read_text(encoding="utf-8"))


def backend(module: _Any, inputs: list[_Any]) -> _Any:
    """Compile with Inductor after `graph_pass`: `torch.compile(model, backend={name}.backend)`."""
    return _redirecting.backend(graph_pass())(module, inputs)


def kernels() -> dict[str, tuple[_Shipped, ...]]:
    """Return the kernels of this package by op, with their measured times."""
    return {{name: primitive.entry.kernels for name, primitive in _PRIMITIVES.items()}}
{functions}'''

NN = '''"""Layers of torch.nn whose forward calls functions of this package. Their state dicts are those of torch.nn."""

from . import _package

__all__ = [{names}]

_LAYERS = _package._classes()
{layers}'''

PURE = '''"""Layers without a state of their own, whose forward takes the place of that of a layer of torch.nn."""

from torch import Tensor as _Tensor
from torch.nn import Module as _Module

from ._package import _FUNCTIONS
from ._runtime.layers import forwards as _forwards

_FORWARDS = _forwards(_FUNCTIONS)
'''
PURE_LAYER = '''

class {name}(_Module):
    """The forward of `torch.nn.{name}`."""

    can_torch_compile: bool = True
    has_backward: bool = True

    def forward(self, {arguments}) -> _Tensor:
        return _FORWARDS["{name}"](self, {given})  # type: ignore[no-any-return]
'''
OPTIM = '''"""Optimizers of torch.optim, with kernels where they are faster than PyTorch's."""

from typing import ClassVar as _ClassVar

from ._package import _PRIMITIVES
from ._runtime import optimizers as _optimizers

__all__ = ["SGD", "AdamW"]


class AdamW(_optimizers.AdamW):
    """`torch.optim.AdamW` with its arguments and its state."""

    primitives: _ClassVar[_optimizers.Primitives] = _PRIMITIVES


class SGD(_optimizers.SGD):
    """`torch.optim.SGD` with its arguments and its state."""

    primitives: _ClassVar[_optimizers.Primitives] = _PRIMITIVES
'''
SELFTEST = '''"""Tests of this package on this machine: `python -m` with this module's name, and perhaps functions."""

import sys

from ._package import _FUNCTIONS
from ._runtime.selftest import main

if __name__ == "__main__":
    sys.exit(main(_FUNCTIONS))
'''

FUNCTION = '''

def {name}({arguments}) -> {result}:
    """{note}

    {devices}, PyTorch runs{baseline}.
    """
    return (_MADE.get({key}) or _FUNCTIONS[{key}])({given})  # type: ignore[no-any-return]
'''


def nn(exported: Exported) -> str:
    """Return the package's `nn.py`."""
    functions_of_it = {one.name for one in functions(exported)}
    names = sorted(layer.kind.__name__ for layer in LAYERS if layer.function in functions_of_it)
    lines = [f'{name} = _LAYERS["{name}"]\n' for name in names]
    return NN.format(names=", ".join(literal(name) for name in names), layers="".join(lines))


def pure(exported: Exported) -> str:
    """Return the package's `layers.py`."""
    functions_of_it = {one.name for one in functions(exported)}
    found = [PURE]
    for layer in LAYERS:
        if layer.function in functions_of_it and layer.is_pure:
            names = [name for name in inspect.signature(layer.kind.forward).parameters if name != "self"]
            arguments = ", ".join(f"{name}: _Tensor" for name in names)
            found.append(PURE_LAYER.format(name=layer.kind.__name__, arguments=arguments, given=", ".join(names)))
    return "".join(found)


def init(exported: Exported) -> str:
    """Return the package's `__init__.py`, which imports nothing, but lists the package's names."""
    modules = "".join(f"{literal(one)}, " for one in MODULES)
    return INIT.format(modules=modules.rstrip(), exported=_all(exported), content=CONTENT)


def stub(exported: Exported) -> str:
    """Return the package's `__init__.pyi`."""
    names = sorted([*(one.name for one in functions(exported)), *EVERY])
    return STUB.format(
        modules="\n".join(f"from . import {one} as {one}" for one in MODULES),
        names="\n".join(f"from .{CONTENT} import {one} as {one}" for one in names),
        exported=_all(exported),
    )


def content(name: str, exported: Exported, digest: str) -> str:
    """Return the package's module with its functions; `digest` is that of the manifest."""
    exported = sorted(exported, key=lambda one: one[0].name)
    described = functions(exported)
    forms = families.of_ops([op.name for op, _ in exported])
    modules = {module.rpartition(".")[2]: some for module, some in forms.items()}
    picked = [f"*_forms.named(_{module}.FORMS, {_names(some)})" for module, some in sorted(modules.items())]
    return BODY.format(
        name=name,
        digest=digest,
        imports="\n".join(f"from ._runtime import {module} as _{module}" for module in sorted(modules)),
        exported=_all(exported),
        forms=", ".join(picked),
        first=described[0].name,
        functions="".join(_function(one) for one in described),
    )


def _all(exported: Exported) -> str:
    """Return the names that a package exports, as strings of Python."""
    return ", ".join(literal(name) for name in sorted([*(one.name for one in functions(exported)), *EVERY]))


def _names(forms: Sequence[Form]) -> str:
    return f"[{', '.join(literal(form.name) for form in forms)}]"


def _function(function: Described) -> str:
    ops = [op for op, _ in function.ops]
    devices = _devices([entry for _, entry in function.ops])
    if function.form:
        notes = [inspect.getdoc(function.form.lower) or ""]
        result, arguments, given = function.form.result, _typed(function.form), _passed(function.form)
    else:
        op, entry = function.ops[0]
        outputs = ", ".join(["Tensor"] * len(op.outputs))
        result = outputs if len(op.outputs) == 1 else f"tuple[{outputs}]"
        notes = [op.note or f"See {entry.module}."]
        arguments = ", ".join([*(f"{spec.name}: _Tensor" for spec in op.inputs), *_declared(op, entry)])
        given = ", ".join([*(spec.name for spec in op.inputs), *(f"{name}={name}" for name in op.parameters)])
    baseline = ops[0].baseline if not function.form else None
    said = f": see {baseline.__name__} in {function.ops[0][1].module}" if baseline else ""
    return FUNCTION.format(
        name=function.name,
        key=literal(function.name),
        arguments=arguments,
        given=given,
        result=re.sub(r"\bTensor\b", "_Tensor", result),
        note=prose(" ".join([*notes, *(left for op in ops for left in _left_open(op))])),
        devices=prose(devices),
        baseline=prose(said),
    )


def _typed(form: Form) -> str:
    """Return a form's arguments with their types, as code of the package."""
    written: list[str] = []
    keywords = False
    for parameter in inspect.signature(form.lower).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            written, keywords = [*written, "*"], True
        kind = inspect.formatannotation(parameter.annotation)
        for name in ("torch.Tensor", "torch._tensor.Tensor", "torch.dtype", "collections.abc.Sequence"):
            kind = kind.replace(name, f"_{name.rpartition('.')[2]}")
        kind = re.sub(r"(?<![\w.])(Tensor|Sequence)\b", r"_\1", kind).replace("typing.", "_")
        default = "" if parameter.default is parameter.empty else f" = {literal(parameter.default)}"
        written.append(f"{parameter.name}: {kind}{default}")
    return ", ".join(written)


def _passed(form: Form) -> str:
    """Return a form's arguments, as its function passes them to the form."""
    parameters = inspect.signature(form.lower).parameters.values()
    return ", ".join(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in parameters)


def _devices(entries: Sequence[ExportedEntry]) -> str:
    if not any(entry.kernels for entry in entries):
        return "Has no kernel yet: everywhere"
    devices = ", ".join(sorted({measured.device for entry in entries for _, measured in entry.table()}))
    return f"Has kernels for {devices}. On other devices, and where no kernel is faster"


def _left_open(op: Op) -> Iterator[str]:
    if op.exempt:
        reasons = "; ".join(dict.fromkeys(op.exempt.values()))
        kinds = ", ".join(EXTREME[name] for name in op.exempt)
        yield f"Results for these inputs are undefined: {kinds} ({reasons})."


def _declared(op: Op, entry: ExportedEntry) -> list[str]:
    kinds = {name: type(value).__name__ for name, value in op.parameters.items()}
    return [
        f"{name}: {kinds[name]}" + ("" if default is None else f" = {literal(default)}")
        for name, default in entry.parameters.items()
    ]

"""Texts of an exported package: its functions, its pyproject.toml and its README.

Archives are untrusted, and so are the names of devices and tools in them. Every value in a template is either a name
that `portable` has checked or a result of `_literal`, `_prose` or `_cell`, so no text can become code.
"""

import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from archive.characters import escaped
from evolve.export import families
from evolve.export.template.forms import Form
from evolve.export.template.layers import LAYERS
from evolve.export.template.manifest import ExportedEntry, Tested
from reference_ops.op import Op

MARKUP = re.compile(r"[\\`*_{}\[\]<>()#!|~&$:@]|(?<=www)\.")
Exported = Sequence[tuple[Op, ExportedEntry]]

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
)  # functions of every package
INIT = '''"""CUDA kernels for PyTorch ops. A kernel runs where it was measured to be faster; elsewhere PyTorch runs."""

from collections.abc import Sequence as _Sequence
from contextlib import AbstractContextManager as _AbstractContextManager
from pathlib import Path as _Path
from typing import Any as _Any

from torch import Tensor as _Tensor
from torch import dtype as _dtype
from torch.nn import Module as _Module

from ._runtime import dispatch as _dispatch
from ._runtime import functions as _functions
from ._runtime import layers as _layers
from ._runtime import redirecting as _redirecting
from ._runtime.dispatch import Explanation as _Explanation
from ._runtime.layers import Patched as _Patched
from ._runtime.manifest import Shipped as _Shipped
from ._runtime.options import options, set_options
from ._runtime.redirecting import Redirected as _Redirected
{imports}

__all__ = [{exported}]

_HERE = _Path(__file__).parent
_PRIMITIVES = _dispatch.load(_HERE, [{modules}])
_FUNCTIONS = _functions.functions([{forms}], _PRIMITIVES, f"{{__name__}}_kernels")
_LAYERS = _layers.made(_FUNCTIONS, f"{{__name__}}.nn")


def explain(function: str, *arguments: _Any, **named: _Any) -> _Explanation:
    """Return which kernel a call would run, and why: `explain("{first}", ...)` with the arguments of the call."""
    return _functions.explain(_FUNCTIONS, function, arguments, named)


def patch(model: _Module) -> _Patched:
    """Exchange a model's layers in place for those of `{name}.nn`. Returns what was exchanged, and why not others."""
    return _layers.patch(model, _LAYERS)


def unpatch(model: _Module) -> tuple[str, ...]:
    """Undo `patch`. Returns the names of the layers."""
    return _layers.unpatch(model, _LAYERS)


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

from . import _LAYERS

__all__ = [{names}]

{layers}'''

FUNCTION = '''

def {name}({arguments}) -> {result}:
    """{note}

    {devices}, PyTorch runs{baseline}.
    """
    return _FUNCTIONS[{key}]({given})  # type: ignore[no-any-return]
'''

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = {description}
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["torch>=2.8"]

[tool.setuptools.packages.find]
include = ["{name}", "{name}.*"]

[tool.setuptools.package-data]
{name} = ["py.typed", "manifest.json", "kernels/**/*.cu", "cubins/**/*.cubin"]
"""

README = """\
# {name}

CUDA kernels behind functions with PyTorch's own arguments. A kernel runs only where it was measured to be faster than
PyTorch: than eager PyTorch in eager code, than torch.compile in compiled code. Everywhere else PyTorch runs.

    pip install .    # needs nothing but PyTorch; without an NVIDIA GPU, PyTorch runs

    import torch, {name}
{calls}
    print({name}.explain("{first}", ...))   # which kernel a call with these arguments runs, and why

A model in plain torch needs no change. Each of these says what it replaced and what it left, and why:

    print({name}.patch(model))                                # exchanges layers in place; `unpatch` undoes it
    with {name}.enabled() as report: ...                      # redirects the calls in a block; print(report)
    compiled = torch.compile(model, backend={name}.backend)   # redirects the calls in the graph, then Inductor

`{name}.nn` holds the layers, to build models with. `{name}.graph_pass()` is the pass alone, with a `uuid`.

## What was measured
Times are medians of GPU time in microseconds with cold caches. `compile` is the faster of torch.compile's default and
max-autotune modes. The speedup comes from a paired timing: a separate process times the kernel and the fastest of
PyTorch in turn. The range is the 95 % confidence interval of the median. A kernel wins if the low end of this interval
is above the noise, which is measured by timing the kernel against itself. Where torch.compile was the fastest of
PyTorch and the kernel is not faster than that, it runs in eager code alone, if its time is below that of eager PyTorch.

| op | workload | GPU | kernel | kernel us | eager us | compile us | speedup |
| --- | --- | --- | --- | --- | --- | --- | --- |
{table}

## What was checked
Each kernel was tested twice before the export, the second time in a fresh process: on poisoned memory, on random shapes
and values, against PyTorch in float64. The error is the largest root mean square error of all outputs, as a multiple of
PyTorch's own error at the same dtype. The sanitizer is NVIDIA's compute-sanitizer.

| op | kernel | GPU | outputs judged | error | held-out shapes | sanitizer |
| --- | --- | --- | --- | --- | --- | --- |
{tested}

## When a kernel runs
- All inputs are CUDA tensors on one GPU, and the table has a GPU of this name. Leading dims are folded, other dims
  are moved last, and what is not contiguous is copied.
- The dtype is among the measured ones, and so are the parameters on which sizes depend, such as a stride. For other
  sizes the nearest measured sizes decide: the fastest kernel there runs if it accepts the sizes, and PyTorch runs if it
  was the fastest there.
- No size or tensor is larger than those with which the kernel was tested (`envelope` in manifest.json).
- Where an input requires a gradient, PyTorch's backward or an exported one gives it. Statistics that an op returns
  beside its result, such as `lse`, have no gradient. Gradients of gradients come from PyTorch.
- In torch.compile and torch.export, graphs hold an opaque op where a kernel beats what the compiler makes of the op,
  and PyTorch elsewhere. Under vmap and forward-mode differentiation, PyTorch runs. Autocast gives inputs the dtype
  that it gives to PyTorch's op; where that is not known, PyTorch runs.
- Under `torch.use_deterministic_algorithms(True)` or `options(deterministic=True)`, the kernel was found to be
  deterministic. `options(workspace_limit=, allow=, pin=)` restrict the choice further, for a block or with
  `set_options` for the process.
- In eager code the kernel was faster than eager PyTorch, in a graph of torch.compile faster than that, too. A kernel
  below 60 us must also be launched in less time than PyTorch's takes. Each choice is logged at debug level.

Compiled kernels (cubins) come with the package for the GPUs and sizes that were measured. For other sizes a kernel is
compiled at the first call that needs it, in a few hundredths of a second, and kept in a cache on disk:
`~/.cache/evolve-primitives`, or the folder in `EVOLVE_CUBINS`. You can delete it at any time.
Before you capture a CUDA graph, make the same call once. Otherwise the graph captures PyTorch, with a warning.
Where PyTorch runs, it runs what the kernels were timed against. Where an op leaves a choice, such as the order of equal
values, PyTorch and a kernel may choose differently.
If a chosen kernel fails to compile or to launch, the call raises an error. PyTorch does not replace it.
`manifest.json` holds the kernels' hashes and times, `kernels/` their sources, `cubins/` what they compile to, and
`ops/` the references. A source or cubin that was changed is an error when it is loaded.
`_runtime/` is copied from evolve-kernels (Apache-2.0), which generated this package.
"""


def nn(exported: Exported) -> str:
    """Return the package's `nn.py`."""
    functions_of_it = {one.name for one in functions(exported)}
    names = sorted(layer.kind.__name__ for layer in LAYERS if layer.function in functions_of_it)
    lines = [f'{name} = _LAYERS["{name}"]\n' for name in names]
    return NN.format(names=", ".join(_literal(name) for name in names), layers="".join(lines))


def init(name: str, exported: Exported) -> str:
    """Return the package's `__init__.py`."""
    exported = sorted(exported, key=lambda one: one[0].name)
    described = functions(exported)
    names = [one.name for one in described]
    stems = sorted({_stem(entry) for _, entry in exported})
    forms = families.of_ops([op.name for op, _ in exported])
    modules = {module.rpartition(".")[2]: some for module, some in forms.items()}
    imports = [f"from ._runtime import {module} as _{module}" for module in sorted(modules)]
    picked = [f"*_functions.named(_{module}.FORMS, {_names(some)})" for module, some in sorted(modules.items())]
    return INIT.format(
        name=name,
        imports="\n".join([*imports, *(f"from .ops import {stem} as _{stem}" for stem in stems)]),
        exported=", ".join(_literal(name) for name in sorted([*names, *EVERY])),
        modules=", ".join(f"_{stem}" for stem in stems),
        forms=", ".join(picked),
        first=names[0],
        functions="".join(_function(one) for one in described),
    )


@dataclass(frozen=True)
class Described:
    """A function of the package: its form, if PyTorch has it, and the exported ops that it may call."""

    name: str
    ops: Exported
    form: Form | None


def functions(exported: Exported) -> list[Described]:
    """Return the functions of a package: the forms that may call an exported op, and one for each other op."""
    forms = {form.name: form for some in families.of_ops([op.name for op, _ in exported]).values() for form in some}
    found = [Described(f.name, [one for one in exported if one[0].name in f.ops], f) for f in forms.values()]
    found += [Described(op.name, [(op, entry)], None) for op, entry in exported if op.name not in forms]
    return sorted(found, key=lambda one: one.name)


def _names(forms: Sequence[Form]) -> str:
    return f"[{', '.join(_literal(form.name) for form in forms)}]"


def _stem(entry: ExportedEntry) -> str:
    return Path(entry.module).stem


def pyproject(name: str, exported: Exported) -> str:
    description = f"CUDA kernels for PyTorch ops: {', '.join(op.name for op, _ in exported)}"
    return PYPROJECT.format(name=name, description=_literal(description))


def readme(name: str, exported: Exported) -> str:
    described = functions(exported)
    calls = [f"    {name}.{call(one)}" for one in described]
    return README.format(
        name=name,
        calls="\n".join(calls),
        first=described[0].name,
        table="\n".join(line for op, entry in exported for line in _lines(op, entry)),
        tested="\n".join(line for op, entry in exported for line in _tested_lines(op, entry)),
    )


def call(function: Described) -> str:
    """Return a call as a user writes it, such as `rms_norm(input, normalized_shape, weight=None, eps=None)`."""
    if function.form:
        return f"{function.name}({', '.join(_shortened(function.form))})"
    op, entry = function.ops[0]
    arguments = [spec.name for spec in op.inputs] + _written(entry.parameters)
    return f"{function.name}({', '.join(arguments)})"


def _shortened(form: Form) -> Iterator[str]:
    """Yield the arguments of a form with their defaults."""
    for parameter in inspect.signature(form.lower).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        yield f"{parameter.name}{default}"


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
        key=_literal(function.name),
        arguments=arguments,
        given=given,
        result=re.sub(r"\bTensor\b", "_Tensor", result),
        note=_prose(" ".join([*notes, *(left for op in ops for left in _left_open(op))])),
        devices=_prose(devices),
        baseline=_prose(said),
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
        default = "" if parameter.default is parameter.empty else f" = {_literal(parameter.default)}"
        written.append(f"{parameter.name}: {kind}{default}")
    return ", ".join(written)


def _passed(form: Form) -> str:
    """Return a form's arguments as its function passes them on."""
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
        yield f"Results for these inputs are undefined: {', '.join(op.exempt)} ({reasons})."


def _literal(value: str | float | None) -> str:
    """Return a value as a Python literal, which for strings is also TOML. Infinity becomes `float("inf")`."""
    if isinstance(value, str):
        return escaped(json.dumps(value, ensure_ascii=False))
    not_finite = isinstance(value, float) and not math.isfinite(value)
    return f"float({_literal(str(value))})" if not_finite else repr(value)


def _prose(text: str) -> str:
    """Return text that is safe inside a docstring: it cannot end the docstring."""
    plain = escaped(" ".join(text.split())).replace("\\", "\\\\").replace('"', "'")
    return "\n".join(textwrap.wrap(plain, 110, subsequent_indent="    "))


def _cell(text: str) -> str:
    """Return text that is safe in a cell of a Markdown table: it cannot create columns, links or tags."""
    return MARKUP.sub(r"\\\g<0>", escaped(" ".join(text.split())))


def _declared(op: Op, entry: ExportedEntry) -> list[str]:
    kinds = {name: type(value).__name__ for name, value in op.parameters.items()}
    return [
        f"{name}: {kinds[name]}" + ("" if default is None else f" = {_literal(default)}")
        for name, default in entry.parameters.items()
    ]


def _written(parameters: Mapping[str, int | float | None]) -> list[str]:
    return [name if default is None else f"{name}={_literal(default)}" for name, default in parameters.items()]


def _lines(op: Op, entry: ExportedEntry) -> Iterator[str]:
    for kernel, measured in entry.table():
        times, duel = measured.times, measured.duel
        compiled = min((time for time in (times.compile_us, times.autotune_us) if time), default=None)
        winner = (kernel.id if measured.wins else f"{kernel.id} in eager code") if kernel else "PyTorch runs"
        speedup = f"{duel.speedup:.2f} ({duel.low:.2f} to {duel.high:.2f})" if duel else f"{measured.speedup:.2f}"
        yield (
            f"| {op.name} | {_cell(times.workload)} | {_cell(measured.device)} | {winner} | {times.median_us:.1f} "
            f"| {times.eager_us:.1f} | {'' if compiled is None else f'{compiled:.1f}'} | {speedup} |"
        )


def _tested_lines(op: Op, entry: ExportedEntry) -> Iterator[str]:
    for kernel in entry.kernels:
        for tested in kernel.tested:
            error = "" if tested.error is None else f"{tested.error:.2f}"
            yield (
                f"| {op.name} | {kernel.id} | {_cell(tested.device)} | {tested.outputs_judged} | {error} "
                f"| {len(tested.held_out)} | {_sanitizer(tested)} |"
            )


def _sanitizer(tested: Tested) -> str:
    unfinished = dict.fromkeys(_cell(said.tool) for said in tested.sanitized if said.errors is None)
    clean = dict.fromkeys(_cell(said.tool) for said in tested.sanitized if said.errors == 0)
    parts = [f"{', '.join(clean)}: no errors"] if clean else []
    parts += [f"{', '.join(unfinished)}: did not finish"] if unfinished else []
    return "; ".join(parts) or "not run"

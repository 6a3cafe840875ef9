"""Texts of an exported package: its functions, its pyproject.toml and its README.

Archives are untrusted, and so are the names of devices and tools in them. Every value in a template is either a name
that `portable` has checked or a result of `_literal`, `_prose` or `_cell`, so no text can become code.
"""

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from archive.characters import escaped
from evolve.export.template.manifest import ExportedEntry, Tested
from reference_ops.op import Op

MARKUP = re.compile(r"[\\`*_{}\[\]<>()#!|~&$:@]|(?<=www)\.")
Exported = Sequence[tuple[Op, ExportedEntry]]

INIT = '''"""CUDA kernels for PyTorch ops. A kernel runs where it was measured to be faster; elsewhere PyTorch runs."""

from pathlib import Path as _Path
from typing import Any as _Any

from torch import Tensor as _Tensor

from ._runtime import dispatch as _dispatch
from ._runtime.dispatch import Explanation as _Explanation
from ._runtime.manifest import Shipped as _Shipped
{imports}

__all__ = [{exported}]

_PRIMITIVES = _dispatch.load(
    _Path(__file__).parent,
    [
{ops}
    ],
)


def explain(op: str, *arguments: _Any, **named: _Any) -> _Explanation:
    """Return which kernel a call would run, and why: `explain("{first}", ...)` with the arguments of the call."""
    return _dispatch.explain(_PRIMITIVES, op, arguments, named)


def kernels() -> dict[str, tuple[_Shipped, ...]]:
    """Return the kernels of this package by op, with their measured times."""
    return {{name: primitive.entry.kernels for name, primitive in _PRIMITIVES.items()}}
{functions}'''

FUNCTION = '''

def {name}({arguments}) -> {result}:
    """{note}

    {devices}, PyTorch runs{baseline}.
    """
    {outputs} = _PRIMITIVES[{key}](({inputs}), {{{parameters}}})
    return {returned}
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

[project.optional-dependencies]
cuda13 = ["cupy-cuda13x>=14", "cuda-toolkit[nvrtc,cudart,crt,cccl]==13.*"]
cuda12 = ["cupy-cuda12x>=14", "cuda-toolkit[nvrtc,cudart,cccl]==12.*"]

[tool.setuptools.packages.find]
include = ["{name}", "{name}.*"]

[tool.setuptools.package-data]
{name} = ["py.typed", "manifest.json", "kernels/**/*.cu"]
"""

README = """\
# {name}

CUDA kernels behind plain functions. A kernel runs only where it was measured to be faster than eager PyTorch and
torch.compile. Everywhere else PyTorch runs, so every call works.

    pip install ".[cuda13]"    # or cuda12; without CuPy or an NVIDIA GPU, PyTorch runs

    import torch, {name}
{calls}
    print({name}.explain("{first}", ...))   # which kernel a call with these arguments runs, and why

## What was measured
Times are medians of GPU time in microseconds with cold caches. `compile` is the faster of torch.compile's default and
max-autotune modes. The speedup comes from a paired timing: a separate process times the kernel and the fastest of
PyTorch in turn. The range is the 95 % confidence interval of the median. A kernel runs if the low end of this interval
is above the noise, which is measured by timing the kernel against itself.

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
- All inputs are contiguous, 16-byte aligned CUDA tensors on one GPU, and the table has a GPU of this name.
- The dtype and the parameters are among the measured ones. For other sizes the nearest measured sizes decide: the
  fastest kernel there runs if it accepts the sizes, and PyTorch runs if it was the fastest there.
- No size, parameter or tensor is larger than those with which the kernel was tested (`envelope` in manifest.json).
- No input requires a gradient, and torch.compile, autocast, torch.func and dispatch modes are off.
- Under `torch.use_deterministic_algorithms(True)`, the kernel was found to be deterministic.

A kernel is compiled for the sizes of the first call that needs it, which takes a few hundredths of a second.
Before you capture a CUDA graph, make the same call once. Otherwise the graph captures PyTorch, with a warning.
Where PyTorch runs, it runs what the kernels were timed against. Where an op leaves a choice, such as the order of equal
values, PyTorch and a kernel may choose differently.
If a chosen kernel fails to compile or to launch, the call raises an error. PyTorch does not replace it.
`manifest.json` holds the kernels' hashes and times, `kernels/` their sources, `ops/` the references.
`_runtime/` is copied from evolve-kernels (Apache-2.0), which generated this package.
"""


def init(exported: Exported) -> str:
    """Return the package's `__init__.py`."""
    exported = sorted(exported, key=lambda one: one[0].name)
    names = [op.name for op, _ in exported]
    return INIT.format(
        imports="\n".join(f"from .ops import {stem} as _{stem}" for stem in sorted({_stem(e) for _, e in exported})),
        exported=", ".join(_literal(name) for name in sorted([*names, "explain", "kernels"])),
        ops="\n".join(f"        _dispatch.op(_{_stem(entry)}, {_literal(op.name)})," for op, entry in exported),
        first=names[0],
        functions="".join(_function(op, entry) for op, entry in exported),
    )


def _stem(entry: ExportedEntry) -> str:
    return Path(entry.module).stem


def pyproject(name: str, exported: Exported) -> str:
    description = f"CUDA kernels for PyTorch ops: {', '.join(op.name for op, _ in exported)}"
    return PYPROJECT.format(name=name, description=_literal(description))


def readme(name: str, exported: Exported) -> str:
    calls = [f"    {', '.join(s.name for s in op.outputs)} = {name}.{call(op, entry)}" for op, entry in exported]
    return README.format(
        name=name,
        calls="\n".join(calls),
        first=exported[0][0].name,
        table="\n".join(line for op, entry in exported for line in _lines(op, entry)),
        tested="\n".join(line for op, entry in exported for line in _tested_lines(op, entry)),
    )


def call(op: Op, entry: ExportedEntry) -> str:
    """Return a call as a user writes it, such as `rms_norm(x, weight, eps=1e-06)`."""
    arguments = [spec.name for spec in op.inputs] + _written(entry.parameters)
    return f"{op.name}({', '.join(arguments)})"


def _function(op: Op, entry: ExportedEntry) -> str:
    outputs = [spec.name for spec in op.outputs]
    types = ", ".join(["_Tensor"] * len(outputs))
    return FUNCTION.format(
        name=op.name,
        key=_literal(op.name),
        arguments=", ".join([*(f"{spec.name}: _Tensor" for spec in op.inputs), *_declared(op, entry)]),
        result=types if len(outputs) == 1 else f"tuple[{types}]",
        note=_prose(" ".join([op.note or f"See {entry.module}.", *_left_open(op)])),
        devices=_prose(_devices(entry)),
        baseline=_prose(f": see {op.baseline.__name__} in {entry.module}" if op.baseline else ""),
        outputs=f"({outputs[0]},)" if len(outputs) == 1 else ", ".join(outputs),
        inputs=", ".join(spec.name for spec in op.inputs) + ("," if len(op.inputs) == 1 else ""),
        parameters=", ".join(f"{_literal(name)}: {name}" for name in entry.parameters),
        returned=", ".join(outputs),
    )


def _devices(entry: ExportedEntry) -> str:
    if not entry.kernels:
        return "Has no kernel yet: everywhere"
    devices = ", ".join(sorted({measured.device for _, measured in entry.table()}))
    return f"Has kernels for {devices}. On other devices, and where no kernel is faster"


def _left_open(op: Op) -> Iterator[str]:
    if op.exempt:
        reasons = "; ".join(dict.fromkeys(op.exempt.values()))
        yield f"Results for these inputs are undefined: {', '.join(op.exempt)} ({reasons})."


def _literal(value: str | float) -> str:
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
        winner = kernel.id if kernel else "PyTorch runs"
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

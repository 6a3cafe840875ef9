"""Texts of an exported package: its pyproject.toml and its README.

Archives are untrusted, as are the names of devices and tools in them. Every value in a template is either a name
that `portable` has checked or a result of `literal`, `prose` or `_cell`, so no text can become code.
"""

import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from archive.characters import escaped
from evolve.export import families
from evolve.export.template.forms import Form
from evolve.export.template.manifest import ExportedEntry, Tested
from reference_ops.op import Op

MARKUP = re.compile(r"[\\`*_{}\[\]<>()#!|~&$:@]|(?<=www)\.")
Exported = Sequence[tuple[Op, ExportedEntry]]


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
{name} = ["py.typed", "*.pyi", "manifest.json", "kernels/**/*.cu", "cubins/**/*.cubin"]
"""

README = """\
# {name}

Functions with PyTorch's own arguments that run CUDA kernels. A kernel runs only where it was measured to be faster than
PyTorch: faster than eager PyTorch in eager code, and than torch.compile in compiled code. Everywhere else PyTorch runs.

    pip install .                     # depends only on PyTorch; without an NVIDIA GPU, PyTorch runs
    python -m {name}.selftest         # compares everything with PyTorch on your machine

The test ends after 45 seconds and lists what it left out or did not reach; `--seconds 0` removes the limit.

## Use
A model in plain torch needs no change. Each of these reports what it replaced, what it left, and why:

    import torch, {name}

    print({name}.patch(model))                                # exchanges layers in place; `unpatch` undoes it
    with {name}.enabled() as report:                          # redirects the calls in a block
        model(x)
    print(report)
    compiled = torch.compile(model, backend={name}.backend)   # redirects the calls in the graph, then Inductor

`enabled` sees one call at a time, and each call must return its result before the next one is known. Several calls that
one kernel can compute, such as `silu(gate) * up` or `q * cos + rotate_half(q) * sin`, are therefore combined only in
compiled graphs; `patch` also exchanges RMS norms that are written out. PyTorch leaves models that call `nn.LSTM`,
`nn.GRU` or `nn.RNN` out of compiled graphs, unless you set `torch._dynamo.config.allow_rnn = True`. `patch` and
`enabled` redirect such layers in any case.

You can also call the functions, which are listed below. `explain` returns the kernel that a call with these arguments
runs, and the reason:

    print({name}.explain("{first}", ...))

`{name}.nn` contains layers for building models, and `{name}.optim` the optimizers AdamW and SGD.
`{name}.graph_pass()` is the pass alone, with a `uuid`. Arrays of CuPy, JAX and others with DLPack are accepted, too.

## Functions
{calls}

## What was measured
Times are medians of GPU time in microseconds with cold caches. `compile` is the faster of torch.compile's default and
max-autotune modes. The speedup comes from a paired timing: a separate process times the kernel and the fastest of
PyTorch in turn. The range is the 95 % confidence interval of the median. A kernel wins if the low end of this interval
is above the noise, which is measured by timing the kernel against itself. If torch.compile was the fastest of PyTorch
and the kernel is not faster than that, the kernel runs only in eager code, and only if eager PyTorch is slower.

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
  are moved last, and tensors that are not contiguous are copied.
- The dtype was measured, and so were the parameters on which sizes depend, such as a stride. For other sizes, the
  nearest measured sizes decide: the kernel that was the fastest there runs if it accepts the sizes, and PyTorch runs if
  PyTorch was the fastest there.
- No size or tensor is larger than those with which the kernel was tested (`envelope` in manifest.json).
- If an input requires a gradient, PyTorch's backward or an exported backward computes it. Statistics that an op returns
  beside its result, such as `lse`, have no gradient. Gradients of gradients come from PyTorch.
- In torch.compile and torch.export, graphs contain an opaque op where a kernel beats the compiler's code for the op,
  and PyTorch elsewhere. Under vmap and forward-mode differentiation, PyTorch runs. Autocast casts inputs as for
  PyTorch's op; if its dtype is not known, PyTorch runs.
- Under `torch.use_deterministic_algorithms(True)` or `options(deterministic=True)`, the kernel was found to be
  deterministic. `options(workspace_limit=, allow=, pin=)` restrict the choice further, for a block or with
  `set_options` for the process.
- With `options(autotune=True)`, like `cudnn.benchmark`, the first call for new sizes times the kernels and PyTorch on
  this GPU instead, and the fastest runs. The cache on disk stores the choice for this GPU, driver, PyTorch and package.
- In eager code, the kernel was faster than eager PyTorch; in a graph of torch.compile, also faster than the compiler's
  code. The host must also launch a kernel of less than 60 us in less time than PyTorch's. The first call of such a
  kernel that requires gradients, or records running statistics, is timed with its backward, by kernels and by PyTorch.
  Choices are logged at debug level.

Compiled kernels (cubins) come with the package for the GPUs and sizes that were measured. For other sizes a kernel is
compiled at the first call that needs it, in a few hundredths of a second, and stored in a cache on disk:
`~/.cache/evolve-primitives`, or the folder in `EVOLVE_CUBINS`. You can delete it at any time.
A first call while a CUDA graph is captured loads the kernel, too, without counting the host's time. Drivers before CUDA
12.3 cannot do that: the graph captures PyTorch, with a warning, unless you made the same call once before.
Where PyTorch runs, it runs the function against which the kernels were timed. If the result of an op is not unique, as
for the order of equal values, PyTorch and a kernel may return different results.
If a chosen kernel fails to compile or to launch, the call raises an error. PyTorch does not replace it.
`manifest.json` contains the kernels' hashes and times, `kernels/` their sources, `cubins/` the compiled kernels, and
`ops/` the references. Loading a source or cubin that was changed raises an error.
`_runtime/` is copied from evolve-kernels (Apache-2.0), which generated this package.
"""


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


def pyproject(name: str, exported: Exported) -> str:
    description = f"CUDA kernels for PyTorch ops: {', '.join(op.name for op, _ in exported)}"
    return PYPROJECT.format(name=name, description=literal(description))


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
    """Return a call as a user would write it, such as `rms_norm(input, normalized_shape, weight=None, eps=None)`."""
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


def literal(value: str | float | None) -> str:
    """Return a value as a Python literal, which for strings is also TOML. Infinity becomes `float("inf")`."""
    if isinstance(value, str):
        return escaped(json.dumps(value, ensure_ascii=False))
    not_finite = isinstance(value, float) and not math.isfinite(value)
    return f"float({literal(str(value))})" if not_finite else repr(value)


def prose(text: str) -> str:
    """Return text that is safe inside a docstring: it cannot end the docstring."""
    plain = escaped(" ".join(text.split())).replace("\\", "\\\\").replace('"', "'")
    return "\n".join(textwrap.wrap(plain, 110, subsequent_indent="    "))


def _cell(text: str) -> str:
    """Return text that is safe in a cell of a Markdown table: it cannot create columns, links or tags."""
    return MARKUP.sub(r"\\\g<0>", escaped(" ".join(text.split())))


def _written(parameters: Mapping[str, int | float | None]) -> list[str]:
    return [name if default is None else f"{name}={literal(default)}" for name, default in parameters.items()]


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

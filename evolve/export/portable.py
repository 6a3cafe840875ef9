"""Portable ops: whether a package can contain an op and a function for it, and the op's module in the package."""

import keyword
from dataclasses import dataclass
from pathlib import Path

import torch

from evolve.export.runtime_copy import NotPortableError, check_foreign_imports
from evolve.export.template.calls import NoKernelError, check_outputs, workload_of
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload, ops_of
from reference_ops.precision import TORCH_DTYPES
from reference_ops.tasks.source import TaskError, run_text

TAKEN_FUNCTIONS = (  # names of functions and modules that every package has
    *("backend", "enabled", "explain", "graph_pass", "kernels", "nn", "ops", "options", "patch", "set_options"),
    *("layers", "optim", "selftest", "unpatch"),
)


@dataclass(frozen=True)
class OpModule:
    """The module of a package that defines an op, before its imports are adapted to the package."""

    stem: str
    source: str
    op: Op  # the op as this module defines it


def portable(op: Op, path: Path) -> OpModule:
    """Return the module of an op from this file. Raise a NotPortableError if a package cannot contain it."""
    _check_names(op)
    module = _module(op, path)
    for workload in op.gpu:
        _check_sizes(module.op, op, workload)
    # Even without values, a recurrent layer takes time in proportion to its steps, so outputs are checked at the
    # smallest sizes.
    smallest: dict[object, Workload] = {}
    for workload in sorted(op.gpu, key=lambda one: sum(size for _, size in one.dims)):
        smallest.setdefault((workload.dtype, workload.parameters), workload)
    for workload in smallest.values():
        _check_outputs(module.op, op, workload)
    return module


def _check_names(op: Op) -> None:
    if (
        not op.name.isidentifier()
        or keyword.iskeyword(op.name)
        or op.name.startswith("_")
        or op.name in TAKEN_FUNCTIONS
    ):
        raise NotPortableError(f"its name `{op.name}` cannot be the name of a function in the package: rename the op")
    names = [*(spec.name for spec in (*op.inputs, *op.outputs)), *op.parameters]
    for name in names:
        if keyword.iskeyword(name) or names.count(name) > 1:
            raise NotPortableError(f"`{name}` is a Python keyword or the name of two arguments: rename the tensor")
    known = {dim for spec in (*op.inputs, *op.outputs) for dim in spec.dims}
    for name, _ in op.gpu[0].dims:
        if name not in known:
            raise NotPortableError(f"no tensor has the dim `{name}`, so its size cannot be read from a call")
    if all(spec.dtype for spec in op.inputs):
        raise NotPortableError("every input has a fixed dtype, so the workload's dtype cannot be read from a call")


def _module(op: Op, path: Path) -> OpModule:
    """Return the op's file, or the file that replaces it if the op comes from a task file."""
    if op.standalone is None:
        if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
            raise NotPortableError(f"its file {path.name} cannot be a module of the package: rename it")
        source = path.read_text(encoding="utf-8")
        check_foreign_imports(source)
        return OpModule(path.stem, source, op)
    try:
        source = op.standalone()
    except TaskError as error:
        raise NotPortableError(str(error)) from error
    check_foreign_imports(source)
    try:
        alone = ops_of(run_text(source, f"exported_{op.name}", path))[0]
    except Exception as error:  # a user's file may raise any exception
        reason = f"{type(error).__name__}: {error}"
        raise NotPortableError(f"its code from {path.name} does not work without the rest: {reason}") from error
    return OpModule(op.name, source, alone)


def _check_sizes(exported: Op, op: Op, workload: Workload) -> None:
    """Check that this workload is recognised from a call."""
    try:
        read = workload_of(exported, _metas(op, workload), dict(workload.parameters))
    except NoKernelError as error:
        if isinstance(error.__cause__, NotImplementedError):  # PyTorch needs values to compute the op
            return
        raise NotPortableError(str(error)) from error
    if read != workload:
        raise NotPortableError(f"a call at {workload.key} cannot be distinguished from one at {read.key}")


def _check_outputs(exported: Op, op: Op, workload: Workload) -> None:
    """Check that the op returns its declared outputs at this workload, or at a small one if it needs values."""
    try:
        try:
            check_outputs(exported, workload, _metas(op, workload))
        except NoKernelError as error:
            if not isinstance(error.__cause__, NotImplementedError):
                raise
            small = (*op.emulated, workload)[0]
            check_outputs(exported, small, tuple(inputs_at(op, small, 0, "cpu").values()))
    except NoKernelError as error:
        raise NotPortableError(str(error)) from error


def _metas(op: Op, workload: Workload) -> list[torch.Tensor]:
    return [
        torch.empty(op.shape(spec, workload), dtype=TORCH_DTYPES[spec.dtype or workload.dtype], device="meta")
        for spec in op.inputs
    ]

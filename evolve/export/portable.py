"""Whether an op can live in a package of its own, and what its function will look like there."""

import inspect
import keyword
from collections.abc import Mapping
from pathlib import Path

from evolve.export.runtime_copy import NotPortableError, check_foreign_imports
from evolve.export.template.calls import NoKernelError, check_outputs
from reference_ops.op import Number, Op

TAKEN = ("explain", "kernels", "ops")  # names that every package has anyway


def check_op(op: Op, path: Path) -> None:
    """Raise a NotPortableError unless the op's function can be written and called without its archive."""
    if not op.name.isidentifier() or keyword.iskeyword(op.name) or op.name.startswith("_") or op.name in TAKEN:
        raise NotPortableError(f"`{op.name}` cannot be the name of a function in the package")
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise NotPortableError(f"its file {path.name} cannot be a module of the package: rename it")
    names = [*(spec.name for spec in (*op.inputs, *op.outputs)), *op.parameters]
    for name in names:
        if keyword.iskeyword(name) or names.count(name) > 1:
            raise NotPortableError(f"`{name}` cannot be the name of an argument, or is the name of two")
    known = {dim for spec in op.inputs for dim in spec.dims}
    for name, _ in op.gpu[0].dims:
        if name not in known:
            raise NotPortableError(f"no input has the dim `{name}`, so that a call does not say how large it is")
    if all(spec.dtype for spec in op.inputs):
        raise NotPortableError("no input has the workload's dtype, so that a call does not say which it is")
    check_foreign_imports(path.read_text(encoding="utf-8"))
    try:
        for workload in op.gpu:
            check_outputs(op, workload)
    except NoKernelError as error:
        raise NotPortableError(str(error)) from error


def defaults(op: Op) -> Mapping[str, Number | None]:
    """The parameters of the op's function, those without a default first.

    The reference's own default counts; without one, the value that all of the op's workloads share.
    """
    written = inspect.signature(op.reference).parameters
    found: dict[str, Number | None] = {}
    for name in op.parameters:
        own = written[name].default if name in written else inspect.Parameter.empty
        shared = {dict(workload.parameters)[name] for workload in op.gpu}
        found[name] = own if isinstance(own, int | float) else shared.pop() if len(shared) == 1 else None
    return dict(sorted(found.items(), key=lambda item: item[1] is not None))

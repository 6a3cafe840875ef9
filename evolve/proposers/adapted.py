"""Adapted kernels: the shipped kernels of the catalog's ops, as kernels of a task that computes the same."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from archive import library
from archive.binding import parse_for
from archive.kernel import CLOSE, OPEN, Kernel, print_plan
from archive.plan import Argument, Expression, Launch, Plan, PlanError, Workspace
from evolve.op_on_device import signature
from reference_ops.equivalents import Equivalent, equivalents
from reference_ops.op import Number, Op

_known: list[tuple[Op, list[Equivalent]]] = []  # what was found for each task, which takes half a second
C_TYPES = {"float32": "float", "float64": "double", "int64": "long long", "int32": "int"}


def kernels_for(task: Op, *, plain: bool = False) -> Iterator[Kernel]:
    """Yield the shipped kernels of all ops that compute the same as the task, as far as they can be adapted."""
    for same in find_equivalents(task):
        for kernel in library.plain(same.op.name) if plain else library.shipped(same.op.name):
            if found := adapted(kernel, task, same):
                yield found


def find_equivalents(task: Op) -> list[Equivalent]:
    """Return the ops of the catalog that compute the same as the task. They are looked for once."""
    found = next((same for known, same in _known if known is task), None)
    if found is None:
        found = equivalents(task)
        _known.append((task, found))
    return found


def adapted(kernel: Kernel, task: Op, same: Equivalent) -> Kernel | None:
    """Return the kernel with the task's names, or None if names, types or dtypes stand in the way."""
    floats = {name: value for name, value in same.parameters.items() if isinstance(value, float)}
    renamed = {old: new for old, new in same.tensors.items() if old != new}
    theirs = {spec.name for spec in (*task.inputs, *task.outputs)}
    workspace = [spec for spec in same.op.outputs if spec.name not in same.tensors]
    types = {spec.name: C_TYPES.get(spec.dtype, "") for spec in workspace}
    if theirs & {*renamed, *types} or not all(types.values()):
        return None
    if kernel.plan.dtypes and not {*kernel.plan.dtypes} & {*task.dtypes}:
        return None
    source = kernel.source
    for launch in kernel.plan.launches:
        places = [index for index, argument in enumerate(launch.args) if argument in floats]
        shortened = _without_arguments(source, launch.entry, places)
        if shortened is None:
            return None
        source = shortened
    lines = [f"using {old}_t = {new}_t;" for old, new in renamed.items()]
    lines += [f"using {name}_t = {kind};" for name, kind in types.items()]
    lines += [f"constexpr float {name} = {value!r}f;" for name, value in floats.items()]
    plan = _plan(kernel.plan, task, same, floats)
    spaces = tuple(Workspace(spec.name, spec.dims, spec.dtype) for spec in workspace)
    plan = replace(plan, workspace=(*plan.workspace, *spaces))
    text = "".join(f"{line}\n" for line in lines)
    try:
        return parse_for(f"{OPEN}\n{print_plan(plan)}{CLOSE}\n{text}{source}", signature(task))
    except PlanError:
        return None


def _plan(plan: Plan, task: Op, same: Equivalent, floats: Mapping[str, Number]) -> Plan:
    """Return the plan with the task's tensors. The op's dims and whole parameters become lets."""
    known = {spec for tensor in (*task.inputs, *task.outputs) for spec in tensor.dims}
    given: dict[str, str] = {name: text for name, text in same.dims.items() if text != name or name not in known}
    given |= {name: str(value) for name, value in same.parameters.items() if name not in floats}
    words = {**same.tensors, **{name: f"({text})" for name, text in given.items()}}
    lets = tuple((name, int(text) if text.lstrip("-").isdigit() else text) for name, text in given.items())

    def in_words(text: Expression) -> Expression:
        return _replaced(text, same.tensors)

    def launched(launch: Launch) -> Launch:
        return replace(
            launch,
            grid=tuple(map(in_words, launch.grid)),
            block=tuple(map(in_words, launch.block)),
            shared=in_words(launch.shared),
            args=tuple(_argument(one, same.tensors) for one in launch.args if one not in floats),
        )

    return replace(
        plan,
        op=task.name,
        note=f"{plan.note} (a kernel of {same.op.name}, adapted)",
        when=str(_replaced(plan.when, words)),
        dtypes=tuple(dtype for dtype in plan.dtypes if dtype in task.dtypes),
        require=tuple(str(in_words(one)) for one in plan.require),
        let=(*lets, *((name, in_words(value)) for name, value in plan.let)),
        workspace=tuple(
            replace(one, shape=tuple(map(in_words, one.shape)), dtype=same.tensors.get(one.dtype, one.dtype))
            for one in plan.workspace
        ),
        launches=tuple(map(launched, plan.launches)),
    )


def _replaced(text: Expression, words: Mapping[str, str]) -> Expression:
    if not isinstance(text, str):
        return text
    return re.sub(r"[A-Za-z_]\w*", lambda found: words.get(found.group(), found.group()), text)


def _argument(argument: Argument, names: Mapping[str, str]) -> Argument:
    if isinstance(argument, tuple):
        return tuple(names.get(one, one) for one in argument)
    return _replaced(argument, names)


def _without_arguments(source: str, entry: str, places: list[int]) -> str | None:
    """Return the source without these parameters of an entry, or None if its declaration is of an unusual form."""
    if not places:
        return source
    found = re.search(rf"\b{re.escape(entry)}\s*\(([^()]*)\)\s*{{", source)
    if not found:
        return None
    parameters = found.group(1).split(",")
    kept = [one for index, one in enumerate(parameters) if index not in places]
    return source[: found.start(1)] + ",".join(kept).strip() + source[found.end(1) :]

"""Adapted kernels: the shipped kernels of the catalog's ops, as kernels of a task that computes the same.

Whether an op computes the same as a task is found by running both on the task's own inputs.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from archive import library
from archive.binding import parse_for
from archive.kernel import CLOSE, OPEN, Kernel, print_plan
from archive.plan import Argument, Expression, Launch, Plan, PlanError, Workspace
from evolve.op_on_device import signature
from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import NORMAL, Number, Op, Tensors, TensorSpec, Workload

C_TYPES = {"float32": "float", "float64": "double", "int64": "long long", "int32": "int"}
SEEDS, MOST_WORKLOADS, MOST_VALUES = 2, 3, 2
RELATIVE, ABSOLUTE = 1e-9, 1e-12  # largest difference between results in float64
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)  # values of `eps` to try besides the catalog's
LEADING, TRAILING = "leading", "trailing"  # which of a task's dims are joined to one dim of the catalog's op


@dataclass(frozen=True)
class Equivalent:
    """An op of the catalog in terms of a task: its tensors, its dims as products, and its parameters."""

    op: Op
    tensors: Mapping[str, str]  # the task's names by the op's names; outputs that the task lacks are left out
    dims: Mapping[str, str]  # products such as "batch * features"; key: the op's name of the dim
    parameters: Mapping[str, Number]


_known: list[tuple[Op, list[Equivalent]]] = []  # the equivalents of each task, which take half a second to find


def kernels_for(task: Op, *, plain: bool = False) -> Iterator[Kernel]:
    """Yield the shipped kernels, adapted to the task, of all ops that compute the same; others are left out."""
    for same in find_equivalents(task):
        for kernel in library.plain(same.op.name) if plain else library.shipped(same.op.name):
            if found := adapted(kernel, task, same):
                yield found


def find_equivalents(task: Op) -> list[Equivalent]:
    """Return the ops of the catalog that compute the same as the task. The search is done once per task."""
    found = next((same for known, same in _known if known is task), None)
    if found is None:
        found = equivalents(task)
        _known.append((task, found))
    return found


def import_catalog() -> None:
    """Load all ops of the catalog, which is most of the search for equivalents."""
    for name in catalog.names():
        catalog.load(name)


def equivalents(task: Op) -> list[Equivalent]:
    """Return the ops of the catalog that compute the same as the task, in the order of their names."""
    # the CPU must compute the task, and its kernels would need constants for its parameters
    if not task.emulated or task.parameters:
        return []
    workloads = (*task.emulated, *task.awkward)[:MOST_WORKLOADS]
    drawn = [
        (workload, inputs_at(task, workload, seed, "cpu", values))
        for workload in workloads
        for seed in range(SEEDS)
        for values in (NORMAL, *task.values[:MOST_VALUES])
    ]
    with torch.no_grad():
        expected = [(workload, inputs, task.call_in_float64(inputs, workload)) for workload, inputs in drawn]
        found = (_first_equal(task, catalog.load(name), expected) for name in catalog.names())
        return [same for same in found if same]


def _first_equal(
    task: Op, op: Op, expected: Sequence[tuple[Workload, Tensors, tuple[torch.Tensor, ...]]]
) -> Equivalent | None:
    candidates = (Equivalent(op, *names, given) for names in _matches(task, op) for given in _parameters(op))
    return next((same for same in candidates if all(_equal(task, same, *one) for one in expected)), None)


def _matches(task: Op, op: Op) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield the possible assignments of the op's tensors and dims to the task's."""
    if op.derived or len(op.inputs) != len(task.inputs) or len(op.outputs) < len(task.outputs):
        return
    pairs = [*zip(op.inputs, task.inputs, strict=True), *zip(op.outputs, task.outputs, strict=False)]
    if any(own.dtype != other.dtype for own, other in pairs):
        return
    seen = []
    for style in (LEADING, TRAILING):
        dims: dict[str, str] = {}
        if all(_joined(own, other, style, dims) for own, other in pairs) and dims not in seen:
            seen.append(dims)
            yield {own.name: other.name for own, other in pairs}, dims


def _joined(own: TensorSpec, other: TensorSpec, style: str, dims: dict[str, str]) -> bool:
    """Add the task's product for each of the op's dims to `dims`; return whether it agrees with earlier entries."""
    extra = len(other.dims) - len(own.dims)
    if extra < 0 or (extra and not own.dims):
        return False
    sizes = [1] * len(own.dims)
    if sizes:
        sizes[0 if style == LEADING else -1] += extra
    rest = iter(other.dims)
    products = [" * ".join(itertools.islice(rest, size)) for size in sizes]
    return all(
        product == name if name.isdigit() else dims.setdefault(name, product) == product
        for name, product in zip(own.dims, products, strict=True)
    )


def _parameters(op: Op) -> Iterator[dict[str, Number]]:
    """Yield the sets of parameters at which the catalog measures the op, with other usual values of `eps`."""
    listed = {workload.parameters: dict(workload.parameters) for workload in op.listed}
    yield from listed.values()
    for given in [*listed.values()][:1]:
        if "eps" in given:
            yield from ({**given, "eps": eps} for eps in EPSILONS)


def _equal(task: Op, same: Equivalent, workload: Workload, inputs: Tensors, expected: Sequence[torch.Tensor]) -> bool:
    sizes = {name: product_of(text, task.sizes(workload)) for name, text in same.dims.items()}
    try:
        given = [
            _doubled(value).reshape(spec.shape(sizes))
            for spec, value in zip(same.op.inputs, inputs.values(), strict=True)
        ]
        found = same.op.reference(*given, **same.parameters)
    except Exception:  # noqa: BLE001 - the op refuses such inputs
        return False
    outputs = (found,) if isinstance(found, torch.Tensor) else found
    return all(
        own.numel() == other.numel()
        and torch.allclose(own.double().flatten(), other.double().flatten(), RELATIVE, ABSOLUTE, equal_nan=True)
        for own, other in zip(outputs, expected, strict=False)
    )


def _doubled(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def product_of(text: str, sizes: Mapping[str, int]) -> int:
    """Return the value of a product such as "batch * 64"."""
    found = 1
    for part in text.split(" * "):
        found *= int(part) if part.isdigit() else sizes[part]
    return found


def adapted(kernel: Kernel, task: Op, same: Equivalent) -> Kernel | None:
    """Return the kernel with the task's names, or None if names, types or dtypes prevent that."""
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

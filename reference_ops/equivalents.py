"""Equivalents: ops of the catalog that compute the same as a task, shown by running both on the task's own inputs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import NORMAL, Number, Op, Tensors, TensorSpec, Workload

SEEDS, MOST_WORKLOADS, MOST_VALUES = 2, 3, 2
RELATIVE, ABSOLUTE = 1e-9, 1e-12  # between results in float64
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)  # values of `eps` to try besides the catalog's
LEADING, TRAILING = "leading", "trailing"  # which dims of a task are one dim of the catalog's op


@dataclass(frozen=True)
class Equivalent:
    """An op of the catalog, in terms of the task: its tensors, its dims as products, and its parameters."""

    op: Op
    tensors: Mapping[str, str]  # the task's names, by the op's; outputs that the task lacks are left out
    dims: Mapping[str, str]  # such as "batch * features", by the op's names
    parameters: Mapping[str, Number]


def equivalents(task: Op) -> list[Equivalent]:
    """Return the ops of the catalog that compute the same as the task, in the order of their names."""
    if not task.emulated or task.parameters:  # a CPU must compute it, and its kernels would need constants as arguments
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
    """Yield the ways in which the op's tensors and dims can stand for the task's."""
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
    """Add to `dims` what each of the op's dims is; return whether that agrees with what is known."""
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

"""Free parameters, which are passed to a kernel at each launch, so that one compiled kernel serves all values.

A parameter is free unless a size or a part of the plan depends on it, such as `k` of topk or a specialised `width`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archive.kernel import Kernel
from archive.plan import Plan
from reference_ops.op import Op

NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Slot:
    """An argument of a launch that is set to a parameter's value at each call."""

    launch: int  # index of the launch in the plan
    position: int
    parameter: str


class _Asked(dict[str, Any]):
    """Sizes and parameters that record which of them were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def free_for_sizes(op: Op) -> frozenset[str]:
    """Return the parameters on which no size of a tensor depends."""
    used = {dim for spec in (*op.inputs, *op.outputs) for dim in spec.dims}
    known: dict[str, Any] = {**op.sizes(op.gpu[0]), **op.parameters}
    for rule in op.derived.values():
        asked = _Asked(known)
        rule(asked)
        used |= asked.names
    return frozenset(op.parameters) - used


def free_for_kernel(op: Op, kernel: Kernel) -> frozenset[str]:
    """Return the parameters that a kernel uses only as arguments of its launches."""
    return free_for_sizes(op) - set(_names_in_expressions(kernel.plan))


def slots(op: Op, kernel: Kernel) -> tuple[Slot, ...]:
    """Return the arguments of a kernel's launches that are free parameters."""
    free = free_for_kernel(op, kernel)
    return tuple(
        Slot(index, position, str(argument))
        for index, launch in enumerate(kernel.plan.launches)
        for position, argument in enumerate(launch.args)
        if argument in free
    )


def _names_in_expressions(plan: Plan) -> Iterator[str]:
    """Yield every name in a plan except names that are a whole argument."""
    yield from plan.specialize
    written: list[object] = [plan.when, *plan.require, *(expression for _, expression in plan.let)]
    written += [size for workspace in plan.workspace for size in workspace.shape]
    for launch in plan.launches:
        written += [*launch.grid, *launch.block, launch.shared]
        written += [argument for argument in launch.args if not NAME.fullmatch(str(argument))]
    for expression in written:
        if isinstance(expression, str):
            yield from NAME.findall(expression)

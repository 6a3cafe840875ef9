"""The extent of a package's test: its limits, and the sizes at which kernels are tested."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from evolve.export.template.dispatch import Primitive
from evolve.export.template.manifest import Shipped
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload

MOST_ELEMENTS = 1 << 24  # limit on the elements of a tensor at a measured size
MOST_AT_HAND = 1 << 26  # the same for sizes that need no compilation, which takes longer than the test
MOST_WORKLOADS = 3  # number of workloads of each kind
NO_KERNEL = "it has no kernel"
TIME_IS_UP = "the time limit was reached"


class LeftOutError(Exception):
    """Raised when a check does not apply; the message says why."""


@dataclass(frozen=True)
class Setting:
    """The device and the extent of a test."""

    device: torch.device
    calls: int
    seed: int
    sizes: int = MOST_WORKLOADS  # number of workloads of each kind
    until: float = inf  # the time of time.monotonic() at which the test ends
    is_first: bool = False  # whether one workload of each kernel suffices, if possible one that needs no compilation

    def need_time(self) -> None:
        if monotonic() > self.until:
            raise LeftOutError(TIME_IS_UP)


def sizes_of_kernel(primitive: Primitive, shipped: Shipped, setting: Setting) -> list[Workload]:
    """Return the sizes for the test of one kernel. In the first round, that is one for which a cubin is at hand."""
    every = sizes(primitive.op, setting)
    if not setting.is_first:
        return every
    found = [w for w in _at_hand(primitive.op, [shipped]) if primitive.op.largest_tensor(w) <= MOST_AT_HAND]
    return (sorted(found, key=primitive.op.largest_tensor) or every)[:1]


def _at_hand(op: Op, kernels: Sequence[Shipped]) -> list[Workload]:
    """Return the sizes at which these kernels were measured and for which the package has their cubins."""
    keys = {measured.times.workload for one in kernels if one.cubins for measured in one.measured}
    return [workload for workload in op.gpu if workload.key in keys]


def sizes(op: Op, setting: Setting) -> list[Workload]:
    """Return sizes of every kind at which an op is tested: awkward, small, and on a GPU those of models."""
    fitting = sorted((w for w in op.gpu if op.largest_tensor(w) <= MOST_ELEMENTS), key=op.largest_tensor, reverse=True)
    large = fitting[: setting.sizes] if setting.device.type == "cuda" else ()
    small = () if large and setting.sizes == 1 else op.emulated[: setting.sizes]
    return [*large, *op.awkward[: setting.sizes], *small]


def inputs_of(op: Op, workload: Workload, setting: Setting) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    return tuple(inputs_at(op, workload, setting.seed, str(setting.device)).values()), dict(workload.parameters)


def with_kernel(primitive: Primitive, setting: Setting) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Return arguments for which a kernel runs: at a measured size, if that is not too large."""
    op, reason = primitive.op, ""
    if not primitive.entry.kernels:
        raise LeftOutError(NO_KERNEL)
    at_hand = _at_hand(op, primitive.entry.kernels)
    every = sorted((*op.gpu, *op.emulated), key=lambda one: (one in at_hand, op.largest_tensor(one)), reverse=True)
    for workload in every:
        if op.largest_tensor(workload) <= MOST_ELEMENTS and (setting.device.type == "cuda" or workload in op.emulated):
            inputs, parameters = inputs_of(op, workload, setting)
            explained = primitive.explain(inputs, parameters)
            if explained.kernel:
                return inputs, parameters
            reason = reason or explained.reason
    raise LeftOutError(reason or "its sizes are too large for a test")

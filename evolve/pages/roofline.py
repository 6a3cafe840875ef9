"""Points of an op's roofline: the work and the traffic of each workload, and what its champion achieves of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from archive.records import DeviceInfo
from evolve.devices.choose import policy_of
from evolve.op_on_device import all_flops, speed_of_light
from evolve.selection.population import Champion
from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.op import Op, Workload


@dataclass(frozen=True)
class Work:
    """What a workload asks of a device."""

    flops: int
    least_bytes: int  # that must be moved
    arithmetic_us: float  # at the device's measured rates; 0 if they are unknown
    unit: str  # what does the arithmetic


WorkOf = Callable[[str, DeviceInfo], Mapping[str, Work]]  # of an op on a device, by workload


@dataclass(frozen=True)
class RooflinePoint:
    """A champion on one workload, and the roof above it."""

    workload: str
    intensity: float  # floating-point operations per byte that must be moved
    achieved: float  # TFLOP/s
    peak: float  # TFLOP/s
    bandwidth: float  # TB/s
    unit: str  # what does the arithmetic

    @property
    def share(self) -> float:
        """The share of what the roof allows at this intensity."""
        return self.achieved / min(self.peak, self.intensity * self.bandwidth)


def work_of(op: str, device: DeviceInfo) -> Mapping[str, Work]:
    """Return the work of an op of the catalog by workload. Loads the op, and PyTorch with it.

    Ops from elsewhere have none, because loading a user's file would run it.
    """
    try:
        found = None if catalog.is_path(op) else catalog.load(op)
    except CatalogError:
        return {}
    return {workload.key: _work(found, workload, device) for workload in found.gpu} if found else {}


def roofline(
    op: str, device: DeviceInfo, champions: Sequence[Champion], work: WorkOf = work_of
) -> tuple[RooflinePoint, ...]:
    """Return a point per workload of an op; none without GPU times or where the work or the rates are unknown."""
    if not champions or not policy_of(device.kind).times_are_gpu_times or not device.copy_gb_s:
        return ()
    works = work(op, device)
    points = [_point(works[one.workload], device, one) for one in champions if one.workload in works]
    return tuple(one for one in points if one)


def _work(op: Op, workload: Workload, device: DeviceInfo) -> Work:
    light = speed_of_light(op, workload, device)
    return Work(all_flops(op, workload), op.least_bytes(workload), light.arithmetic_us, light.unit or "float32")


def _point(work: Work, device: DeviceInfo, champion: Champion) -> RooflinePoint | None:
    if not work.flops or not work.least_bytes or not work.arithmetic_us:
        return None
    us = champion.measurement.median_us
    peak = work.flops / (work.arithmetic_us * 1e6)  # TFLOP/s that the units reach with this op's mix of arithmetic
    return RooflinePoint(champion.workload, work.flops / work.least_bytes, work.flops / (us * 1e6), peak,
                         device.copy_gb_s / 1e3, work.unit)  # fmt: skip

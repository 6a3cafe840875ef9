"""Points of an op's roofline: the work and the traffic of each workload, and what its champion achieves of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from archive.records import DeviceInfo
from evolve.devices.choose import policy_of
from evolve.op_on_device import all_flops, speed_of_light
from evolve.selection.population import Champion
from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.op import Op, Workload


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


def roofline(op: str, device: DeviceInfo, champions: Sequence[Champion]) -> tuple[RooflinePoint, ...]:
    """Return a point per workload of an op of the catalog; none without GPU times or where the rates are unknown.

    Ops from elsewhere have none, because loading a user's file would run it.
    """
    if not policy_of(device.kind).times_are_gpu_times or not device.copy_gb_s or not (found := known(op)):
        return ()
    by_key = {workload.key: workload for workload in found.gpu}
    kept = [(by_key[one.workload], one) for one in champions if one.workload in by_key]
    points = [_point(found, workload, device, one) for workload, one in kept]
    return tuple(one for one in points if one)


def known(op: str) -> Op | None:
    """Load an op of the catalog, and PyTorch with it; None for any other op."""
    if catalog.is_path(op):
        return None
    try:
        return catalog.load(op)
    except CatalogError:
        return None


def _point(op: Op, workload: Workload, device: DeviceInfo, champion: Champion) -> RooflinePoint | None:
    flops, least = all_flops(op, workload), op.least_bytes(workload)
    light = speed_of_light(op, workload, device)
    if not flops or not least or not light.arithmetic_us:
        return None
    us = champion.measurement.median_us
    peak = flops / (light.arithmetic_us * 1e6)  # TFLOP/s that the units reach with this op's mix of arithmetic
    return RooflinePoint(champion.workload, flops / least, flops / (us * 1e6), peak, device.copy_gb_s / 1e3,
                         light.unit or "float32")  # fmt: skip

"""Points of an op's roofline: the work and the traffic of each workload, and the rate that its champion achieves."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from archive import plain
from archive.records import DeviceInfo
from evolve.devices.choose import policy_of
from evolve.op_on_device import all_flops, speed_of_light
from evolve.selection.population import Champion
from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.op import Op, Workload


@dataclass(frozen=True)
class Work:
    """The work of a workload on a device."""

    flops: int
    least_bytes: int  # number of bytes that must be moved
    arithmetic_us: float  # time at the device's measured rates; 0 if they are unknown
    unit: str  # the units that do the arithmetic


WorkOf = Callable[[str, DeviceInfo], Mapping[str, Work]]  # the work of an op on a device; key: workload


@dataclass(frozen=True)
class RooflinePoint:
    """A champion on one workload, and the roof above it."""

    workload: str
    intensity: float  # floating-point operations per byte that must be moved
    achieved: float  # TFLOP/s
    peak: float  # TFLOP/s
    bandwidth: float  # TB/s
    unit: str  # the units that do the arithmetic

    @property
    def share(self) -> float:
        """The share of the roof at this intensity."""
        return self.achieved / min(self.peak, self.intensity * self.bandwidth)


def work_of(op: str, device: DeviceInfo) -> Mapping[str, Work]:
    """Return the work of an op of the catalog by workload. This loads the op, and PyTorch with it.

    Ops outside the catalog have none, because loading a user's file would run it.
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


SECONDS = 120.0
Wanted = tuple[str, DeviceInfo]


@dataclass
class WorkAside:
    """The work of ops on devices, read once for each. Several threads may read at the same time."""

    known: dict[Wanted, Mapping[str, Work]] = field(default_factory=dict)
    reading: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, op: str, device: DeviceInfo) -> Mapping[str, Work]:
        self.read([(op, device)])
        return self.known.get((op, device), {})

    def read(self, wanted: Iterable[Wanted]) -> None:
        """Read the work that is not known yet.

        Work that cannot be read counts as unknown, and pages then lack only the roofline.
        """
        with self.reading:
            missing = [one for one in dict.fromkeys(wanted) if one not in self.known]
            if missing:
                self.known |= dict(zip(missing, _read(missing), strict=True))


def _read(wanted: list[Wanted]) -> list[Mapping[str, Work]]:
    given = json.dumps([(op, asdict(device)) for op, device in wanted])
    try:
        answer = subprocess.run(
            [sys.executable, "-m", __name__], input=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, timeout=SECONDS, check=True,
        ).stdout  # fmt: skip
        found = json.loads(answer)
    except (OSError, ValueError, subprocess.SubprocessError):
        return [{} for _ in wanted]
    return [{key: plain.record(Work, work) for key, work in of_op.items()} for of_op in found]


def main() -> None:
    """Print the work of the ops and devices that are named on standard input."""
    wanted: list[tuple[str, dict[str, Any]]] = json.load(sys.stdin)
    works = [work_of(op, plain.record(DeviceInfo, device)) for op, device in wanted]
    print(json.dumps([{key: asdict(work) for key, work in of_op.items()} for of_op in works]))


if __name__ == "__main__":
    main()

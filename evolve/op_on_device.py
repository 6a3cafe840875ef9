"""An op on a device: the names that a kernel's plan can use, the values it is bound to, and the speed of light."""

import math
from dataclasses import dataclass

from archive.binding import Point
from archive.plan import Signature
from archive.records import DeviceInfo
from reference_ops.op import Op, Workload


def signature(op: Op) -> Signature:
    """Return the names that a kernel's plan can use for this op."""
    return Signature(
        op=op.name,
        tensors=tuple(tensor.name for tensor in (*op.inputs, *op.outputs)),
        dims=op.dims,
        integers=tuple(name for name, value in op.parameters.items() if isinstance(value, int)),
        floats=tuple(name for name, value in op.parameters.items() if isinstance(value, float)),
        dtypes=op.dtypes,
    )


def point(op: Op, workload: Workload, info: DeviceInfo) -> Point:
    """Return the values that a kernel's plan is bound to at this workload."""
    return Point(
        dtype=workload.dtype,
        dims=op.sizes(workload),
        parameters=dict(workload.parameters),
        tensors={tensor.name: tensor.dtype or workload.dtype for tensor in (*op.inputs, *op.outputs)},
        sms=info.sms,
        shared_bytes=info.shared_bytes,
    )


@dataclass(frozen=True)
class SpeedOfLight:
    """Lower bounds on a kernel's time; 0 if the device's rates are unknown."""

    bytes_us: float  # to move the least possible number of bytes, at the copy rate
    arithmetic_us: float  # to do the arithmetic, at the peak rates of the fastest units that can do it

    @property
    def us(self) -> float:
        return max(self.bytes_us, self.arithmetic_us)


def speed_of_light(op: Op, workload: Workload, device: DeviceInfo) -> SpeedOfLight:
    """Return the lower bounds for an op at a workload on a device."""
    bytes_us = op.least_bytes(workload) / (device.copy_gb_s * 1e3) if device.copy_gb_s else 0.0
    rates, sizes = dict(device.tflops), op.sizes(workload)
    ordinary_us = op.flops(sizes) / (rates.get("float32", math.inf) * 1e6)
    matrix_us = (
        op.matrix_flops(sizes) / (rates.get(matrix_unit(op, workload), math.inf) * 1e6) if op.matrix_flops else 0
    )
    # Tensor cores run in parallel with the other units. Without TF32, float32 products run on the other units.
    both_us = ordinary_us + matrix_us if matrix_unit(op, workload) == "float32" else max(ordinary_us, matrix_us)
    return SpeedOfLight(bytes_us, both_us)


def matrix_unit(op: Op, workload: Workload) -> str:
    """Return the name of the rate in `DeviceInfo.tflops` that applies to this workload's matrix products."""
    return "tf32" if op.tf32 and workload.dtype == "float32" else workload.dtype


def all_flops(op: Op, workload: Workload) -> int:
    """Return the number of operations in ordinary arithmetic and matrix products together."""
    sizes = op.sizes(workload)
    return op.flops(sizes) + (op.matrix_flops(sizes) if op.matrix_flops else 0)


def without_tensor_cores_us(op: Op, workload: Workload, device: DeviceInfo) -> float:
    """Return the time of all arithmetic if tensor cores are not used."""
    return all_flops(op, workload) / (dict(device.tflops).get("float32", math.inf) * 1e6)

"""An op on a device: what a kernel plan may name, the values it is evaluated at, and the speed of light."""

import math
from dataclasses import dataclass

from archive.binding import Point
from archive.plan import Signature
from archive.records import DeviceInfo
from reference_ops.op import Op, Workload


def signature(op: Op) -> Signature:
    """What the op offers to a kernel's plan."""
    return Signature(
        op=op.name,
        tensors=tuple(tensor.name for tensor in (*op.inputs, *op.outputs)),
        dims=op.dims,
        integers=tuple(name for name, value in op.parameters.items() if isinstance(value, int)),
        floats=tuple(name for name, value in op.parameters.items() if isinstance(value, float)),
        dtypes=op.dtypes,
    )


def point(op: Op, workload: Workload, info: DeviceInfo) -> Point:
    return Point(
        dtype=workload.dtype,
        dims=op.sizes(workload),
        parameters=dict(workload.parameters),
        tensors={tensor.name: tensor.dtype or workload.dtype for tensor in (*op.inputs, *op.outputs)},
        sms=info.sms,
        shared_bytes=info.shared_bytes,
    )


@dataclass(frozen=True)
class Light:
    """The least bytes at the copy rate, and the arithmetic at the peaks of the units that can do it; 0 if unknown."""

    bytes_us: float
    arithmetic_us: float

    @property
    def us(self) -> float:
        return max(self.bytes_us, self.arithmetic_us)


def light(op: Op, workload: Workload, device: DeviceInfo) -> Light:
    bytes_us = op.least_bytes(workload) / (device.copy_gb_s * 1e3) if device.copy_gb_s else 0.0
    rates, sizes = dict(device.tflops), op.sizes(workload)
    ordinary_us = op.flops(sizes) / (rates.get("float32", math.inf) * 1e6)
    matrix_us = (
        op.matrix_flops(sizes) / (rates.get(matrix_unit(op, workload), math.inf) * 1e6) if op.matrix_flops else 0
    )
    # Tensor cores work beside the others, but without TF32 products of float32 are ordinary arithmetic.
    both_us = ordinary_us + matrix_us if matrix_unit(op, workload) == "float32" else max(ordinary_us, matrix_us)
    return Light(bytes_us, both_us)


def matrix_unit(op: Op, workload: Workload) -> str:
    """The rate, by its name in DeviceInfo, at which matrix products of this workload go."""
    return "tf32" if op.tf32 and workload.dtype == "float32" else workload.dtype


def all_flops(op: Op, workload: Workload) -> int:
    sizes = op.sizes(workload)
    return op.flops(sizes) + (op.matrix_flops(sizes) if op.matrix_flops else 0)


def without_tensor_cores_us(op: Op, workload: Workload, device: DeviceInfo) -> float:
    """What all of the arithmetic takes on the ordinary units."""
    return all_flops(op, workload) / (dict(device.tflops).get("float32", math.inf) * 1e6)

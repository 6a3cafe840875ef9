"""An op on a device: the names that a kernel's plan can use, the values for its binding, and the speed of light."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from archive.binding import Point, Signature, accepts
from archive.kernel import Kernel
from archive.records import DeviceInfo
from reference_ops.op import Op, Workload

HALF_PRODUCTS = 3  # number of exact products of float16 numbers that together have the precision of a float32 product
IN_HALVES = f"{HALF_PRODUCTS} products in float16 for each"


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
    """Return the values to which a kernel's plan is bound at this workload."""
    return Point(
        dtype=workload.dtype,
        dims=op.sizes(workload),
        parameters=dict(workload.parameters),
        tensors={tensor.name: tensor.dtype or workload.dtype for tensor in (*op.inputs, *op.outputs)},
        sms=info.sms,
        shared_bytes=info.shared_bytes,
    )


def accepts_any(kernel: Kernel, op: Op, kind: str) -> bool:
    """Return whether a kernel accepts any workload at which this kind of device evaluates the op."""
    anywhere = DeviceInfo(kind, name="", arch="", sms=1, shared_bytes=0)  # these do not matter for `when`
    return any(accepts(kernel, point(op, workload, anywhere)) for workload in op.workloads(kind))


@dataclass(frozen=True)
class SpeedOfLight:
    """Lower bounds on a kernel's time; 0 if the device's rates are unknown."""

    bytes_us: float  # time to move the least possible number of bytes, at the copy rate
    ordinary_us: float  # time for the arithmetic other than matrix products
    matrix_us: float  # time for the matrix products, on the fastest units that are precise enough
    unit: str = ""  # the rate that was used for the matrix products, in words

    @property
    def arithmetic_us(self) -> float:
        """The time of all arithmetic.

        Tensor cores run in parallel with the other units, but products on the other units do not.
        """
        if self.unit == "float32":
            return self.ordinary_us + self.matrix_us
        return max(self.ordinary_us, self.matrix_us)

    @property
    def us(self) -> float:
        return max(self.bytes_us, self.arithmetic_us)


def speed_of_light(op: Op, workload: Workload, device: DeviceInfo) -> SpeedOfLight:
    """Return the lower bounds for an op at a workload on a device."""
    bytes_us = op.least_bytes(workload) / (device.copy_gb_s * 1e3) if device.copy_gb_s else 0.0
    rates, sizes = dict(device.tflops), op.sizes(workload)
    ordinary_us = op.flops(sizes) / (rates.get("float32", math.inf) * 1e6)
    if op.matrix_flops is None:
        return SpeedOfLight(bytes_us, ordinary_us, 0.0)
    rate, unit = _matrix_rate(op, workload, rates)
    return SpeedOfLight(bytes_us, ordinary_us, op.matrix_flops(sizes) / (rate * 1e6), unit)


def _matrix_rate(op: Op, workload: Workload, rates: Mapping[str, float]) -> tuple[float, str]:
    """Return the rate of this workload's matrix products in TFLOP/s, infinity if it is unknown, and its name.

    A float16 product is as precise as a TF32 product. Where PyTorch does not use TF32, float32 products run on the
    ordinary units, or as several float16 products on tensor cores.
    """
    if workload.dtype != "float32":
        return rates.get(workload.dtype, math.inf), workload.dtype
    halves = rates.get("float16", 0.0)
    if op.tf32:
        found = [(rates.get("tf32", math.inf), "tf32"), (halves, "float16")]
    else:
        found = [(rates.get("float32", math.inf), "float32"), (halves / HALF_PRODUCTS, IN_HALVES)]
    return max(found, key=lambda candidate: candidate[0])


def all_flops(op: Op, workload: Workload) -> int:
    """Return the number of operations in ordinary arithmetic and matrix products together."""
    sizes = op.sizes(workload)
    return op.flops(sizes) + (op.matrix_flops(sizes) if op.matrix_flops else 0)


def without_tensor_cores_us(op: Op, workload: Workload, device: DeviceInfo) -> float:
    """Return the time of all arithmetic if tensor cores are not used."""
    return all_flops(op, workload) / (dict(device.tflops).get("float32", math.inf) * 1e6)

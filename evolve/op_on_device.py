"""Where an op meets a plan: what a kernel may name, and each workload as the point its plan is evaluated at."""

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

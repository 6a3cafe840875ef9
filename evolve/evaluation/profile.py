"""Profile of a kernel at one workload: the counters of the device's profiler. They do not affect verdicts."""

import secrets
import time
from collections.abc import Callable

from archive.binding import IllegalError
from archive.kernel import Kernel
from archive.kernel import check as check_plan
from archive.plan import PlanError
from archive.records import Profile
from evolve.devices.choose import policy_of
from evolve.devices.device import Device, RejectedError
from evolve.evaluation.compiling import bound_at
from evolve.evaluation.requests import ProfileResult
from evolve.op_on_device import signature
from reference_ops.inputs import inputs_at
from reference_ops.op import Op

PROFILER_SECONDS = 90.0
PROFILED_BYTES = 2**30  # limit on the inputs, which are passed through files


def profiled(kernel: Kernel, op: Op, workload_key: str, device: Device, watch: Callable[[str], None]) -> ProfileResult:
    """Profile one run on inputs like those of an evaluation. The result reports a fault of the kernel."""
    if (profiler := device.tools.profiler) is None:
        return ProfileResult(None, policy_of(device.info.kind).no_profiler, lasting=True)
    workload = next((one for one in op.workloads(device.info.kind) if one.key == workload_key), None)
    if workload is None:
        return ProfileResult(None, f"{op.name} has no workload `{workload_key}` on this device")
    if (read := op.bytes_of(op.inputs, workload)) > PROFILED_BYTES:
        words = f"{read / 1e9:.1f} GB of inputs are too much to profile; ask for a workload of at most 1 GB"
        return ProfileResult(None, f"{workload.key}: {words}")
    watch("profile")
    try:
        check_plan(kernel, signature(op))
        bound = bound_at(kernel, op, workload, device.info)
        inputs = inputs_at(op, workload, secrets.randbelow(2**31), device.torch_device)
        outputs = {spec.name: op.bytes_of((spec,), workload) for spec in op.outputs}
        counted = profiler(bound, inputs, outputs, PROFILER_SECONDS)
    except (PlanError, IllegalError, RejectedError) as error:
        return ProfileResult(None, f"{workload.key}: {error}")
    if counted.fault:
        return ProfileResult(None, counted.fault, counted.lasting)
    key = device.info.key
    return ProfileResult(Profile(kernel.id, op.name, key, workload.key, counted.counters, round(time.time(), 3)))

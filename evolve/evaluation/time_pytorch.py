"""Timing of PyTorch itself at a workload, without a kernel. These times show where a search can gain most."""

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable

import torch

from archive.binding import IllegalError
from archive.binding import check as check_plan
from archive.kernel import Kernel
from archive.plan import PlanError
from archive.records import Profile, Standard
from evolve.devices.choose import EAGER, policy_of
from evolve.devices.device import Device, RejectedError
from evolve.devices.device_errors import gpu_fault, out_of_memory
from evolve.errors import UserError
from evolve.evaluation import baselines
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.baselines import SAMPLES, SETS
from evolve.evaluation.compiling import bound_at
from evolve.evaluation.evaluator import Evaluator
from evolve.evaluation.requests import ProfileResult, TimingRequest, TimingResult
from evolve.evaluation.timing import floor_us
from evolve.op_on_device import signature
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload

FAULT_CHARACTERS = 200


def time_pytorch(op: Op, request: TimingRequest, evaluator: Evaluator) -> TimingResult:
    """Time PyTorch, and keep the times for evaluations. The result reports a failure of PyTorch."""
    info = evaluator.device.info
    workload = next((one for one in op.workloads(info.kind) if one.key == request.workload), None)
    if workload is None:
        return TimingResult(None, f"{op.name} has no workload `{request.workload}` on this device")
    try:
        times = (
            _eager_alone(op, workload, evaluator) if request.eager_alone else _timed(op, workload, evaluator, request)
        )
    except UserError as error:  # wrong results would pass at this workload
        return TimingResult(None, str(error), tainted=bool(gpu_fault()), hint=error.hint)
    except Exception as error:  # noqa: BLE001 - whatever PyTorch may raise: the caller still wants the other workloads
        if out_of_memory(error):
            return TimingResult(None, "does not fit into memory")
        # PyTorch may leave a GPU in any state when it fails: the next workload needs a fresh process.
        return TimingResult(None, f"PyTorch fails: {type(error).__name__}: {error}"[:FAULT_CHARACTERS], tainted=True)
    finally:
        if evaluator.uses_torch_compile:  # imported now, because the sandbox may not allow importing the compiler later
            _reset_compiler()
    return TimingResult(
        Standard(
            op.name,
            workload.key,
            info,
            times.eager_us,
            times.compile_us,
            times.autotune_us,
            floor_us(evaluator.device, op, workload),
            round(time.time(), 3),
        )
    )


def _reset_compiler() -> None:
    """Free the GPU's memory, and make torch.compile forget how often it has compiled each function.

    Ops made by one factory function share its code, and torch.compile compiles a function only a few hundred times.
    """
    with contextlib.suppress(RuntimeError):  # the GPU has failed; the result reports that
        torch._dynamo.reset()  # noqa: SLF001 - torch.compiler.reset is this function
        torch.cuda.empty_cache()


def _timed(op: Op, workload: Workload, evaluator: Evaluator, request: TimingRequest) -> Baselines:
    if not (request.again and evaluator.known(op, workload)):  # if times are known, the op has passed its check
        return evaluator.baselines_for(op, workload, request.given_up)
    evaluator.watch("baseline")
    return evaluator.time_baselines(op, workload, request.given_up)


def _eager_alone(op: Op, workload: Workload, evaluator: Evaluator) -> Baselines:
    """Time eager PyTorch only. The time is not kept: torch.compile may succeed next time, from its own cache."""
    device = evaluator.device
    call = baselines.prepared(EAGER, op, workload, device, evaluator.watch)
    assert call  # noqa: S101 - eager PyTorch always works
    evaluator.watch("baseline")
    sets = [inputs_at(op, workload, seed, device.torch_device) for seed in range(SETS)]
    times = [device.time(lambda: call(sets[sample % SETS])) for sample in range(SAMPLES + 1)]  # noqa: B023
    return Baselines(statistics.median(times[1:]))  # the first sample is a warm-up


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

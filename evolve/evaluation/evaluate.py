"""The verdict on one kernel: bind, compile, check, time. Stops at the first fault and says what it was."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from archive.binding import Bound, IllegalError, accepts, bind
from archive.kernel import Kernel
from archive.kernel import check as check_plan
from archive.plan import PlanError
from archive.records import DeviceInfo, Evaluation, Measurement, Outcome, Resources
from evolve.devices.device import Device, Program, RejectedError
from evolve.evaluation.check import Task, check
from evolve.evaluation.timing import Baselines, eager_only, measure, with_torch_compile
from evolve.points import point, signature
from reference_ops.op import Op, Workload

Watch = Callable[[str], None]


@dataclass
class Bench:
    """A device with the baselines made ready on it so far, kept for as long as its process lives."""

    device: Device
    watch: Watch
    baselines: dict[tuple[str, str], Baselines] = field(default_factory=dict)

    def baselines_for(self, op: Op, workload: Workload) -> Baselines:
        key = (op.name, workload.key)
        if key not in self.baselines:
            self.watch("baseline")
            on_gpu = self.device.info.kind == "cuda"
            self.baselines[key] = with_torch_compile(op, workload, self.device) if on_gpu else eager_only(op, workload)
        return self.baselines[key]


def evaluate(kernel: Kernel, op: Op, bench: Bench) -> Evaluation:
    """Evaluate one kernel; whatever the kernel does short of killing the process ends in the Evaluation."""
    started = time.monotonic()
    verdict = Evaluation(kernel.id, op.name, bench.device.info, Outcome.PASSED, "", created=time.time())
    try:
        verdict = _passed(kernel, op, bench, verdict)
    except PlanError as error:
        verdict = replace(verdict, outcome=Outcome.MALFORMED, log=str(error))
    except RejectedError as error:
        verdict = replace(verdict, outcome=error.outcome, log=error.log)
    return replace(verdict, seconds=round(time.monotonic() - started, 3))


def _passed(kernel: Kernel, op: Op, bench: Bench, verdict: Evaluation) -> Evaluation:
    check_plan(kernel, signature(op))
    declared, skipped = _programs(kernel, op, op.workloads(bench.device.info.kind), bench)
    if not declared:
        raise RejectedError(Outcome.ILLEGAL, "no workload is left: " + "; ".join(skipped))
    awkward, _ = _programs(kernel, op, op.awkward, bench)
    seed = secrets.randbelow(2**31)  # drawn only now, when nothing of the kernel can change any more
    bench.watch("check")
    agreed = [check(bench.device, program, Task(op, w, seed)) for w, program in (*awkward, *declared)]
    measurements = tuple(_measured(bench, program, Task(op, w, seed + 1)) for w, program in declared)
    programs = [program for _, program in declared]
    return replace(
        verdict,
        log="\n".join(dict.fromkeys(program.log for program in programs if program.log)),
        measurements=measurements,
        skipped=tuple(skipped),
        deterministic=all(agreed),
        resources=_worst(programs),
        seed=seed,
    )


def _programs(
    kernel: Kernel, op: Op, workloads: tuple[Workload, ...], bench: Bench
) -> tuple[list[tuple[Workload, Program]], list[str]]:
    """The kernel compiled for every workload it accepts, and why it was not for the others."""
    bench.watch("compile")
    programs, skipped = [], []
    for workload in workloads:
        try:
            bound = _bound(kernel, op, workload, bench.device.info)
            programs.append((workload, bench.device.compile(bound)))
        except IllegalError as error:
            skipped.append(f"{workload.key}: {error}")
        except RejectedError as error:
            if error.outcome is not Outcome.ILLEGAL:
                raise RejectedError(error.outcome, f"{workload.key}: {error.log}") from error
            skipped.append(f"{workload.key}: {error.log}")
    return programs, skipped


def _bound(kernel: Kernel, op: Op, workload: Workload, info: DeviceInfo) -> Bound:
    place = point(op, workload, info)
    if not accepts(kernel, place):
        raise IllegalError("not accepted by the kernel's `when` or `dtypes`")
    return bind(kernel, place)


def _measured(bench: Bench, program: Program, task: Task) -> Measurement:
    baselines = bench.baselines_for(task.op, task.workload)
    bench.watch("time")
    return measure(bench.device, program, task, baselines)


def _worst(programs: list[Program]) -> tuple[Resources, ...]:
    """The most that any workload's compilation took, by entry."""
    worst: dict[str, Resources] = {}
    for program in programs:
        for own in program.resources:
            held = worst.get(own.entry, own)
            worst[own.entry] = Resources(
                own.entry,
                max(own.registers, held.registers),
                max(own.shared_bytes, held.shared_bytes),
                max(own.local_bytes, held.local_bytes),
            )
    return tuple(worst.values())

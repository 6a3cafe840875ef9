"""What a champion has to stand besides a second evaluation: duels with the best baseline, and the sanitizer."""

import contextlib
import secrets
import statistics
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from archive.records import Duel, Measurement, Outcome, Sanitized
from evolve.devices.device import Device, Program, RejectedError
from evolve.evaluation import baselines
from evolve.evaluation.baselines import Baselines, Call
from evolve.evaluation.check import Inspector
from evolve.evaluation.timing import Evidence, look_round, median_interval, slots_for, timed_task
from reference_ops.op import Op, Workload

ROUNDS = 31
RIVAL = 1  # of the three contestants
CONTENDER = 1.05  # times the best baseline: what is slower has no duel to win
SANITIZER_SECONDS = 60.0
SANITIZED_BYTES = 2**29  # of inputs: they go through files, and the tools slow a kernel down a hundredfold


def duel(inspector: Inspector, program: Program, op: Op, workload: Workload, standard: Baselines) -> Duel:
    """The kernel, the best baseline, and the kernel once more, in random order, each on inputs of its own."""
    device, rng = inspector.device, inspector.rng
    name, rival = _best_rival(op, workload, device, standard)
    inspector.watch("time")
    places = slots_for(inspector, program, op, workload)
    calls: list[Callable[[int], object]] = [
        lambda at: program.launch(places[at].tensors),
        lambda at: rival(places[at].inputs),
        lambda at: program.launch(places[at].tensors),
    ]
    rounds = []
    seen = Evidence(rng)
    for index in range(ROUNDS + 1):
        times = {}
        for contestant in rng.sample(range(3), 3):
            at, fresh = (index + contestant) % len(places), timed_task(op, workload, rng)
            places[at].refill(fresh, device)
            times[contestant] = device.time(lambda: calls[contestant](at))  # noqa: B023
            if contestant != RIVAL:
                seen.offer(times[contestant], fresh, places[at])
        if index:  # the first round warms up
            rounds.append(times)
    inspector.watch("check")
    look_round(inspector, places, workload)
    seen.judge(inspector)
    speedups = [times[RIVAL] / times[0] for times in rounds]
    same = median_interval([times[2] / times[0] for times in rounds])
    low, high = median_interval(speedups)
    noise = max(abs(bound - 1) for bound in same)
    return Duel(workload.key, name, statistics.median(speedups), low, high, noise)


def sanitized(
    device: Device, programs: Iterable[tuple[Workload, Program]], op: Op, watch: Callable[[str], None]
) -> tuple[Sanitized, ...]:
    """What compute-sanitizer says at a few small shapes, side by side. Raises RejectedError when it finds a fault."""
    if (sanitizer := device.sanitizer) is None:
        return ()
    watch("sanitize")
    bearable = [pair for pair in programs if op.bytes_of(op.inputs, pair[0]) <= SANITIZED_BYTES]
    if not bearable:
        words = f"the kernel accepts no workload with less than {SANITIZED_BYTES // 2**20} MiB of inputs"
        return (Sanitized("compute-sanitizer", None, words),)
    chosen = _spread(sorted(bearable, key=lambda pair: op.least_bytes(pair[0])))
    drawn = [op.inputs_at(w, secrets.randbelow(2**31), device.torch_device) for w, _ in chosen]

    def examine(at: int) -> tuple[Sanitized, ...]:
        workload, program = chosen[at]
        outputs = {spec.name: op.bytes_of((spec,), workload) for spec in op.outputs}
        return sanitizer(program.bound, drawn[at], outputs, SANITIZER_SECONDS)

    found: list[Sanitized] = []
    with ThreadPoolExecutor() as pool:
        for (workload, _), reports in zip(chosen, pool.map(examine, range(len(chosen))), strict=True):
            for said in reports:
                if said.errors:
                    message = f"{workload.key}: compute-sanitizer's {said.tool} found {said.errors} errors"
                    raise RejectedError(Outcome.UNSAFE, f"{message}\n{said.report}")
                found.append(replace(said, report=f"{workload.key} {said.report}".strip()))
    return tuple(found)


def _best_rival(op: Op, workload: Workload, device: Device, standard: Baselines) -> tuple[str, Call]:
    """What torch.compile managed once it may fail to do again, short of memory say: then the next best stands in."""
    for name in standard.fastest_first:
        with contextlib.suppress(TimeoutError):
            if rival := baselines.prepared(name, op, workload, device):
                return name, rival
    raise RuntimeError(f"no baseline of {op.name} can be run at {workload.key}, not even eager PyTorch")


def contends(measurement: Measurement) -> bool:
    """Whether a duel could be won at all."""
    return measurement.median_us < CONTENDER * measurement.baseline_us


def _spread(smallest: list[tuple[Workload, Program]]) -> list[tuple[Workload, Program]]:
    """The smallest, the largest of the smaller half, and one between: their loops and tails differ.

    Not the large ones: that would take long.
    """
    half = smallest[: max(1, len(smallest) // 2)]
    return [half[index] for index in sorted({0, len(half) // 2, len(half) - 1})]

"""The verdict on one kernel: compile, check, time, and for a champion confirm. Stops at the first fault."""

import itertools
import random
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from archive.kernel import Kernel
from archive.records import Check, Confirmed, Evaluation, Measurement, Resources, Traits
from evolve.devices.device import Device, Program
from evolve.errors import UserError
from evolve.evaluation import baselines
from evolve.evaluation.baselines import Baselines, Shelf
from evolve.evaluation.buffers import Arena
from evolve.evaluation.check import Inspector
from evolve.evaluation.compiling import Compiled, compiled, traits, verdict_on
from evolve.evaluation.confirm import contends, duel, sanitized
from evolve.evaluation.op_check import blind_spots
from evolve.evaluation.timing import measure
from evolve.evaluation.truth import defined
from reference_ops import catalog
from reference_ops.op import Op, Workload


@dataclass
class Evaluator:
    """A device with what was made ready on it so far, kept for as long as its process lives."""

    device: Device
    watch: Callable[[str], None]
    shelf: Shelf = field(default_factory=baselines.shelf)
    timed: dict[tuple[str, str], Baselines] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arena = Arena(self.device.torch_device)

    def baselines_for(self, op: Op, workload: Workload) -> Baselines:
        """Timed here, or found on disk; only for workloads on which a wrong result shows."""
        key = (op.name, workload.key)
        if key not in self.timed:
            self.watch("baseline")
            found = self.shelf.find(op, workload, self.device.info) if self._lasting else None
            if found is None:
                self.arena.release()
                _refuse_blind(op, workload, self.device.torch_device)
                return self.time_baselines(op, workload)
            self.timed[key] = found
        return self.timed[key]

    def time_baselines(self, op: Op, workload: Workload) -> Baselines:
        """What took torch.compile too long for one workload of an op is not tried again for the others."""
        here = op.name, workload.key
        given_up = {known.given_up for at, known in self.timed.items() if at[0] == op.name and at != here}
        names = itertools.takewhile(lambda name: name not in given_up, baselines.EVERY)
        found = self.timed[here] = baselines.timed(op, workload, self.device, names)
        if self._lasting:
            self.shelf.keep(op, workload, self.device.info, found)
        return found

    @property
    def _lasting(self) -> bool:
        return self.device.info.kind == "cuda"  # torch.compile takes seconds, an emulated baseline none


def evaluate(
    kernel: Kernel, op: Op, bench: Evaluator, *, shapes_seed: int, bars: Mapping[str, float], confirm: bool = False
) -> Evaluation:
    """Evaluate one kernel; whatever the kernel does short of killing the process ends in the Evaluation."""
    checks: list[Check] = []
    found: Traits | None = None

    def judge(verdict: Evaluation) -> Evaluation:
        nonlocal found
        bench.watch("compile")
        programs = compiled(kernel, op, bench.device.info, bench.device.compile, shapes_seed, confirm=confirm)
        drawn = [pair for pair in programs.held_out if defined(op, pair[0], bench.device.torch_device)]
        programs = replace(programs, held_out=tuple(drawn))
        seed = secrets.randbelow(2**31)  # drawn only now, when nothing of the kernel can change any more
        inspector = Inspector(bench.device, bench.arena, random.Random(seed), checks, bench.watch)
        verdict, known = replace(verdict, seed=seed), traits(kernel, programs)
        agreed: list[bool] = []
        for places in (programs.awkward, programs.held_out, programs.declared):  # small ones first: faults cost least
            # What is wrong where nobody listed anything may be right in a kernel of the same code everywhere else.
            found = None if places is programs.held_out else known
            agreed += [inspector.check(program, op, workload) for workload, program in places]
        passed = _timed(
            replace(verdict, deterministic=all(agreed)), programs, op, bench, inspector, bars, confirm=confirm
        )
        return replace(passed, conditions=bench.device.conditions)

    verdict = verdict_on(kernel, op, bench.device.info, judge)
    return replace(verdict, checks=tuple(checks), traits=found)


def _timed(
    verdict: Evaluation, programs: Compiled[Program], op: Op, bench: Evaluator, inspector: Inspector,
    bars: Mapping[str, float], *, confirm: bool,
) -> Evaluation:  # fmt: skip
    """A kernel that is right, and for a champion everything that it has to stand besides."""
    declared = programs.declared
    standards = [bench.baselines_for(op, workload) for workload, _ in declared]
    measurements = []
    for (workload, program), standard in zip(declared, standards, strict=True):
        bench.watch("time")
        bar_us = None if confirm else bars.get(workload.key)
        measurements.append(measure(inspector, program, op, workload, standard, bar_us))
    confirmed = _confirmed(programs, op, inspector, standards, measurements) if confirm else None
    return replace(
        verdict,
        log="\n".join(dict.fromkeys(program.log for _, program in declared if program.log)),
        measurements=tuple(measurements),
        skipped=programs.skipped,
        resources=_worst([program for _, program in declared]),
        confirmed=confirmed,
    )


def _confirmed(
    programs: Compiled[Program],
    op: Op,
    inspector: Inspector,
    standards: Sequence[Baselines],
    measurements: Sequence[Measurement],
) -> Confirmed:
    """Duels, and then everything once more: a kernel that is right only in a young process is found out."""
    duels = []
    for (workload, program), standard, measured in zip(programs.declared, standards, measurements, strict=True):
        if contends(measured):
            inspector.watch("baseline")
            duels.append(duel(inspector, program, op, workload, standard))
    everywhere = (*programs.awkward, *programs.held_out, *programs.declared)
    for workload, program in everywhere:
        inspector.check(program, op, workload, closely=True)
    said = sanitized(inspector.device, everywhere, op, inspector.watch)
    return Confirmed(tuple(workload.key for workload, _ in programs.held_out), tuple(duels), said)


def _refuse_blind(op: Op, workload: Workload, torch_device: str) -> None:
    spots = blind_spots(op, workload, secrets.randbelow(2**31), torch_device, quick=True)
    if spots:
        locator = shlex.quote(catalog.loaded_as(op))
        raise UserError(
            f"{op.name} cannot be judged at {workload.key}: {spots[0].words}",
            f"`evolve ops --check {locator}` says more; other sizes or inputs make the fault visible",
        )


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

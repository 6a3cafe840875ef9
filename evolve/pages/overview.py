"""The overview: a line per op and device, with the gain of its champions over PyTorch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from archive.kernel import Kernel
from archive.records import DeviceInfo, Outcome
from archive.runs import Run
from archive.store import Store, workloads_of
from archive.summaries import EvaluationSummary, RankedTimes, Timing
from evolve.devices.choose import policy_of
from evolve.report.basis import geometric_mean
from evolve.report.standing import devices
from evolve.report.words import idea
from evolve.selection import population
from reference_ops.listing import families

OTHER = "own ops"
RUNS_SHOWN = 8
IN_MEMORY = ":memory:"  # name of an archive that is not a file


@dataclass(frozen=True)
class ChampionTime:
    """The time of a champion on one workload."""

    workload: str
    kernel_id: str
    confirmed: bool
    timing: Timing


@dataclass(frozen=True)
class OpLine:
    """One op on one device: its champions and counts of outcomes."""

    op: str
    family: str
    device: DeviceInfo
    champions: tuple[ChampionTime, ...]
    outcomes: Mapping[str, int]
    workloads: int  # number of the op's workloads, with or without a champion

    @property
    def of_gpu(self) -> bool:
        return policy_of(self.device.kind).times_are_gpu_times

    @property
    def speedups(self) -> list[float]:
        return [champion.timing.speedup for champion in self.champions] if self.of_gpu else []

    @property
    def mean(self) -> float | None:
        """The geometric mean of the champions' speedups over the best of PyTorch."""
        return geometric_mean(self.speedups)

    @property
    def gain(self) -> float:
        """The geometric mean speedup over all workloads, which counts a workload without a faster kernel as 1."""
        return math.prod(max(1.0, speedup) for speedup in self.speedups) ** (1 / max(1, self.workloads))

    @property
    def light(self) -> float | None:
        """The geometric mean of the shares of the speed of light."""
        shares = [champion.timing.share_of_light for champion in self.champions] if self.of_gpu else []
        return geometric_mean(share for share in shares if share)

    @property
    def faster(self) -> int:
        """The number of workloads on which the champion's time is below PyTorch's best."""
        return sum(speedup > 1 for speedup in self.speedups)

    @property
    def unsure(self) -> bool:
        """Whether a champion is not confirmed yet."""
        return not all(champion.confirmed for champion in self.champions)

    @property
    def judged(self) -> int:
        return sum(self.outcomes.values())

    @property
    def passed(self) -> int:
        return self.outcomes.get(str(Outcome.PASSED), 0)

    @property
    def best(self) -> ChampionTime | None:
        """The champion with the largest speedup."""
        return max(self.champions, key=lambda one: one.timing.speedup, default=None)


@dataclass(frozen=True)
class Gain:
    """The op with the largest gain over all its workloads, and the idea of its best kernel."""

    line: OpLine
    champion: ChampionTime
    idea: str


@dataclass(frozen=True)
class Overview:
    """The content of the first page."""

    archive: str
    lines: tuple[OpLine, ...]  # sorted by family, then by op
    ideas: Mapping[str, str]  # idea of the best kernel of each line; key: kernel id
    runs: tuple[Run, ...]  # the newest runs, newest first
    gain: Gain | None

    @property
    def title(self) -> str:
        """Name of the user's archive or, without one, of the shipped archive."""
        return "Kernels that ship with evolve" if self.archive == IN_MEMORY else f"Kernels in {self.archive}"

    @property
    def on_gpus(self) -> list[OpLine]:
        return [line for line in self.lines if line.of_gpu]

    @property
    def elsewhere(self) -> list[OpLine]:
        return [line for line in self.lines if not line.of_gpu]


def op_line(store: Store, op: str, device: DeviceInfo) -> OpLine:
    """Read the champions and the outcomes of an op on a device."""
    counts = store.count(EvaluationSummary, "outcome", op, device=device.key, in_force=True)
    outcomes = {str(outcome): counts[str(outcome)] for outcome in Outcome if str(outcome) in counts}
    leaders = population.leaders(store.find(RankedTimes, op, device=device.key, contending=True))
    return OpLine(op, family(op), device, tuple(_champions(leaders)), outcomes, len(workloads_of(store, leaders)))


def overview(store: Store, archive: str, ops: Sequence[str] = ()) -> Overview:
    """Read the overview of these ops, or of all in the archive."""
    names = list(ops) or sorted(store.count(EvaluationSummary, "op"))
    lines = sorted(
        (op_line(store, op, info) for op in names for info in devices(store, op)),
        key=lambda line: (line.family == OTHER, line.family, line.op),
    )
    best = [line.best.kernel_id for line in lines if line.best]
    ideas = {kernel.id: idea(kernel) for kernel in store.find(Kernel, ids=best)}
    runs = [run for run in store.find(Run) if not ops or run.op in ops]
    return Overview(archive, tuple(lines), ideas, tuple(reversed(runs[-RUNS_SHOWN:])), _gain(lines, ideas))


def _champions(leaders: Mapping[str, RankedTimes]) -> Iterable[ChampionTime]:
    for workload, leader in leaders.items():
        timing = next(timing for timing in leader.measurements if timing.workload == workload)
        yield ChampionTime(workload, leader.kernel_id, bool(leader.confirmed), timing)


def _gain(lines: Sequence[OpLine], ideas: Mapping[str, str]) -> Gain | None:
    """Return the op with the largest gain. Ops whose champions are all confirmed come before the others."""
    gained = [line for line in lines if line.mean and line.best]
    if not gained:
        return None
    most = max(gained, key=lambda line: (not line.unsure, line.gain))
    champion = most.best
    return Gain(most, champion, ideas.get(champion.kernel_id, "")) if champion else None


def family(op: str) -> str:
    """Return the family of an op of the catalog."""
    return families().get(op, OTHER)

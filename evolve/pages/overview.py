"""The overview: a line per op and device, with what its champions gained over PyTorch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from archive.kernel import Kernel
from archive.proposals import Run
from archive.records import DeviceInfo, Outcome
from archive.store import Store
from archive.summaries import EvaluationSummary, RankedTimes, Timing
from evolve.devices.choose import policy_of
from evolve.report.basis import geometric_mean
from evolve.report.standing import devices
from evolve.report.words import idea
from evolve.selection import population
from reference_ops.listing import families

OTHER = "own ops"
RUNS_SHOWN = 8


@dataclass(frozen=True)
class ChampionTime:
    """The time of a champion on one workload."""

    workload: str
    kernel_id: str
    confirmed: bool
    timing: Timing


@dataclass(frozen=True)
class OpLine:
    """What is known of one op on one device."""

    op: str
    family: str
    device: DeviceInfo
    champions: tuple[ChampionTime, ...]
    outcomes: Mapping[str, int]

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
    """The op with the largest mean speedup, and the idea of its best kernel."""

    line: OpLine
    champion: ChampionTime
    idea: str


@dataclass(frozen=True)
class Overview:
    """Everything that the first page shows."""

    archive: str
    lines: tuple[OpLine, ...]  # by family, then by op
    ideas: Mapping[str, str]  # of the best kernel of each line, by kernel id
    runs: tuple[Run, ...]  # the newest, newest first
    gain: Gain | None

    @property
    def on_gpus(self) -> list[OpLine]:
        return [line for line in self.lines if line.of_gpu]

    @property
    def elsewhere(self) -> list[OpLine]:
        return [line for line in self.lines if not line.of_gpu]


Line = Callable[[Store, str, DeviceInfo], OpLine]


def op_line(store: Store, op: str, device: DeviceInfo) -> OpLine:
    """Read the champions and the outcomes of an op on a device."""
    return Followed().line(store, op, device)


def overview(store: Store, archive: str, ops: Sequence[str] = (), line: Line = op_line) -> Overview:
    """Read the overview of these ops, or of all in the archive."""
    names = list(ops) or sorted(store.count(EvaluationSummary, "op"))
    lines = sorted(
        (line(store, op, info) for op in names for info in devices(store, op)),
        key=lambda line: (line.family == OTHER, line.family, line.op),
    )
    best = [line.best.kernel_id for line in lines if line.best]
    ideas = {kernel.id: idea(kernel) for kernel in store.find(Kernel, ids=best)}
    runs = [run for run in store.find(Run) if not ops or run.op in ops]
    return Overview(archive, tuple(lines), ideas, tuple(reversed(runs[-RUNS_SHOWN:])), _gain(lines, ideas))


Verdict = RankedTimes | EvaluationSummary


@dataclass
class _Known:
    """The verdicts from which the champions of an op on a device can be told, as of the last one that was read."""

    newest: int
    contenders: Mapping[str, Verdict]  # the champions, and those that would be if only confirmed ones counted
    champions: tuple[ChampionTime, ...]


@dataclass
class Followed:
    """The champions of each op on each device, followed from verdict to verdict. Only new verdicts are read."""

    known: dict[tuple[str, str], _Known] = field(default_factory=dict)

    def line(self, store: Store, op: str, device: DeviceInfo) -> OpLine:
        """Return the line of an op on a device as it is now."""
        counts = store.count(EvaluationSummary, "outcome", op, device=device.key, in_force=True)
        outcomes = {str(outcome): counts[str(outcome)] for outcome in Outcome if str(outcome) in counts}
        return OpLine(op, family(op), device, self._now(store, op, device.key).champions, outcomes)

    def _now(self, store: Store, op: str, device: str) -> _Known:
        known = self.known.get((op, device))
        newest = max((one.number for one in store.find(EvaluationSummary, op, device=device, newest=1)), default=0)
        if known and known.newest == newest:
            return known
        fresh = store.find(EvaluationSummary, op, device=device, in_force=True, after=known.newest) if known else []
        if known is None or any(one.kernel_id in known.contenders for one in fresh):
            known = _told(newest, store.find(RankedTimes, op, device=device))
        else:
            known = _told(newest, [*known.contenders.values(), *(one for one in fresh if one.passed)])
        self.known[op, device] = known
        return known


def _told(newest: int, verdicts: Sequence[Verdict]) -> _Known:
    leaders = population.leaders(verdicts)
    confirmed = population.leaders(one for one in verdicts if one.confirmed)
    contenders = {one.kernel_id: one for one in (*leaders.values(), *confirmed.values())}
    return _Known(newest, contenders, tuple(_champions(leaders)))


def _champions(leaders: Mapping[str, Verdict]) -> Iterable[ChampionTime]:
    for workload, leader in leaders.items():
        timing = next(timing for timing in leader.measurements if timing.workload == workload)
        yield ChampionTime(workload, leader.kernel_id, bool(leader.confirmed), timing)


def _gain(lines: Sequence[OpLine], ideas: Mapping[str, str]) -> Gain | None:
    """Return the op that gained most; ops whose champions are all confirmed come before the others."""
    gained = [line for line in lines if line.mean and line.best]
    if not gained:
        return None
    most = max(gained, key=lambda line: (not line.unsure, line.mean or 0.0))
    champion = most.best
    return Gain(most, champion, ideas.get(champion.kernel_id, "")) if champion else None


def family(op: str) -> str:
    """Return the family of an op of the catalog."""
    return families().get(op, OTHER)

"""The contract of a proposer: it sees ops, kernels and their evaluations, and never a device."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from archive.kernel import Kernel
from archive.proposals import Cost, Proposal
from archive.records import DeviceInfo, Evaluation, Profile
from reference_ops.op import Op


@dataclass(frozen=True)
class Candidate:
    """A kernel and the verdict on it."""

    kernel: Kernel
    evaluation: Evaluation
    profiles: tuple[Profile, ...] = ()  # what a profiler counted, at most one per workload


@dataclass(frozen=True)
class Trial:
    """What became of an earlier proposal: for whoever decides which model and which operator to try next."""

    operator: str
    proposer: str
    cost: Cost
    passed: bool
    gain: float  # the mean over all workloads of log(best time before / own time), where it was faster; else 0


@dataclass(frozen=True)
class Left:
    """What a run may still spend on models; None where there is no limit."""

    tokens: int | None = None
    usd: float | None = None
    evals: int | None = None  # proposals that hold no kernel count as well
    deadline: float = float("inf")  # by time.monotonic: nobody is asked after it


@dataclass(frozen=True)
class Request:
    """What a proposer may know when it is asked for kernels."""

    op: Op
    device: DeviceInfo
    wanted: int  # at most this many kernels
    seed: int  # every choice of the proposer follows from it
    run: str = ""  # the run that its proposals belong to
    population: tuple[Candidate, ...] = ()  # alive, fittest first
    parents: tuple[Candidate, ...] = ()  # drawn from the population for this request
    failures: tuple[Candidate, ...] = ()  # kernels that failed and were not yet repaired, newest first
    known: frozenset[str] = frozenset()  # ids of every kernel the archive holds for this op
    tried: tuple[Candidate, ...] = ()  # every kernel of this op with a verdict on this device, oldest first
    donors: tuple[Candidate, ...] = ()  # champions of other ops on this device
    lessons: tuple[str, ...] = ()  # what earlier attempts have taught, a sentence each
    trials: tuple[Trial, ...] = ()  # earlier proposals of this op, oldest first
    left: Left = field(default=Left())


class Proposer(Protocol):
    @property
    def name(self) -> str:
        """Who signs the proposals: `offline`, `tell`, or a model's name."""

    def propose(self, request: Request) -> Iterator[Proposal]:
        """Proposals as they come, none when there is nothing left to try."""

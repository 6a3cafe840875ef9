"""The contract of a proposer: it sees ops, kernels and their evaluations, and never a device."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Proposal
from reference_ops.op import Op


@dataclass(frozen=True)
class Candidate:
    """A kernel and the verdict on it."""

    kernel: Kernel
    evaluation: Evaluation


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


class Proposer(Protocol):
    @property
    def name(self) -> str:
        """Who signs the proposals: `offline`, `tell`, or a model's name."""

    def propose(self, request: Request) -> Iterator[Proposal]:
        """Proposals as they come, none when there is nothing left to try."""

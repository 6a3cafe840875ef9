"""What a run is after: the op, what it makes use of, what it may spend, and when it is over."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from archive.proposals import Budget, Leg
from archive.records import DeviceInfo
from archive.store import Store
from evolve import budget
from evolve.budget import Ended, Spent
from evolve.request import Left, Request
from evolve.selection import selection
from evolve.selection.selection import EVERYTHING, Scope
from reference_ops.op import Op

GENERATION = 8  # proposals asked for at once


@dataclass(frozen=True)
class Search:
    """One op's part in a run."""

    run: str
    op: Op
    locator: str  # how another process finds the op: its name, or the path of its file
    seed: int
    budget: Budget = field(default=Budget())  # what may be spent from now on
    deadline: float = float("inf")  # by time.monotonic: when the seconds of the budget are over
    scope: Scope = EVERYTHING
    profiled: bool = False  # whether the proposer reads what a profiler counts

    @contextmanager
    def leg(self, store: Store) -> Iterator[None]:
        """A stretch of the run; the archive tells when it ended, unless it is killed."""
        started = time.time()
        store.append(Leg(self.run, started))
        try:
            yield
        finally:
            store.append(Leg(self.run, started, time.time()))

    def over(self, store: Store, device: DeviceInfo, spent: Spent) -> Ended | None:
        """Why nothing more is asked for, if so; `spent` is counted from when this budget was given."""
        if reached := budget.ended(self.budget, spent):
            return reached
        if time.monotonic() >= self.deadline:
            return Ended.SECONDS
        share, workloads = self.budget.until_light, [workload.key for workload in self.op.workloads(device.kind)]
        leading = selection.champions(store, self.op.name, device, self.scope) if share else ()
        return Ended.LIGHT if share and budget.at_light(leading, workloads, share) else None

    def request(self, spent: Spent, device: DeviceInfo, store: Store) -> Request:
        """All that a proposer may know of where things stand, and what it may still spend."""
        left = budget.left(self.budget, spent)
        wanted = GENERATION if left.evals is None else min(GENERATION, left.evals)
        still = Left(left.tokens, left.usd, left.evals, self.deadline)
        return selection.request(self.op, device, store, wanted, seed=self.seed, scope=self.scope, left=still)

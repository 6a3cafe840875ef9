"""A search: the op that a run evolves, the kernels and the budget that the run may use, and the end of the run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from archive.records import Leg
from archive.runs import EVERYTHING, Budget, Scope
from archive.store import Store
from evolve import budget
from evolve.budget import Ended, Spent
from evolve.engines.engine import Engine, HasCards
from evolve.request import Left, Request
from evolve.selection import selection
from evolve.selection.sharing import Share
from evolve.selection.view import OpView
from reference_ops.op import Op

GENERATION = 8  # number of proposals requested at once for one card
# number of proposals requested at once for each of many cards, so that few cards are idle until the last verdict
PER_CARD = 2


@dataclass(frozen=True)
class Search:
    """The search for kernels of one op in a run."""

    run: str
    op: Op
    locator: str  # name by which another process finds the op: its name, or the path of its file
    seed: int
    budget: Budget = field(default=Budget())  # the budget that is left when the search starts
    deadline: float = float("inf")  # time of time.monotonic at which the budget's seconds are used up
    scope: Scope = EVERYTHING
    profiled: bool = False  # whether the proposer uses a profiler's counters
    share: Share = field(default_factory=Share)  # the run's share of the work, if other runs use the archive as well
    generation: int = GENERATION
    device: str = ""  # key of the device for which kernels are evolved, if the engine has several

    @contextmanager
    def leg(self, store: Store) -> Iterator[None]:
        """Record the start and the end of one leg of the run. The end is missing if the process is killed."""
        started = time.time()
        store.append(Leg(self.run, started))
        try:
            yield
        finally:
            store.append(Leg(self.run, started, time.time()))

    def over(self, view: OpView, spent: Spent) -> Ended | None:
        """Return the reason why the search is over, or None if it continues.

        `spent` is the spent part of its budget.
        """
        if reached := budget.ended(self.budget, spent):
            return reached
        if time.monotonic() >= self.deadline:
            return Ended.SECONDS
        share, workloads = self.budget.until_light, [workload.key for workload in self.op.workloads(view.device.kind)]
        return Ended.LIGHT if share and budget.at_light(view.champions(), workloads, share) else None

    def request(self, view: OpView, spent: Spent) -> Request:
        """Return the next request for a proposer, with the rest of its budget as limits."""
        left = budget.left(self.budget, spent)
        wanted = self.generation if left.evals is None else min(self.generation, left.evals)
        # keep a part of the budget for kernels after the first verdicts
        if left.evals is not None and not view.alive():
            wanted = min(wanted, max(1, left.evals // 2))
        limits = Left(left.tokens, left.usd, left.evals, self.deadline)
        return selection.request(view, self.op, wanted, seed=self.seed, left=limits)

    def profile(self, request: Request, engine: Engine, store: Store) -> int:
        """Profile parents at the workload with the most to gain, if the proposer uses profiles.

        Return the number of new ones.
        """
        at = selection.unprofiled(request) if self.profiled else []
        profiles = (engine.profile(kernel, self.locator, workload) for kernel, workload in at)
        return store.append(*(profile for profile in profiles if profile))


def generation(engine: Engine) -> int:
    """Return the number of proposals to request at once, so that this engine is busy."""
    return max(GENERATION, PER_CARD * engine.cards) if isinstance(engine, HasCards) else GENERATION

"""Which of several ops gets the next slice of the budget they share: by the headroom left on each. All pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from archive.proposals import Budget
from archive.records import Evaluation
from evolve.budget import Spent
from evolve.selection.population import Champion

GENEROUS = 4.0  # times the speed of light, or PyTorch's share of it, where nothing has been measured
AT_LIGHT = math.log(1 / 0.97)  # nobody measures the speed of light to better than a few percent
LEAST = 0.1  # headroom of an op whose speed of light is unknown, however fast its kernels are
PATIENCE = 3  # slices without improvement, after which each further one halves an op's share,
LEAST_SHARE = 1 / 8  # down to this
IMPROVED = 0.01


@dataclass(frozen=True)
class Account:
    """What one op had of the shared budget, and what it still promises."""

    run: str
    headroom: float
    spent: float = 0.0  # in whatever `cost` measures the budget in
    idle: int = 0  # slices since the last that brought an improvement

    def after(self, cost: float, headroom: float) -> "Account":
        """The same account after one more slice."""
        better = self.headroom - headroom > IMPROVED
        return replace(self, headroom=headroom, spent=self.spent + cost, idle=0 if better else self.idle + 1)

    @property
    def weight(self) -> float:
        """The share it deserves, beside those of the others."""
        tired = max(LEAST_SHARE, 0.5 ** max(0, self.idle - PATIENCE + 1))
        return self.headroom * tired if self.headroom > AT_LIGHT else 0.0


def next_run(accounts: Iterable[Account]) -> str | None:
    """Who is furthest behind its share; nobody where all are at the speed of light."""
    worthy = [account for account in accounts if account.weight > 0]
    first = min(worthy, key=lambda account: (account.spent / account.weight, -account.headroom), default=None)
    return first.run if first else None


def headroom(workloads: Sequence[str], champions: Iterable[Champion], evaluations: Sequence[Evaluation]) -> float:
    """The mean over the workloads of log(best time / speed of light), where PyTorch's time counts if there is no other.

    `evaluations` are all that were ever made of the op on the device: also one that no longer holds knows PyTorch.
    """
    leading = {champion.workload: champion.measurement for champion in champions}
    seen = {m.workload: m for evaluation in evaluations for m in evaluation.measurements}
    rooms = []
    for workload in workloads:
        known = leading.get(workload) or seen.get(workload)
        if known is None:
            rooms.append(math.log(GENEROUS))
            continue
        time_us = known.median_us if workload in leading else known.baseline_us
        if known.floor_us:
            rooms.append(max(0.0, math.log(time_us / known.floor_us)))
        else:
            rooms.append(max(LEAST, math.log(time_us / (known.baseline_us / GENEROUS))))
    return sum(rooms) / len(rooms) if rooms else 0.0


def cost(budget: Budget, spent: Spent) -> float:
    """What is shared out: the dearest thing that the budget limits."""
    limits: Mapping[str, float | None] = {
        "usd": budget.usd, "tokens": budget.tokens, "evals": budget.evals, "seconds": budget.seconds
    }  # fmt: skip
    unit = next((name for name, limit in limits.items() if limit is not None), "evals")
    return float(getattr(spent, unit))

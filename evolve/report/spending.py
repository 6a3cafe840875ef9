"""What was spent and which limit ended it, in words."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from archive.proposals import Budget
from evolve import budget
from evolve.budget import Ended, Spent
from evolve.report.progress import Progress
from evolve.report.tables import WIDE, fitted
from evolve.report.words import clock, counted

LEAST_BAR = 10  # columns


def dollars(usd: float) -> str:
    return f"${usd:.2f}" if usd >= 1 or not usd else f"${usd:.4f}"


def amounts(spent: Spent) -> str:
    """`0:42, 30 evaluations, 1,234 tokens, $0.0123`, as far as there is anything of it."""
    parts = [clock(spent.seconds), counted(spent.evals, "evaluation")]
    parts += [f"{spent.tokens:,} tokens"] if spent.tokens else []
    parts += [dollars(spent.usd)] if spent.usd else []
    return ", ".join(parts)


def nearest(limits: Budget, spent: Spent) -> tuple[str, float | None]:
    """How far the limit is that is nearest to its end, and the share of it that is gone."""
    found = budget.nearest(limits, spent)
    if found is None:
        return clock(spent.seconds), None
    name, share = found
    said = {
        Ended.SECONDS: f"{clock(spent.seconds)} of {clock(limits.seconds or 0)}",
        Ended.EVALS: f"{spent.evals} of {counted(limits.evals or 0, 'evaluation')}",
        Ended.TOKENS: f"{spent.tokens:,} of {limits.tokens or 0:,} tokens",
        Ended.USD: f"{dollars(spent.usd)} of {dollars(limits.usd or 0)}",
    }
    return said[name], share


@dataclass(frozen=True)
class Meter:
    """Shows how much of a budget is gone."""

    started: float  # by time.monotonic, like the deadline
    deadline: float = float("inf")
    budget: Budget = field(default=Budget())  # in all
    before: Spent = field(default=Spent())  # of it, in earlier legs

    def line(self, progress: Sequence[Progress], width: int) -> RenderableType:
        """A bar for the limit that is nearest to its end, and what everything has cost; of one op or of several."""
        now = time.monotonic()
        gone = sum((part.spent for part in progress), self.before + Spent(seconds=now - self.started))
        said, share = nearest(self.budget, gone)
        if any(trying.confirming for part in progress for trying in part.trying):
            said = "confirming the champions"
        elif now >= self.deadline:
            said = "time is up: finishing what is in hand"
        elif share is not None and share >= 1:
            said = f"{said}: finishing what is in hand"
        timed = said.startswith(clock(gone.seconds))
        evaluated, rate = sum(part.evaluated for part in progress), sum(part.per_second for part in progress)
        beside = [] if timed else [clock(gone.seconds)]
        beside += [f"{evaluated} evaluated"] + ([f"{rate:.1f}/s"] if width >= WIDE else [])
        beside += [f"{gone.tokens:,} tokens"] if gone.tokens and "tokens" not in said else []
        beside += [dollars(gone.usd)] if gone.usd and "$" not in said else []
        return _bar(share, said, ", ".join(beside), width)


def _bar(share: float | None, said: str, beside: str, width: int) -> RenderableType:
    row = Table.grid(padding=(0, 2, 0, 0), expand=False)
    drawn = ProgressBar(
        total=1.0,
        completed=min(share or 0.0, 1.0),
        width=max(LEAST_BAR, width - len(said) - len(beside) - 4),
        complete_style="cyan",
        finished_style="green",
    )
    row.add_row(drawn, fitted(said), fitted(beside))
    return row


def ending(reason: Ended, limits: Budget, gone: Spent) -> tuple[str, Budget | None]:
    """Why a run is over, and a budget that would give it more, where more would help."""
    light, evals = limits.until_light, limits.evals or 0
    judged = "The one evaluation is used." if evals == 1 else f"All {evals} evaluations are used."
    known: dict[Ended, tuple[str, Budget | None]] = {
        Ended.EVALS: (judged, Budget(evals=limits.evals)),
        Ended.TOKENS: (f"All {limits.tokens or 0:,} tokens are spent.", Budget(tokens=limits.tokens)),
        Ended.USD: (f"All of {dollars(limits.usd or 0)} is spent.", Budget(usd=limits.usd)),
        Ended.SECONDS: ("The time is up.", Budget(seconds=limits.seconds)),
        Ended.NOTHING: ("Nothing is left to try: every setting of the kernels alive has been evaluated.", None),
        Ended.LIGHT: ("Every op is at the speed of light, as near as it can be measured.", None),
    }
    if reason is Ended.LIGHT and light:
        said = f"Every workload has a champion at {light:.3g} of the speed of light or nearer, as asked."
        return said, Budget(until_light=round((1 + light) / 2, 3))
    said, used = known[reason]
    return said, twice(used, gone) if used else None


def twice(limits: Budget, gone: Spent) -> Budget:
    """Or more: confirming champions may have taken longer than all before it, and something must be left in the end."""
    more = {}
    for name, limit in asdict(limits).items():
        if limit:
            times = 2
            while times * limit < getattr(gone, name) + limit / 2:
                times *= 2
            more[name] = times * limit
    return replace(limits, **more)


def without_answer(limits: Budget, gone: Spent) -> tuple[str, Budget | None]:
    """Why a run with a model is over though no limit is reached: nothing came when it was asked."""
    if limits.tokens is None and limits.usd is None:
        return "The proposer has nothing more to offer.", None
    more = twice(Budget(tokens=limits.tokens, usd=limits.usd), gone)
    return "What is left of the budget does not pay for another question.", more

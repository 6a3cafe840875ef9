"""What a run, or a campaign over several ops, is made of once device and proposer are there."""

import secrets
import shlex
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from archive import library
from archive.proposals import Budget, Proposal, Run
from archive.store import SqliteStore
from evolve import budget, wiring
from evolve.budget import Ended, Spent
from evolve.cli import limits
from evolve.cli.planning import Plan
from evolve.engines.engine import Engine
from evolve.errors import UserError
from evolve.report.progress import Phases
from evolve.request import Proposer
from evolve.search import Quest
from evolve.selection.selection import EVOLVE, STRATEGIES, Scope
from reference_ops.op import Op

SHIPPED = "shipped"
E = TypeVar("E")


@dataclass(frozen=True)
class Bench:
    """What does the work."""

    proposer: Proposer
    engine: Engine
    store: SqliteStore
    phases: Phases


@dataclass(frozen=True)
class Session:
    """One or several runs under one budget, about to begin or to go on."""

    bench: Bench
    id: str  # of the run, or of the campaign
    quests: tuple[Quest, ...]
    budget: Budget  # in all
    before: Spent  # of it, in earlier legs
    seeded: bool
    typed: tuple[str, ...]  # the command that goes on
    raised: Budget = field(default=Budget())  # what was typed in addition, when it went on

    def again(self, more: Budget | None = None) -> str:
        """What is typed to go on, with a larger budget or with the same."""
        budgeted = limits.raised(self.raised, more or Budget())
        return shlex.join([*self.typed, "--resume", self.id, *limits.options(budgeted)])

    def seeds(self) -> list[Proposal]:
        """The shipped kernels that the device can run, as the same proposals in every run."""
        ops = [quest.op.name for quest in self.quests] if self.seeded else []
        device = self.bench.engine.info.kind
        return [
            Proposal(op, "seed", SHIPPED, kernel, created=time.time())
            for op in ops
            for kernel in library.shipped(op)
            if wiring.runs(device, kernel)
        ]

    def spent(self) -> Spent:
        """By all legs so far."""
        return sum((spent_by(quest, self.bench) for quest in self.quests), Spent())


class Told(Generic[E]):
    """Events as they come; afterwards, why there are no more. Closed, so that a leg ends when the run does."""

    def __init__(self, events: Generator[E, None, Ended]) -> None:
        self._events = events
        self.ended: Ended | None = None

    def __iter__(self) -> Iterator[E]:
        self.ended = yield from self._events

    def close(self) -> None:
        self._events.close()


@dataclass(frozen=True)
class Result:
    """What came of it: all of it as plain values, and whether any kernel is good for anything."""

    facts: dict[str, Any]
    found: bool


def opened(plan: Plan, loaded: Sequence[tuple[Op, str]], bench: Bench, typed: Sequence[str]) -> Session:
    """Archive the runs that begin; of those that go on, find out what is left."""
    check_strategy(plan.wishes.strategy)
    whole = limits.completed(plan.budget, bench.proposer.name)
    if whole.until_light and bench.engine.info.kind != "cuda":
        raise UserError("the emulated device has no speed of light", "leave out --until-sol, or run on a GPU")
    if plan.runs:
        _check_ops(plan, [op.name for op, _ in loaded])
    runs = list(plan.runs) or _begun(plan, loaded, bench, whole)
    for run in runs:
        if run.device != bench.engine.info.key:
            raise UserError(
                f"run {run.id} is one on {run.device}, and this is {bench.engine.info.key}", "start a new run here"
            )
    identity = runs[0].campaign or runs[0].id
    quests = [
        Quest(
            run.id, op, locator, run.seed, whole,
            scope=Scope(run.id, run.strategy, plan.wishes.fresh), profiled=bench.proposer.name != limits.OFFLINE,
        )
        for run, (op, locator) in zip(runs, loaded, strict=True)
    ]  # fmt: skip
    before = sum((spent_by(quest, bench) for quest in quests), Spent()) if plan.runs else Spent()
    left = budget.left(whole, before)
    deadline = float("inf") if left.seconds is None else time.monotonic() + left.seconds
    quests = [replace(quest, budget=left, deadline=deadline) for quest in quests]
    seeded = not (plan.wishes.no_seeds or plan.wishes.fresh)
    return Session(bench, identity, tuple(quests), whole, before, seeded, tuple(typed), plan.given)


def spent_by(quest: Quest, bench: Bench) -> Spent:
    return budget.spent(quest.run, budget.history(bench.store, quest.op.name, bench.engine.info.key))


def check_strategy(wished: str) -> None:
    if wished and wished not in STRATEGIES:
        raise UserError(f"there is no strategy `{wished}`", f"choose one of: {', '.join(STRATEGIES)}")


def _check_ops(plan: Plan, names: Sequence[str]) -> None:
    """A file may define another op by now, whose archive and whose budget are not those of the run."""
    for place, (run, locator) in enumerate(zip(plan.runs, plan.locators, strict=True)):
        if names[place : place + 1] != [run.op]:
            raise UserError(f"{locator} no longer defines {run.op}, which run {run.id} is of", "start a new run of it")


def _begun(plan: Plan, loaded: Sequence[tuple[Op, str]], bench: Bench, whole: Budget) -> list[Run]:
    campaign = secrets.token_hex(4) if len(loaded) > 1 else ""
    runs = [
        Run(
            secrets.token_hex(4), op.name, bench.engine.info.key, bench.proposer.name, plan.wishes.seed or 0,
            time.time(), plan.wishes.strategy or EVOLVE, whole, campaign, (locator, *plan.wishes.options()),
        )
        for op, locator in loaded
    ]  # fmt: skip
    bench.store.append(*runs)
    return runs

"""A session: one or several runs under one budget, from the command line to what is about to begin."""

import contextlib
import os
import secrets
import shlex
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from archive import library
from archive.proposals import Budget, Proposal, Run
from archive.store import SqliteStore, Store
from evolve import budget, wiring
from evolve.budget import Ended, Spent
from evolve.cli import lookup, options, signals
from evolve.cli.options import OFFLINE, TOKENS, USD, RunOptions, op_names
from evolve.engines.engine import Engine
from evolve.errors import UserError
from evolve.report.progress import Phases
from evolve.report.words import listed
from evolve.request import Proposer
from evolve.search import Search
from evolve.selection.selection import EVOLVE, STRATEGIES, Scope
from reference_ops.op import Op


@dataclass(frozen=True)
class Plan:
    """The ops, how they are to be run, and for how much."""

    locators: tuple[str, ...]
    run_options: RunOptions
    budget: Budget = field(default=Budget())  # in all, also what is spent already
    runs: tuple[Run, ...] = ()  # those that go on; none where new ones begin
    given: Budget = field(default=Budget())  # what raises the budget of those


def new(ops: Sequence[str], typed: RunOptions, given: Budget, *, every: bool) -> Plan:
    if ops and every:
        raise UserError("--all takes every op of the catalog, so no OP can be named", "leave out --all, or the OP")
    if not ops and not every:
        raise UserError("which OP is to be evolved?", "`evolve ops` lists the catalog; --all takes every one")
    return Plan(tuple(dict.fromkeys(ops or op_names())), typed, given)


def resumed(requested: str, ops: Sequence[str], typed: RunOptions, given: Budget, archive: Path | None) -> Plan:
    """With what is left of its budget; what is given now raises that."""
    with closing(wiring.archive(archive, read_only=True)) as store:
        found = lookup.runs(store, requested, ops)
    for run in found:
        options.check_same(run, typed)
    first = found[0]
    named = {lookup.op_name(op): op for op in ops}
    if named and len(named) < len(found):
        raise UserError(
            f"`{requested}` is of campaign {first.campaign} over {len(found)} ops, which share one budget; "
            f"it does not go on with {listed(list(named))} alone",
            f"leave the op out to go on with all: --resume {first.campaign}; or begin a run of it, without --resume",
        )
    locators = tuple(named.get(run.op, options.locator(run)) for run in found)
    return Plan(locators, options.recorded(first), options.raised(first.budget, given), tuple(found), given)


def replayed(ops: Sequence[str], typed: RunOptions, given: Budget, archive: Path | None) -> Plan:
    """As a recorded run was started, with as many evaluations; only the answers come from the archive."""
    with closing(wiring.archive(archive, read_only=True)) as store:
        run = lookup.one(store, typed.replay)
        lookup.runs(store, run.id, ops)  # complains about another op
        evals = _evaluations(store, run)
    before = options.recorded(run)
    wanted = replace(
        before,
        device=typed.device,
        replay=run.id,
        fresh=typed.fresh or before.fresh,
        no_tune=typed.no_tune or before.no_tune,
        no_seeds=typed.no_seeds or before.no_seeds,
        strategy=typed.strategy or before.strategy,
        seed=before.seed if typed.seed is None else typed.seed,
    )
    return Plan(tuple(ops) or (options.locator(run),), wanted, options.raised(Budget(evals=evals), given))


def _evaluations(store: Store, run: Run) -> int:
    if not any(proposal.run == run.id and proposal.reply for proposal in store.find(Proposal, run.op)):
        raise UserError(
            f"run {run.id} asked no model, so there is nothing to replay", "`evolve runs` names the proposers"
        )
    return max(1, budget.spent(run.id, budget.history(store, run.op, run.device)).evals)


SHIPPED = "shipped"
E = TypeVar("E")


@dataclass(frozen=True)
class Backends:
    """What does the work."""

    proposer: Proposer
    engine: Engine
    store: SqliteStore
    phases: Phases


@dataclass(frozen=True)
class Session:
    """One or several runs under one budget, about to begin or to go on."""

    bench: Backends
    id: str  # of the run, or of the campaign
    searches: tuple[Search, ...]
    budget: Budget  # in all
    before: Spent  # of it, in earlier legs
    seeded: bool
    typed: tuple[str, ...]  # the command that goes on
    raised: Budget = field(default=Budget())  # what was typed in addition, when it went on

    def again(self, more: Budget | None = None) -> str:
        """What is typed to go on, with a larger budget or with the same."""
        budgeted = options.raised(self.raised, more or Budget())
        return shlex.join([*self.typed, "--resume", self.id, *options.options(budgeted)])

    def seeds(self) -> list[Proposal]:
        """The shipped kernels that the device can run, as the same proposals in every run."""
        ops = [search.op.name for search in self.searches] if self.seeded else []
        device = self.bench.engine.info.kind
        return [
            Proposal(op, "seed", SHIPPED, kernel, created=time.time())
            for op in ops
            for kernel in library.shipped(op)
            if wiring.runs(device, kernel)
        ]

    def spent(self) -> Spent:
        """By all legs so far."""
        return sum((spent_by(search, self.bench) for search in self.searches), Spent())


class RunEvents(Generic[E]):
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


def opened(plan: Plan, loaded: Sequence[tuple[Op, str]], bench: Backends, typed: Sequence[str]) -> Session:
    """Archive the runs that begin; of those that go on, find out what is left."""
    check_strategy(plan.run_options.strategy)
    whole = options.completed(plan.budget, bench.proposer.name)
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
    searches = [
        Search(
            run.id, op, locator, run.seed, whole,
            scope=Scope(run.id, run.strategy, plan.run_options.fresh), profiled=bench.proposer.name != options.OFFLINE,
        )
        for run, (op, locator) in zip(runs, loaded, strict=True)
    ]  # fmt: skip
    before = sum((spent_by(search, bench) for search in searches), Spent()) if plan.runs else Spent()
    left = budget.left(whole, before)
    deadline = float("inf") if left.seconds is None else time.monotonic() + left.seconds
    searches = [replace(search, budget=left, deadline=deadline) for search in searches]
    seeded = not (plan.run_options.no_seeds or plan.run_options.fresh)
    return Session(bench, identity, tuple(searches), whole, before, seeded, tuple(typed), plan.given)


def spent_by(search: Search, bench: Backends) -> Spent:
    return budget.spent(search.run, budget.history(bench.store, search.op.name, bench.engine.info.key))


def check_strategy(requested: str) -> None:
    if requested and requested not in STRATEGIES:
        raise UserError(f"there is no strategy `{requested}`", f"choose one of: {', '.join(STRATEGIES)}")


def _check_ops(plan: Plan, names: Sequence[str]) -> None:
    """A file may define another op by now, whose archive and whose budget are not those of the run."""
    for place, (run, locator) in enumerate(zip(plan.runs, plan.locators, strict=True)):
        if names[place : place + 1] != [run.op]:
            raise UserError(f"{locator} no longer defines {run.op}, which run {run.id} is of", "start a new run of it")


def _begun(plan: Plan, loaded: Sequence[tuple[Op, str]], bench: Backends, whole: Budget) -> list[Run]:
    campaign = secrets.token_hex(4) if len(loaded) > 1 else ""
    runs = [
        Run(
            secrets.token_hex(4), op.name, bench.engine.info.key, bench.proposer.name, plan.run_options.seed or 0,
            time.time(), plan.run_options.strategy or EVOLVE, whole, campaign, (locator, *plan.run_options.options()),
        )
        for op, locator in loaded
    ]  # fmt: skip
    bench.store.append(*runs)
    return runs


NO_GPU = "no GPU found: running on the emulated device (CPU). Times are CPU times of an emulator."
EMULATED = "running on the emulated device (CPU), as asked. Times are CPU times of an emulator."


@contextlib.contextmanager
def engine_on(requested: str, phases: Phases, shown: Console) -> Iterator["Engine"]:
    """An engine whose device is ready, closed in the end whatever happens."""
    with shown.status("looking for a GPU"):
        kind = wiring.device_kind(requested)
    if kind != "cuda":
        shown.print(f"device    {EMULATED if requested else NO_GPU}", style="yellow")
    engine = wiring.engine(kind, phases.watch)
    try:
        with shown.status("starting the workers"):
            signals.check()
            info = engine.info
            signals.check()
        if kind == "cuda":
            shown.print(f"device    {info.name} ({info.arch}, {info.sms} multiprocessors)")
        yield engine
    finally:
        engine.close()


def say_proposer(name: str, budget: Budget, shown: Console) -> None:
    """Who proposes, and which limits will never be reached because nobody is paid."""
    if name != OFFLINE:
        shown.print(f"proposer  {name}")
        return
    configured = os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")
    why = "" if configured else "no OPENAI_API_KEY or OPENAI_BASE_URL: "
    shown.print(
        f"proposer  {why}the offline proposer varies the knobs of kernels at hand", soft_wrap=not shown.is_terminal
    )
    if moot := [option for option, limit in ((TOKENS, budget.tokens), (USD, budget.usd)) if limit is not None]:
        shown.print(f"budget    no model is asked, so {' and '.join(moot)} cannot end the run", style="yellow")

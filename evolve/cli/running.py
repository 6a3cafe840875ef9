"""A run from its first line to its last: what the archive holds, the live display, and where things stand then."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from archive import library
from archive.kernel import Kernel
from archive.proposals import Proposal, Run
from archive.records import Evaluation
from archive.store import SqliteStore
from evolve.cli import stopping
from evolve.cli.options import archive_option
from evolve.cli.stopping import Stopped
from evolve.engines.engine import Engine
from evolve.loop import Event, Quest, evolve
from evolve.proposers.proposer import Proposer
from evolve.report.live import REFRESHES_PER_SECOND, Display
from evolve.report.log import Log
from evolve.report.progress import Phases, Watcher
from evolve.report.standing import Standing, standing
from evolve.report.summary import print_next_steps, print_standing
from evolve.report.words import clock, counted, times

SHIPPED = "shipped"


@dataclass(frozen=True)
class Running:
    """Everything a run is made of."""

    quest: Quest
    proposer: Proposer
    engine: Engine
    store: SqliteStore
    phases: Phases


def run(running: Running, shown: Console, *, seeded: bool) -> Standing:
    """Evolve until the quest is over, or until Stopped, which is raised again once the last words are said."""
    quest, info = running.quest, running.engine.info
    before = _standing(running)
    _say_archive(before, running.store, shown)
    started = time.monotonic()
    running.store.append(Run(quest.run, quest.op.name, info.key, running.proposer.name, quest.seed, time.time()))
    seeds = _seeds(quest.op.name) if seeded else []
    stopped: Stopped | None = None
    try:
        _watch(running, evolve(quest, seeds, running.proposer, running.engine, running.store), started, shown)
    except Stopped as caught:
        stopped = caught
    after = _standing(running)
    workloads = [workload.key for workload in quest.op.workloads(info.kind)]
    shown.print()
    print_standing(shown, after, workloads, population=False)
    _say_spent(running, started, shown)
    if stopped:
        raise stopped
    shown.print(_reason(running, after, len(after.verdicts) - len(before.verdicts)))
    print_next_steps(shown, after, quest.locator, archive_option(running.store.path))
    return after


def _watch(running: Running, events: Iterator[Event], started: float, shown: Console) -> None:
    """Show what happens: live on a terminal, a line per improvement elsewhere."""
    quest, info = running.quest, running.engine.info
    watcher = Watcher(quest.op.name, info, running.store, running.phases)
    workloads = [workload.key for workload in quest.op.workloads(info.kind)]
    if shown.is_terminal and not shown.is_dumb_terminal:
        display = Display(watcher, workloads, running.proposer.name, started, quest.deadline)
        with Live(display, console=shown, refresh_per_second=REFRESHES_PER_SECOND, transient=True):
            for event in events:
                watcher.take(event)
                stopping.check()
    else:
        log = Log(watcher, workloads, started)
        for event in events:
            for line in log.lines(event):
                shown.print(line, soft_wrap=True)
            stopping.check()


def _seeds(op: str) -> list[Proposal]:
    """The shipped kernels, as the same proposals in every run."""
    return [Proposal(op, "seed", SHIPPED, kernel, created=time.time()) for kernel in library.shipped(op)]


def _standing(running: Running) -> Standing:
    op, store = running.quest.op.name, running.store
    return standing(
        op, running.engine.info, store.find(Kernel, op), store.find(Proposal, op), store.find(Evaluation, op)
    )


def _say_archive(before: Standing, store: SqliteStore, shown: Console) -> None:
    if not before.kernels:
        held = f"nothing for {before.op} yet"
    else:
        best = max((champion.measurement.speedup for champion in before.champions), default=None)
        found = f", best {times(best)}" if best else ""
        held = (
            f"{counted(len(before.kernels), 'kernel')} for {before.op}, "
            f"{len(before.verdicts)} evaluated on this device{found}: going on from there"
        )
    shown.print(f"archive   {store.path}: {held}", soft_wrap=not shown.is_terminal)


def _say_spent(running: Running, started: float, shown: Console) -> None:
    """How long it took, and what a model was paid for it."""
    op, run = running.quest.op.name, running.quest.run
    costs = [proposal.cost for proposal in running.store.find(Proposal, op) if proposal.run == run]
    asked, answered = sum(c.prompt_tokens for c in costs), sum(c.completion_tokens for c in costs)
    tokens = f", {asked:,} tokens asked, {answered:,} answered" if asked or answered else ""
    shown.print(f"{clock(time.monotonic() - started)} spent{tokens}")


def _reason(running: Running, after: Standing, evaluated: int) -> str:
    quest = running.quest
    if time.monotonic() >= quest.deadline:
        return "The time is up; --minutes gives more."
    if evaluated + after.unread >= quest.tries:
        return f"All {counted(quest.tries, 'evaluation')} are used; --evals gives more."
    if not after.kernels:
        return (
            f"There is nothing to vary: no kernels for {quest.op.name} are shipped or archived. Set OPENAI_API_KEY or "
            "OPENAI_BASE_URL for a model that writes some, or give your own with `evolve tell FILE.cu`."
        )
    return "Nothing is left to try: every setting of the kernels alive has been evaluated."

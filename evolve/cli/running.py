"""A run from its first line to its last: what the archive holds, the live display, and where things stand then."""

import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from rich.console import Console
from rich.live import Live

from archive.kernel import Kernel
from archive.proposals import Proposal, Run
from archive.records import Evaluation
from archive.store import SqliteStore
from evolve.budget import Ended
from evolve.cli import limits, signals, wishes
from evolve.cli.options import archive_option
from evolve.cli.session import Bench, Result, Session, Told, spent_by
from evolve.cli.signals import Stopped
from evolve.errors import UserError
from evolve.loop import Event, evolve
from evolve.report import facts
from evolve.report.live import REFRESHES_PER_SECOND, Display
from evolve.report.log import Log
from evolve.report.progress import Watcher
from evolve.report.spending import Meter, amounts, dollars, ending, without_answer
from evolve.report.standing import Standing, standing
from evolve.report.summary import print_next_steps, print_standing
from evolve.report.words import clock, counted, listed, times
from evolve.search import Quest
from reference_ops.locators import is_path

OPS_NAMED = 4


def run(session: Session, shown: Console) -> Result:
    """Evolve until the quest is over, or until Stopped, which is raised again once the last words are said."""
    (quest,), bench = session.quests, session.bench
    _say_archive(standing_of(quest, bench), session, shown)
    told = Told(evolve(quest, session.seeds(), bench.proposer, bench.engine, bench.store))
    started, stopped = time.monotonic(), None
    try:
        with closing(told):
            _watch(session, told, shown)
    except (Stopped, UserError) as caught:  # also a model that cannot be asked any more
        stopped = caught
    after = standing_of(quest, bench)
    shown.print()
    print_standing(shown, after, workloads_of(quest, bench), population=False)
    _say_spent(session, started, shown)
    if stopped:
        raise stopped
    ended = told.ended or Ended.NOTHING
    shown.print(reason(session, ended, [after]), soft_wrap=True)
    print_next_steps(shown, after, quest.locator, archive_option(bench.store.path))
    spent = asdict(spent_by(quest, bench))
    return Result(
        {**facts.of_standing(after), "run": quest.run, "spent": spent, "ended": str(ended)}, bool(after.champions)
    )


def standing_of(quest: Quest, bench: Bench) -> Standing:
    op, store = quest.op.name, bench.store
    return standing(op, bench.engine.info, store.find(Kernel, op), store.find(Proposal, op), store.find(Evaluation, op))


def workloads_of(quest: Quest, bench: Bench) -> list[str]:
    return [workload.key for workload in quest.op.workloads(bench.engine.info.kind)]


def _watch(session: Session, events: Told[Event], shown: Console) -> None:
    """Show what happens: live on a terminal, a line per improvement elsewhere."""
    (quest,), bench = session.quests, session.bench
    watcher = Watcher(quest.op.name, bench.engine.info, bench.store, bench.phases)
    workloads = workloads_of(quest, bench)
    meter = Meter(time.monotonic(), quest.deadline, session.budget, session.before)
    if shown.is_terminal and not shown.is_dumb_terminal:
        display = Display(watcher, workloads, bench.proposer.name, meter)
        with Live(display, console=shown, refresh_per_second=REFRESHES_PER_SECOND, transient=True):
            for event in events:
                watcher.take(event)
                signals.check()
    else:
        log = Log(watcher, workloads, meter.started)
        for event in events:
            for line in log.lines(event):
                shown.print(line, soft_wrap=True)
            signals.check()


def _say_archive(before: Standing, session: Session, shown: Console) -> None:
    store: SqliteStore = session.bench.store
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
    spent = f", {amounts(session.before)} spent so far" if session.before.seconds or session.before.evals else ""
    shown.print(f"run       {session.id}{spent}", soft_wrap=not shown.is_terminal)


def _say_spent(session: Session, started: float, shown: Console) -> None:
    """How long it took, and what a model was paid for it; of a run that went on, also in all."""
    (quest,), bench = session.quests, session.bench
    costs = [p.cost for p in bench.store.find(Proposal, quest.op.name) if p.run == quest.run]
    asked, answered = sum(c.prompt_tokens for c in costs), sum(c.completion_tokens for c in costs)
    usd = sum(c.usd for c in costs)
    tokens = f", {asked:,} tokens asked, {answered:,} answered" if asked or answered else ""
    money = f", {dollars(usd)}" if usd else ""
    replayed = _replayed(quest, bench) if tokens else ""
    then = f" (when run {replayed} was answered: a replay costs nothing)" if replayed else ""
    whole = spent_by(quest, bench)
    in_all = f" ({clock(whole.seconds)} in all)" if session.before.seconds else ""
    evals = counted(whole.evals, "evaluation")
    shown.print(f"{clock(time.monotonic() - started)} spent{in_all}, {evals}{tokens}{money}{then}")


def _replayed(quest: Quest, bench: Bench) -> str:
    """The run whose answers this one was given, if it is a replay."""
    runs = bench.store.find(Run, quest.op.name)
    return next((wishes.recorded(run).replay for run in runs if run.id == quest.run), "")


def reason(session: Session, ended: Ended, after: Sequence[Standing]) -> str:
    """Why it is over, for an op or several, and what would give it more."""
    spent = session.spent()
    said, more = ending(ended, session.budget, spent)
    if ended is Ended.NOTHING and session.bench.proposer.name != limits.OFFLINE:
        said, more = without_answer(session.budget, spent)
    elif ended is Ended.NOTHING and (bare := [one for one in after if not one.population]):
        said = _nothing_to_vary(session, bare) if len(bare) == len(after) else f"{said} {_bare(bare)}."
    return f"{said} More: {session.again(more)}" if more else said


def _nothing_to_vary(session: Session, bare: Sequence[Standing]) -> str:
    own = next((quest.locator for quest in session.quests if is_path(quest.locator)), "")
    tell = " ".join(["evolve tell FILE.cu", *([shlex.quote(own)] if own else [])])
    return (
        f"There is nothing to vary: {_bare(bare)}. Set OPENAI_API_KEY or OPENAI_BASE_URL for a model that writes some, "
        f"or give your own with `{tell}`."
    )


def _bare(standings: Sequence[Standing]) -> str:
    """Which ops have no kernel that could be varied, and whether there was one."""
    names = [one.op for one in standings]
    ops = listed(names if len(names) <= OPS_NAMED else [*names[: OPS_NAMED - 1], f"{len(names) - OPS_NAMED + 1} more"])
    failed = any(one.kernels for one in standings)
    return f"no kernel for {ops} has passed" if failed else f"no kernels for {ops} are shipped or archived"

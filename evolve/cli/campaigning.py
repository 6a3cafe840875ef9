"""Several ops under one budget, from the first line to the last."""

import time
from contextlib import closing
from dataclasses import asdict

from rich.console import Console
from rich.live import Live

from evolve import campaign
from evolve.allotment import GENEROUS
from evolve.budget import Ended, Spent
from evolve.campaign import Slice
from evolve.cli import running, signals
from evolve.cli.options import archive_option
from evolve.cli.session import Bench, Result, Session, Told, spent_by
from evolve.cli.signals import Stopped
from evolve.errors import UserError
from evolve.loop import Event
from evolve.report import facts
from evolve.report.board import Board, Row, rows_table
from evolve.report.live import REFRESHES_PER_SECOND
from evolve.report.log import Log
from evolve.report.progress import Watcher
from evolve.report.spending import Meter, amounts
from evolve.report.standing import Standing
from evolve.report.words import EMULATED_TIMES, clock, counted
from evolve.search import Quest
from evolve.selection import selection

MEANS = "before, now: how many times {goal} the best times take, on average; best: the best speedup over PyTorch"
LIGHT, GUESS = "the speed of light", f"a guessed goal ({GENEROUS:g} times as fast as PyTorch)"


def run(session: Session, shown: Console) -> Result:
    """Until the shared budget is over, or until Stopped, which is raised again once the last words are said."""
    bench, started = session.bench, time.monotonic()
    shown.print(f"archive   {bench.store.path}", soft_wrap=not shown.is_terminal)
    spent = f", {amounts(session.before)} spent so far" if session.before.evals else ""
    shown.print(f"campaign  {session.id} over {counted(len(session.quests), 'op')}{spent}", soft_wrap=True)
    before = {quest.op.name: _headroom(quest, bench) for quest in session.quests}
    told = Told(campaign.campaign(session.quests, session.seeds(), bench.proposer, bench.engine, bench.store))
    stopped = None
    try:
        with closing(told):
            _watch(session, told, before, shown)
    except (Stopped, UserError) as caught:  # also a model that cannot be asked any more
        stopped = caught
    rows = [_row(quest, before, bench) for quest in session.quests]
    whole = sum((row.spent for row in rows), Spent())
    shown.print()
    if bench.engine.info.kind != "cuda":
        shown.print(EMULATED_TIMES, style="yellow")
    _say_spent(rows, whole, shown)
    shown.print(MEANS.format(goal=LIGHT if bench.engine.info.kind == "cuda" else GUESS), style="dim")
    in_all = f" ({clock(whole.seconds)} in all)" if session.before.seconds else ""
    shown.print(f"\n{clock(time.monotonic() - started)} spent{in_all}")
    if stopped:
        raise stopped
    ended = told.ended or Ended.NOTHING
    after = [running.standing_of(quest, bench) for quest in session.quests]
    shown.print(running.reason(session, ended, after), soft_wrap=True)
    _say_next(session, shown)
    return _result(session, rows, after, ended)


def _watch(session: Session, events: Told[Event | Slice], before: dict[str, float | None], shown: Console) -> None:
    bench, info = session.bench, session.bench.engine.info
    quests = {quest.op.name: quest for quest in session.quests}
    watchers = {op: Watcher(op, info, bench.store, bench.phases) for op in quests}
    meter = Meter(time.monotonic(), session.quests[0].deadline, session.budget, session.before)
    if shown.is_terminal and not shown.is_dumb_terminal:
        rows = {op: _row(quest, before, bench) for op, quest in quests.items()}
        board = Board(info.name, bench.proposer.name, meter, rows, watchers, emulated=info.kind != "cuda")
        with Live(board, console=shown, refresh_per_second=REFRESHES_PER_SECOND, transient=True):
            for event in events:
                if isinstance(event, Slice):
                    if board.current:
                        board.update(_row(quests[board.current], before, bench))
                    board.current = event.quest.op.name
                else:
                    watchers[event.op].take(event)
                signals.check()
    else:
        logs = {
            op: Log(watchers[op], running.workloads_of(quest, bench), meter.started, op) for op, quest in quests.items()
        }
        for event in events:
            if not isinstance(event, Slice):
                for line in logs[event.op].lines(event):
                    shown.print(line, soft_wrap=True)
            signals.check()


def _row(quest: Quest, before: dict[str, float | None], bench: Bench) -> Row:
    info, store, op = bench.engine.info, bench.store, quest.op.name
    leading = selection.champions(store, op, info, quest.scope)
    best = max((champion.measurement.speedup for champion in leading), default=None)
    return Row(op, spent_by(quest, bench), before[op], _headroom(quest, bench), best)


def _headroom(quest: Quest, bench: Bench) -> float | None:
    """None where nothing was measured: what the budget is shared out by then is a guess, and nobody should read it."""
    info, store = bench.engine.info, bench.store
    return campaign.headroom(quest, info, store) if campaign.is_measured(quest, info, store) else None


def _say_spent(rows: list[Row], whole: Spent, shown: Console) -> None:
    """On what: of all ops, a short budget reaches a few."""
    reached = [row for row in rows if row.spent.something] or rows
    shown.print(rows_table(reached, total=whole))
    if others := len(rows) - len(reached):
        shown.print(f"nothing was spent on {counted(others, 'other op')}", style="dim")


def _say_next(session: Session, shown: Console) -> None:
    given = archive_option(session.bench.store.path)
    shown.print("\nnext")
    shown.print(f"  evolve top{given}   every op's champions", style="cyan", soft_wrap=True)
    shown.print(f"  evolve runs{given}  what each run has cost", style="cyan", soft_wrap=True)


def _result(session: Session, rows: list[Row], after: list[Standing], ended: Ended) -> Result:
    parts = [
        {
            **facts.of_standing(standing),
            "run": quest.run,
            "spent": asdict(row.spent),
            "headroom": {"before": row.before, "after": row.after},
        }
        for quest, row, standing in zip(session.quests, rows, after, strict=True)
    ]
    found = any(part["champions"] for part in parts)
    return Result({"campaign": session.id, "ended": str(ended), "ops": parts}, found)

"""A run on the screen: its first lines, the live display, and where things stand at the end."""

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
from evolve import campaign
from evolve.budget import Ended, Spent
from evolve.campaign import GENEROUS, Slice
from evolve.cli import options, signals
from evolve.cli.options import archive_option
from evolve.cli.session import Backends, Result, RunEvents, Session, spent_by
from evolve.cli.signals import Stopped
from evolve.errors import UserError
from evolve.loop import Event, evolve
from evolve.report import facts
from evolve.report.live import REFRESHES_PER_SECOND, Board, Display, Log, Row, rows_table
from evolve.report.progress import Meter, Watcher, amounts, dollars, ending, without_answer
from evolve.report.standing import Standing, standing
from evolve.report.tables import print_next_steps, print_standing
from evolve.report.words import EMULATED_TIMES, clock, counted, listed, times
from evolve.search import Search
from evolve.selection import selection
from reference_ops.locators import is_path

OPS_NAMED = 4


def run_search(session: Session, shown: Console) -> Result:
    """Evolve until the search is over, or until Stopped, which is raised again once the last words are said."""
    (search,), bench = session.searches, session.bench
    _say_archive(standing_of(search, bench), session, shown)
    told = RunEvents(evolve(search, session.seeds(), bench.proposer, bench.engine, bench.store))
    started, stopped = time.monotonic(), None
    try:
        with closing(told):
            _watch(session, told, shown)
    except (Stopped, UserError) as caught:  # also a model that cannot be asked any more
        stopped = caught
    after = standing_of(search, bench)
    shown.print()
    print_standing(shown, after, workloads_of(search, bench), population=False)
    _say_spent(session, started, shown)
    if stopped:
        raise stopped
    ended = told.ended or Ended.NOTHING
    shown.print(reason(session, ended, [after]), soft_wrap=True)
    print_next_steps(shown, after, search.locator, archive_option(bench.store.path))
    spent = asdict(spent_by(search, bench))
    return Result(
        {**facts.of_standing(after), "run": search.run, "spent": spent, "ended": str(ended)}, bool(after.champions)
    )


def standing_of(search: Search, bench: Backends) -> Standing:
    op, store = search.op.name, bench.store
    return standing(op, bench.engine.info, store.find(Kernel, op), store.find(Proposal, op), store.find(Evaluation, op))


def workloads_of(search: Search, bench: Backends) -> list[str]:
    return [workload.key for workload in search.op.workloads(bench.engine.info.kind)]


def _watch(session: Session, events: RunEvents[Event], shown: Console) -> None:
    """Show what happens: live on a terminal, a line per improvement elsewhere."""
    (search,), bench = session.searches, session.bench
    watcher = Watcher(search.op.name, bench.engine.info, bench.store, bench.phases)
    workloads = workloads_of(search, bench)
    meter = Meter(time.monotonic(), search.deadline, session.budget, session.before)
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
    (search,), bench = session.searches, session.bench
    costs = [p.cost for p in bench.store.find(Proposal, search.op.name) if p.run == search.run]
    asked, answered = sum(c.prompt_tokens for c in costs), sum(c.completion_tokens for c in costs)
    usd = sum(c.usd for c in costs)
    tokens = f", {asked:,} tokens asked, {answered:,} answered" if asked or answered else ""
    money = f", {dollars(usd)}" if usd else ""
    replayed = _replayed(search, bench) if tokens else ""
    then = f" (when run {replayed} was answered: a replay costs nothing)" if replayed else ""
    whole = spent_by(search, bench)
    in_all = f" ({clock(whole.seconds)} in all)" if session.before.seconds else ""
    evals = counted(whole.evals, "evaluation")
    shown.print(f"{clock(time.monotonic() - started)} spent{in_all}, {evals}{tokens}{money}{then}")


def _replayed(search: Search, bench: Backends) -> str:
    """The run whose answers this one was given, if it is a replay."""
    runs = bench.store.find(Run, search.op.name)
    return next((options.recorded(run_search).replay for run_search in runs if run_search.id == search.run), "")


def reason(session: Session, ended: Ended, after: Sequence[Standing]) -> str:
    """Why it is over, for an op or several, and what would give it more."""
    spent = session.spent()
    said, more = ending(ended, session.budget, spent)
    if ended is Ended.NOTHING and session.bench.proposer.name != options.OFFLINE:
        said, more = without_answer(session.budget, spent)
    elif ended is Ended.NOTHING and (bare := [one for one in after if not one.population]):
        said = _nothing_to_vary(session, bare) if len(bare) == len(after) else f"{said} {_bare(bare)}."
    return f"{said} More: {session.again(more)}" if more else said


def _nothing_to_vary(session: Session, bare: Sequence[Standing]) -> str:
    own = next((search.locator for search in session.searches if is_path(search.locator)), "")
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


MEANS = "before, now: how many times {goal} the best times take, on average; best: the best speedup over PyTorch"
LIGHT, GUESS = "the speed of light", f"a guessed goal ({GENEROUS:g} times as fast as PyTorch)"


def run_campaign(session: Session, shown: Console) -> Result:
    """Until the shared budget is over, or until Stopped, which is raised again once the last words are said."""
    bench, started = session.bench, time.monotonic()
    shown.print(f"archive   {bench.store.path}", soft_wrap=not shown.is_terminal)
    spent = f", {amounts(session.before)} spent so far" if session.before.evals else ""
    shown.print(f"campaign  {session.id} over {counted(len(session.searches), 'op')}{spent}", soft_wrap=True)
    before = {search.op.name: _headroom(search, bench) for search in session.searches}
    told = RunEvents(campaign.campaign(session.searches, session.seeds(), bench.proposer, bench.engine, bench.store))
    stopped = None
    try:
        with closing(told):
            _watch_campaign(session, told, before, shown)
    except (Stopped, UserError) as caught:  # also a model that cannot be asked any more
        stopped = caught
    rows = [_row(search, before, bench) for search in session.searches]
    whole = sum((row.spent for row in rows), Spent())
    shown.print()
    if bench.engine.info.kind != "cuda":
        shown.print(EMULATED_TIMES, style="yellow")
    _say_campaign_spent(rows, whole, shown)
    shown.print(MEANS.format(goal=LIGHT if bench.engine.info.kind == "cuda" else GUESS), style="dim")
    in_all = f" ({clock(whole.seconds)} in all)" if session.before.seconds else ""
    shown.print(f"\n{clock(time.monotonic() - started)} spent{in_all}")
    if stopped:
        raise stopped
    ended = told.ended or Ended.NOTHING
    after = [standing_of(search, bench) for search in session.searches]
    shown.print(reason(session, ended, after), soft_wrap=True)
    _say_next(session, shown)
    return _result(session, rows, after, ended)


def _watch_campaign(
    session: Session, events: RunEvents[Event | Slice], before: dict[str, float | None], shown: Console
) -> None:
    bench, info = session.bench, session.bench.engine.info
    searches = {search.op.name: search for search in session.searches}
    watchers = {op: Watcher(op, info, bench.store, bench.phases) for op in searches}
    meter = Meter(time.monotonic(), session.searches[0].deadline, session.budget, session.before)
    if shown.is_terminal and not shown.is_dumb_terminal:
        rows = {op: _row(search, before, bench) for op, search in searches.items()}
        board = Board(info.name, bench.proposer.name, meter, rows, watchers, emulated=info.kind != "cuda")
        with Live(board, console=shown, refresh_per_second=REFRESHES_PER_SECOND, transient=True):
            for event in events:
                if isinstance(event, Slice):
                    if board.current:
                        board.update(_row(searches[board.current], before, bench))
                    board.current = event.search.op.name
                else:
                    watchers[event.op].take(event)
                signals.check()
    else:
        logs = {
            op: Log(watchers[op], workloads_of(search, bench), meter.started, op) for op, search in searches.items()
        }
        for event in events:
            if not isinstance(event, Slice):
                for line in logs[event.op].lines(event):
                    shown.print(line, soft_wrap=True)
            signals.check()


def _row(search: Search, before: dict[str, float | None], bench: Backends) -> Row:
    info, store, op = bench.engine.info, bench.store, search.op.name
    leading = selection.champions(store, op, info, search.scope)
    best = max((champion.measurement.speedup for champion in leading), default=None)
    return Row(op, spent_by(search, bench), before[op], _headroom(search, bench), best)


def _headroom(search: Search, bench: Backends) -> float | None:
    """None where nothing was measured: what the budget is shared out by then is a guess, and nobody should read it."""
    info, store = bench.engine.info, bench.store
    return campaign.headroom(search, info, store) if campaign.is_measured(search, info, store) else None


def _say_campaign_spent(rows: list[Row], whole: Spent, shown: Console) -> None:
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
            "run": search.run,
            "spent": asdict(row.spent),
            "headroom": {"before": row.before, "after": row.after},
        }
        for search, row, standing in zip(session.searches, rows, after, strict=True)
    ]
    found = any(part["champions"] for part in parts)
    return Result({"campaign": session.id, "ended": str(ended), "ops": parts}, found)

"""Output of a run or campaign: the opening lines, the live display or log, and the closing summary."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict

from rich.console import Console
from rich.live import Live

from archive.kernel import Proposal
from archive.runs import Run
from archive.store import Store
from archive.summaries import ProposalSummary
from evolve import campaign
from evolve.budget import Ended, Spent
from evolve.campaign import Slice
from evolve.cli import options, signals
from evolve.cli.options import archive_option
from evolve.cli.session import Backends, RunEvents, RunResult, Session, spent_by
from evolve.cli.signals import Stopped
from evolve.devices.choose import policy_of
from evolve.engines.engine import devices_of
from evolve.errors import UserError
from evolve.loop import Event, evolve
from evolve.report import facts
from evolve.report.failures import failed_requests, failures_line
from evolve.report.live import REFRESHES_PER_SECOND, CampaignDisplay, CampaignRow, EventLog, RunDisplay, campaign_table
from evolve.report.progress import BudgetMeter, Watcher, ending, without_answer
from evolve.report.standing import Standing, basis_of, standing
from evolve.report.standing_tables import print_commands, print_next_steps, print_standing
from evolve.report.words import amounts, clock, counted, dollars, listed, say, say_command, times, times_note, typed
from evolve.search import Search
from evolve.selection.view import OpView
from reference_ops.catalog import is_path

OPS_NAMED = 4  # largest number of ops that are named in one sentence
COLUMNS_MEAN = (
    "before, now: best times as a multiple of the speed-of-light time, averaged over the workloads; best: best speedup "
    "over PyTorch"
)
EMULATED_COLUMNS_MEAN = "best: largest ratio of the time of an op's first kernel to that of its champion"


def run_search(session: Session, output: Console) -> RunResult:
    """Evolve one op until the search ends. Stopped is raised again once the summary is printed."""
    (search,), backends = session.searches, session.backends
    _print_archive(search, session, output)
    engine, store = session.working
    events = RunEvents(evolve(search, session.seeds, backends.proposer, engine, store))
    started, stopped = time.monotonic(), None
    try:
        with signals.as_stopped(), closing(events):
            _show_events(session, events, output)
    except (Stopped, UserError) as caught:  # a UserError: a model can no longer be used
        stopped = caught
    after = standing(store, search.op.name, engine.info, only_run=search.scope.only_run)
    output.print()
    print_standing(output, after, workloads_of(search, backends), population=False)
    _print_spent(session, started, output)
    _print_failures(session, output)
    if stopped:
        raise stopped
    ended = events.ended or Ended.NOTHING
    _print_reason(session, ended, [after], output)
    print_next_steps(output, after, search.locator, archive_option(backends.store.path))
    spent = asdict(spent_by(search, backends))
    return RunResult(
        {**facts.of_standing(after), "run": search.run, "spent": spent, "ended": str(ended)}, bool(after.champions)
    )


def run_campaign(session: Session, output: Console) -> RunResult:
    """Evolve several ops until their shared budget ends. Stopped is raised again once the summary is printed."""
    backends, started = session.backends, time.monotonic()
    say(output, str(backends.store.path), begin="archive   ")
    spent = f", {amounts(session.before)} spent so far" if session.before.evals else ""
    say(output, f"{session.id} over {_counted_ops(session)}{spent}", begin="campaign  ")
    before = {search.run: _headroom(search, _view(search, backends)) for search in session.searches}
    events = RunEvents(
        campaign.campaign(session.searches, session.seeds, backends.proposer, backends.engine, backends.store)
    )
    stopped = None
    try:
        with signals.as_stopped(), closing(events):
            _show_campaign_events(session, events, before, output)
    except (Stopped, UserError) as caught:  # a UserError: a model can no longer be used
        stopped = caught
    rows = [_row(search, before, backends) for search in session.searches]
    _print_campaign_spent(session, rows, started, output)
    _print_failures(session, output)
    if stopped:
        raise stopped
    ended = events.ended or Ended.NOTHING
    after = [standing_of(search, backends) for search in session.searches]
    _print_reason(session, ended, after, output)
    given = archive_option(backends.store.path)
    steps = [(f"evolve top{given}", "the champions of every op"), (f"evolve runs{given}", "the cost of each run")]
    print_commands(output, steps)
    return _campaign_result(session, rows, after, ended)


def standing_of(search: Search, backends: Backends) -> Standing:
    return standing(backends.store, search.op.name, backends.device(search), only_run=search.scope.only_run)


def workloads_of(search: Search, backends: Backends) -> list[str]:
    return [workload.key for workload in search.op.workloads(backends.device(search).kind)]


def _print_archive(search: Search, session: Session, output: Console) -> None:
    """Print a summary of the op's archived kernels, and the run's cost in earlier legs."""
    backends = session.backends
    before = standing(backends.store, search.op.name, backends.engine.info)
    if not before.held:
        held = f"no kernels for {before.op} yet"
    else:
        pytorch = before.basis.is_pytorch
        best = max((champion.measurement.speedup for champion in before.champions if pytorch), default=None)
        found = f", best {times(best)}" if best else ""
        held = (
            f"{counted(before.held, 'kernel')} for {before.op}, "
            f"{before.judged} evaluated on this device{found}; "
            f"{'a fresh run uses only its own kernels' if search.scope.fresh else 'the run continues with them'}"
        )
    say(output, f"{backends.store.path}: {held}", begin="archive   ")
    spent = f", {amounts(session.before)} spent so far" if session.before.seconds or session.before.evals else ""
    say(output, f"{session.id}{spent}", begin="run       ")


def _show_events(session: Session, events: RunEvents[Event], output: Console) -> None:
    """Show a live display on a terminal, a line per improvement elsewhere."""
    (search,), backends = session.searches, session.backends
    watcher = _watcher(search, backends, session.working[1])
    workloads = workloads_of(search, backends)
    meter = BudgetMeter(time.monotonic(), search.deadline, session.budget, session.before)
    if output.is_terminal and not output.is_dumb_terminal:
        display = RunDisplay(watcher, workloads, backends.proposer.name, meter)
        with Live(display, console=output, refresh_per_second=REFRESHES_PER_SECOND, transient=True):
            for event in events:
                watcher.take(event)
                signals.check()
    else:
        log = EventLog(watcher, workloads, meter.started)
        backends.phases.on_wait = _printing_waits(log, output)
        backends.phases.found = _printing_found(log, output)
        for event in events:
            for line in log.lines(event):
                output.print(line, soft_wrap=True)
            signals.check()


def _watcher(search: Search, backends: Backends, seen: Store) -> Watcher:
    return Watcher(
        search.op.name, backends.device(search), backends.store, backends.phases, seen, search.scope.only_run
    )


def _show_campaign_events(
    session: Session, events: RunEvents[Event | Slice], before: dict[str, float | None], output: Console
) -> None:
    """Show a live table of the ops on a terminal, a line per improvement elsewhere."""
    backends, names = session.backends, {search.run: _name(search, session.backends) for search in session.searches}
    searches = {names[search.run]: search for search in session.searches}
    watchers = {name: _watcher(search, backends, backends.store) for name, search in searches.items()}
    meter = BudgetMeter(time.monotonic(), session.searches[0].deadline, session.budget, session.before)
    if output.is_terminal and not output.is_dumb_terminal:
        rows = {name: _row(search, before, backends) for name, search in searches.items()}
        display = CampaignDisplay(devices_of(backends.engine), backends.proposer.name, meter, rows, watchers)
        with Live(display, console=output, refresh_per_second=REFRESHES_PER_SECOND, transient=True):
            for event in events:
                if isinstance(event, Slice):
                    if display.current:
                        display.update(_row(searches[display.current], before, backends))
                    display.current = names[event.search.run]
                else:
                    watchers[names[_search_of(event, session).run]].take(event)
                signals.check()
    else:
        logs = {
            name: EventLog(watchers[name], workloads_of(search, backends), meter.started, name)
            for name, search in searches.items()
        }
        first = next(iter(logs.values()))
        backends.phases.on_wait = _printing_waits(first, output)
        backends.phases.found = _printing_found(first, output)
        for event in events:
            if not isinstance(event, Slice):
                for line in logs[names[_search_of(event, session).run]].lines(event):
                    output.print(line, soft_wrap=True)
            signals.check()


def _name(search: Search, backends: Backends) -> str:
    """Return the name of a search in a table or log: its op, and its device if the session has several."""
    device = backends.device(search).name.removeprefix("NVIDIA ") if search.device else ""
    return f"{search.op.name} on {device}" if device else search.op.name


def _search_of(event: Event, session: Session) -> Search:
    """Return the search to which an event belongs. Shipped kernels belong to the first search of their op."""
    of_op = [search for search in session.searches if search.op.name == event.op]
    if isinstance(event, Proposal):
        return next((search for search in of_op if search.run == event.run), of_op[0])
    return next(search for search in of_op if session.backends.device(search).key == event.device.key)


def _counted_ops(session: Session) -> str:
    """Return the number of ops and, if there are several, of devices."""
    ops = counted(len({search.op.name for search in session.searches}), "op")
    on = {search.device for search in session.searches}
    return f"{ops} on {counted(len(on), 'device')}" if len(on) > 1 else ops


def _printing_waits(log: EventLog, output: Console) -> Callable[[str], None]:
    """Return a function that prints why a question waits. The waiting thread calls it."""

    def printed(reason: str) -> None:
        for line in log.waits(reason):
            output.print(line, soft_wrap=True)

    return printed


def _printing_found(log: EventLog, output: Console) -> Callable[[str, str], None]:
    """Return a function that prints the speedup of a kernel before its baselines are timed."""

    def found(kernel_id: str, phase: str) -> None:
        for line in log.found(kernel_id, phase):
            output.print(line, soft_wrap=True)

    return found


def _print_failures(session: Session, output: Console) -> None:
    """Print, for each op, how many requests of the run gave no kernel, and why."""
    store = session.backends.store
    for search in session.searches:
        if failed := failed_requests(store, search.op.name, search.run):
            say(output, failures_line(failed, archive_option(store.path)), "yellow")


def _print_spent(session: Session, started: float, output: Console) -> None:
    """Print the time of this leg, the total time if the run was resumed, and the run's evaluations, tokens and cost."""
    (search,), backends = session.searches, session.backends
    costs = [proposal.cost for proposal in backends.store.find(ProposalSummary, run=search.run)]
    prompt, completion = sum(c.prompt_tokens for c in costs), sum(c.completion_tokens for c in costs)
    usd = sum(c.usd for c in costs)
    tokens = f", {prompt:,} prompt tokens, {completion:,} completion tokens" if prompt or completion else ""
    money = f", {dollars(usd)}" if usd else ""
    source = _replayed_run(search, backends) if tokens else ""
    note = f" (cost of the recorded run {source}; a replay is free)" if source else ""
    total = spent_by(search, backends)
    in_all = f" ({clock(total.seconds)} in all)" if session.before.seconds else ""
    evals = counted(total.evals, "evaluation")
    output.print(f"{clock(time.monotonic() - started)} spent{in_all}, {evals}{tokens}{money}{note}")


def _replayed_run(search: Search, backends: Backends) -> str:
    """Return the id of the run whose answers this run replays, or an empty string."""
    runs = backends.store.find(Run, search.op.name)
    return next((options.recorded(run).replay for run in runs if run.id == search.run), "")


def _print_reason(session: Session, ended: Ended, after: Sequence[Standing], output: Console) -> None:
    why, command = reason(session, ended, after)
    say(output, why)
    if command:
        say_command(output, "To continue:", command)


def reason(session: Session, ended: Ended, after: Sequence[Standing]) -> tuple[str, str]:
    """Return the reason why the session ended and, if useful, the command that continues it under a larger budget."""
    spent = session.spent()
    why, more = ending(ended, session.budget, spent)
    if ended is Ended.NOTHING and session.replay:
        why, more = f"All proposals of run {session.replay} are replayed.", None
    elif ended is Ended.NOTHING and session.backends.proposer.name != options.OFFLINE:
        why, more = without_answer(session.budget, spent)
    elif ended is Ended.NOTHING and (empty := [one for one in after if not one.population]):
        why = _nothing_to_vary(session, empty) if len(empty) == len(after) else f"{why} {_without_kernels(empty)}."
    return why, session.resume_command(more) if more else ""


def _nothing_to_vary(session: Session, empty: Sequence[Standing]) -> str:
    path = next((search.locator for search in session.searches if is_path(search.locator)), "")
    tell = " ".join(["evolve tell FILE.cu", *([typed(path)] if path else [])])
    return (
        f"There is no kernel to vary: {_without_kernels(empty)}. Set OPENAI_API_KEY or OPENAI_BASE_URL to let a model "
        f"write kernels, or add your own with `{tell}`."
    )


def _without_kernels(standings: Sequence[Standing]) -> str:
    """Return a phrase that says which ops have no passing kernel, and whether they have any kernel at all."""
    names = [one.op for one in standings]
    ops = listed(names if len(names) <= OPS_NAMED else [*names[: OPS_NAMED - 1], f"{len(names) - OPS_NAMED + 1} more"])
    failed = any(one.held for one in standings)
    return f"no kernel for {ops} has passed" if failed else f"no kernels for {ops} are shipped or archived"


def _row(search: Search, before: dict[str, float | None], backends: Backends) -> CampaignRow:
    view = _view(search, backends)
    basis = basis_of(backends.store, search.op.name, view.device)
    best = max((basis.ratio(timing) or 0.0 for timing in view.leading_times().values()), default=None)
    return CampaignRow(
        _name(search, backends), spent_by(search, backends), before[search.run], _headroom(search, view), best
    )


def _view(search: Search, backends: Backends) -> OpView:
    return OpView(backends.store, search.op.name, backends.device(search), search.scope)


def _headroom(search: Search, view: OpView) -> float | None:
    """Return the op's headroom, or None without GPU times, where the campaign only assumes a headroom."""
    known = policy_of(view.device.kind).times_are_gpu_times and campaign.is_measured(search, view)
    return campaign.headroom(search, view) if known else None


def _print_campaign_spent(session: Session, rows: list[CampaignRow], started: float, output: Console) -> None:
    """Print a row per op that got a part of the budget, and the totals."""
    kind = session.backends.engine.info.kind
    total = sum((row.spent for row in rows), Spent())
    reached = [row for row in rows if row.spent.something] or rows
    output.print()
    if note := times_note(kind):
        output.print(note, style="yellow")
    gpu_times = policy_of(kind).times_are_gpu_times
    output.print(campaign_table(reached, total=total, gpu_times=gpu_times))
    if others := len(rows) - len(reached):
        output.print(f"nothing was spent on {counted(others, 'other op')}", style="dim")
    output.print(COLUMNS_MEAN if gpu_times else EMULATED_COLUMNS_MEAN, style="dim")
    in_all = f" ({clock(total.seconds)} in all)" if session.before.seconds else ""
    output.print(f"\n{clock(time.monotonic() - started)} spent{in_all}")


def _campaign_result(session: Session, rows: list[CampaignRow], after: list[Standing], ended: Ended) -> RunResult:
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
    return RunResult({"campaign": session.id, "ended": str(ended), "ops": parts}, found)

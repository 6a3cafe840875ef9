"""`evolve runs`: what was run, what it cost, and what it brought."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.table import Table

from archive.proposals import Run
from archive.store import Store
from evolve import budget, wiring
from evolve.budget import History, Spent
from evolve.cli import lookup, wishes
from evolve.cli.options import ArchiveOption, JsonOption, OpFilter
from evolve.report.console import console, print_json
from evolve.report.spending import dollars
from evolve.report.tables import WIDE, fitted, plain_table
from evolve.report.words import clock, counted, moment, times

Outcome = tuple[Spent, float | None]
NOTHING_OWN = "best: - where a run proposed nothing itself that passed; kernels that come along do not count"
REPLAYED = "replay: its answers come from the archive; tokens and dollars are what they had cost then"


def runs(op: OpFilter = "", archive: ArchiveOption = None, as_json: JsonOption = False) -> None:
    """List the runs, newest last, with what they spent and the best speedup of a kernel they proposed."""
    store = wiring.archive(archive, read_only=True)
    found = store.find(Run, lookup.op_name(op))
    outcomes = list(zip(found, _outcomes(found, store), strict=True))
    if as_json:
        print_json([_facts(run, *outcome) for run, outcome in outcomes])
    if not found:
        of = f" of {op}" if op else ""
        lookup.absent(f"the archive holds no runs{of} yet", f"`evolve run {op or 'softmax'}` makes one")
    if as_json:
        return
    shown = console()
    idle = [run for run, (spent, _) in outcomes if run.campaign and not (op or spent.something)]
    listed = [(run, outcome) for run, outcome in outcomes if run not in idle] or outcomes
    shown.print(_table(listed, wide=shown.width >= WIDE))
    for said in _remarks(outcomes, idle if len(idle) < len(outcomes) else []):
        shown.print(said, style="dim")
    shown.print("\nevolve run --resume RUN goes on with one", style="dim")
    shown.print("evolve compare RUN RUN shows two beside each other", style="dim")


def _remarks(outcomes: Sequence[tuple[Run, Outcome]], idle: Sequence[Run]) -> Iterator[str]:
    """What the table does not say of itself, and of which runs it says nothing."""
    if any(wishes.recorded(run).replay for run, _ in outcomes):
        yield REPLAYED
    if any(spent.evals and best is None for _, (spent, best) in outcomes):
        yield NOTHING_OWN
    for campaign in dict.fromkeys(run.campaign for run in idle):
        others = sum(run.campaign == campaign for run in idle)
        yield f"campaign {campaign} has spent nothing on {counted(others, 'other op')}"


def _table(listed: Sequence[tuple[Run, Outcome]], *, wide: bool) -> Table:
    """Columns that would say nothing are left out, and where there is little room those that say least."""
    tokens = ["tokens"] if any(spent.tokens for _, (spent, _) in listed) else []
    usd = ["usd"] if any(spent.usd for _, (spent, _) in listed) else []
    device = ["device"] if wide else []
    campaign = ["campaign"] if wide and any(run.campaign for run, _ in listed) else []
    numbers = ["evals", *tokens, *usd, "time", "best"]
    table = plain_table(
        "run", "op", *device, "when", "proposer", "strategy", *numbers, *campaign, numbers=["run", *numbers]
    )
    table.columns[0].justify = "left"
    for run, (spent, best) in listed:
        table.add_row(
            fitted(run.id, "bold"),
            fitted(run.op),
            *[fitted(run.device, "yellow" if run.device.startswith("emulated") else "") for _ in device],
            moment(run.created)[5:].replace(" ", "\N{NO-BREAK SPACE}"),
            fitted(f"replay, {run.proposer}" if wishes.recorded(run).replay else run.proposer),
            fitted(run.strategy),
            str(spent.evals),
            *[f"{spent.tokens:,}" for _ in tokens],
            *[dollars(spent.usd) for _ in usd],
            clock(spent.seconds),
            times(best),
            *[run.campaign for _ in campaign],
        )
    return table


def _outcomes(found: Sequence[Run], store: Store) -> list[Outcome]:
    pasts: dict[tuple[str, str], History] = {}
    outcomes = []
    for run in found:
        key = run.op, run.device
        pasts[key] = past = pasts.get(key) or budget.history(store, *key)
        own = {proposal.kernel_id for proposal in past.proposals if proposal.run == run.id}
        in_force = {evaluation.kernel_id: evaluation for evaluation in past.evaluations if evaluation.kernel_id in own}
        speedups = [m.speedup for verdict in in_force.values() if verdict.passed for m in verdict.measurements]
        outcomes.append((budget.spent(run.id, past), max(speedups, default=None)))
    return outcomes


def _facts(run: Run, spent: Spent, best: float | None) -> dict[str, object]:
    return {
        "run": run.id,
        "campaign": run.campaign or None,
        "replay_of": wishes.recorded(run).replay or None,
        **{name: getattr(run, name) for name in ("op", "device", "created", "proposer", "strategy", "seed")},
        "budget": asdict(run.budget),
        "spent": asdict(spent),
        "best_speedup": best,
    }

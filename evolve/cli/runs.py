"""`evolve runs`: what was run, what it cost, and what it brought."""

from collections.abc import Sequence
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
from evolve.report.words import clock, moment, times

REPLAYED = "replay: its answers come from the archive; tokens and dollars are what they had cost then"


def runs(op: OpFilter = "", archive: ArchiveOption = None, as_json: JsonOption = False) -> None:
    """List the runs, newest last, with what they spent and the best speedup of a kernel they proposed."""
    store = wiring.archive(archive, read_only=True)
    found = store.find(Run, lookup.op_name(op))
    if as_json:
        print_json([_facts(run, *outcome) for run, outcome in zip(found, _outcomes(found, store), strict=True)])
    if not found:
        of = f" of {op}" if op else ""
        lookup.absent(f"the archive holds no runs{of} yet", f"`evolve run {op or 'softmax'}` makes one")
    if as_json:
        return
    shown = console()
    shown.print(_table(found, _outcomes(found, store), wide=shown.width >= WIDE))
    if any(wishes.recorded(run).replay for run in found):
        shown.print(f"\n{REPLAYED}", style="dim")
    shown.print("\nevolve run --resume RUN goes on with one", style="dim")
    shown.print("evolve compare RUN RUN shows two beside each other", style="dim")


def _table(found: Sequence[Run], outcomes: Sequence[tuple[Spent, float | None]], *, wide: bool) -> Table:
    """Columns that would say nothing are left out, and where there is little room those that say least."""
    tokens = ["tokens"] if any(spent.tokens for spent, _ in outcomes) else []
    usd = ["usd"] if any(spent.usd for spent, _ in outcomes) else []
    device = ["device"] if wide else []
    campaign = ["campaign"] if wide and any(run.campaign for run in found) else []
    numbers = ["evals", *tokens, *usd, "time", "best"]
    table = plain_table(
        "run", "op", *device, "when", "proposer", "strategy", *numbers, *campaign, numbers=["run", *numbers]
    )
    table.columns[0].justify = "left"
    for run, (spent, best) in zip(found, outcomes, strict=True):
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


def _outcomes(found: Sequence[Run], store: Store) -> list[tuple[Spent, float | None]]:
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

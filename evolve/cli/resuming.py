"""Runs by how their ids begin, and what it takes for one to go on."""

from collections.abc import Sequence

from archive.proposals import Run
from archive.store import Store
from evolve.cli import lookup
from evolve.errors import UserError
from evolve.report.words import listed

LAST = "last"
SHOWN = 6


def runs(store: Store, wished: str, ops: Sequence[str] = ()) -> list[Run]:
    """The run whose id begins so, or all of a campaign; `last` is the newest, of these ops if any are named."""
    names = [lookup.op_name(op) for op in ops]
    every = store.find(Run)
    if wished == LAST:
        found = [run for run in every if not names or run.op in names][-1:]
    else:
        found = [run for run in every if wished and (run.id.startswith(wished) or run.campaign.startswith(wished))]
    groups = list(dict.fromkeys(run.campaign or run.id for run in found))
    if not groups:
        of = f" of {listed(names)}" if names and wished == LAST else ""
        what = f"there is no run{of} yet" if wished == LAST else f"no run's id begins with `{wished}`"
        raise UserError(what, "`evolve runs` lists the runs of the archive")
    if len(groups) > 1:
        raise UserError(f"`{wished}` is the beginning of {len(groups)} ids", f"give more of it: {_some(groups)}")
    chosen = [run for run in every if groups[0] in (run.campaign, run.id)]
    if strangers := [name for name in names if name not in {run.op for run in chosen}]:
        theirs = listed([run.op for run in chosen])
        raise UserError(
            f"run {groups[0]} is of {theirs}, not of {listed(strangers)}", "leave the op out, or correct it"
        )
    return chosen


def one(store: Store, wished: str) -> Run:
    """A single run, where a campaign would not do."""
    prefixed = [run for run in store.find(Run) if wished and run.id.startswith(wished)]
    if len(prefixed) == 1:
        return prefixed[0]
    found = runs(store, wished)
    if len(found) > 1:
        raise UserError(
            f"`{wished}` names the runs over {len(found)} ops",
            f"choose one of: {_some([f'{run.id} ({run.op})' for run in found])}",
        )
    return found[0]


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")

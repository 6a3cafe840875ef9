"""Finds kernels, runs and ops by what is typed on the command line."""

from collections.abc import Sequence
from typing import NoReturn

import typer

from archive.kernel import Kernel
from archive.proposals import Proposal, Run
from archive.store import Store
from evolve.errors import UserError
from evolve.report.words import complain, idea, listed, one_line, short
from reference_ops.catalog import is_path

CANDIDATES_SHOWN = 8


def kernel(store: Store, prefix: str) -> Kernel:
    found = _matching(store, prefix)
    if isinstance(found, Proposal):
        raise UserError(
            f"{prefix} is a reply without a kernel",
            f"`evolve show {prefix}` says why; mend it and `evolve tell` it again",
        )
    return found


def kernel_or_reply(store: Store, prefix: str) -> Kernel | Proposal:
    """A kernel, or the proposal of a reply that holds none."""
    return _matching(store, prefix)


def absent(message: str, hint: str) -> NoReturn:
    """What was asked for does not exist: exit code 1."""
    complain(message, hint)
    raise typer.Exit(1)


def locator(op: str) -> str:
    """How other processes find an op: its name, or where its file lies."""
    from reference_ops import catalog

    catalog.locate(op)
    return catalog.lasting(op)


def op_name(op: str) -> str:
    """The name under which the archive knows an op; only a file has to be loaded for it."""
    if not is_path(op):
        return op
    from reference_ops import catalog

    return catalog.load(op).name


def _matching(store: Store, prefix: str) -> Kernel | Proposal:
    prefix = prefix.strip().lower()
    found: dict[str, Kernel | Proposal] = {k.id: k for k in store.find(Kernel) if k.id.startswith(prefix)}
    found |= {p.id: p for p in store.find(Proposal) if p.kernel is None and p.id.startswith(prefix)}
    if not found:
        absent(f"nothing in the archive begins with `{prefix}`", "`evolve top` lists the kernels that are alive")
    if len(found) > 1:
        candidates = [f"{short(content_id)} ({_described(record)})" for content_id, record in found.items()]
        more = f" and {len(found) - CANDIDATES_SHOWN} more" if len(found) > CANDIDATES_SHOWN else ""
        raise UserError(
            f"`{prefix}` is the beginning of {len(found)} ids",
            f"give more of it: {', '.join(candidates[:CANDIDATES_SHOWN])}{more}",
        )
    return next(iter(found.values()))


def _described(record: Kernel | Proposal) -> str:
    if isinstance(record, Kernel):
        return f"{record.op}: {one_line(idea(record), 40)}"
    return f"{record.op}: a reply without a kernel"


LAST = "last"
SHOWN = 6


def runs(store: Store, requested: str, ops: Sequence[str] = ()) -> list[Run]:
    """The run whose id begins so, or all of a campaign; `last` is the newest, of these ops if any are named."""
    names = [op_name(op) for op in ops]
    every = store.find(Run)
    if requested == LAST:
        found = [run for run in every if not names or run.op in names][-1:]
    else:
        found = [
            run for run in every if requested and (run.id.startswith(requested) or run.campaign.startswith(requested))
        ]
    groups = list(dict.fromkeys(run.campaign or run.id for run in found))
    if not groups:
        of = f" of {listed(names)}" if names and requested == LAST else ""
        what = f"there is no run{of} yet" if requested == LAST else f"no run's id begins with `{requested}`"
        raise UserError(what, "`evolve runs` lists the runs of the archive")
    if len(groups) > 1:
        raise UserError(f"`{requested}` is the beginning of {len(groups)} ids", f"give more of it: {_some(groups)}")
    chosen = [run for run in every if groups[0] in (run.campaign, run.id)]
    if strangers := [name for name in names if name not in {run.op for run in chosen}]:
        theirs = listed([run.op for run in chosen])
        raise UserError(
            f"run {groups[0]} is of {theirs}, not of {listed(strangers)}", "leave the op out, or correct it"
        )
    return chosen


def one(store: Store, requested: str) -> Run:
    """A single run, where a campaign would not do."""
    prefixed = [run for run in store.find(Run) if requested and run.id.startswith(requested)]
    if len(prefixed) == 1:
        return prefixed[0]
    found = runs(store, requested)
    if len(found) > 1:
        raise UserError(
            f"`{requested}` names the runs over {len(found)} ops",
            f"choose one of: {_some([f'{run.id} ({run.op})' for run in found])}",
        )
    return found[0]


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")

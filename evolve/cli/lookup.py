"""Lookup of kernels, runs and ops named on the command line."""

from collections.abc import Sequence
from typing import NoReturn

import typer

from archive.kernel import Kernel, Proposal
from archive.runs import Run
from archive.store import Store
from archive.summaries import KernelSummary, ProposalSummary
from evolve.errors import UserError
from evolve.report.words import complain, idea, listed, one_line, short, typed
from reference_ops.catalog import is_path

CANDIDATES_SHOWN = 8


def kernel(store: Store, prefix: str) -> Kernel:
    """Return the kernel whose id begins with `prefix`."""
    found = _matching(store, prefix)
    if isinstance(found, Proposal):
        raise UserError(
            f"{prefix} is a reply without a kernel",
            f"`evolve show {prefix}` prints the reason; correct the reply and give it to `evolve tell`",
        )
    return found


def kernel_or_reply(store: Store, prefix: str) -> Kernel | Proposal:
    """Return the kernel whose id begins with `prefix`, or the proposal of a reply without a kernel."""
    return _matching(store, prefix)


def absent(message: str, hint: str) -> NoReturn:
    """Print that something does not exist, and end with exit code 1."""
    complain(message, hint)
    raise typer.Exit(1)


def locator(op: str) -> str:
    """Return the locator by which other processes find an op: its name, or the path of its file."""
    from reference_ops import catalog

    catalog.locate(op)
    return catalog.lasting(op)


def how_to_name(store: Store, op: str, command: str) -> str:
    """Return a hint on how to name an op outside the catalog: as its last run did, if the archive has one.

    The command is only shown, because an archive may come from another machine, and loading a file executes it.
    """
    named = next((run.words[0] for run in reversed(store.find(Run, op)) if run.words and is_path(run.words[0])), "")
    return (
        f"name the op as its last run did: {command} {typed(named)}"
        if named
        else f"give the op's file: {command} FILE.py"
    )


def op_name(op: str) -> str:
    """Return the name of an op in the archive. The op is loaded only if it is defined in a file."""
    if not is_path(op):
        return op
    from evolve.engines import trial  # a listing must not import the engine

    return trial.load(op).name


def _matching(store: Store, prefix: str) -> Kernel | Proposal:
    prefix = prefix.strip().lower()
    kernels = [kernel.id for kernel in store.find(KernelSummary, prefix=prefix)]
    replies = [reply.id for reply in store.find(ProposalSummary, prefix=prefix, kernels=[""])]
    number = len(kernels) + len(replies)
    if not number:
        absent(f"no id in the archive begins with `{prefix}`", "`evolve top OP` lists the kernels that are alive")
    kernels = kernels[:CANDIDATES_SHOWN]
    replies = replies[: CANDIDATES_SHOWN - len(kernels)]
    found: list[Kernel | Proposal] = [*store.find(Kernel, ids=kernels), *store.find(Proposal, ids=replies)]
    if number > 1:
        candidates = ", ".join(f"{short(record.id)} ({_described(record)})" for record in found)
        more = f" and {number - CANDIDATES_SHOWN} more" if number > CANDIDATES_SHOWN else ""
        raise UserError(
            f"`{prefix}` is ambiguous: {number} ids begin with it", f"give more characters: {candidates}{more}"
        )
    return found[0]


def _described(record: Kernel | Proposal) -> str:
    if isinstance(record, Kernel):
        return f"{record.op}: {one_line(idea(record), 40)}"
    return f"{record.op}: a reply without a kernel"


LAST = "last"
SHOWN = 6


def runs(store: Store, requested: str, ops: Sequence[str] = ()) -> list[Run]:
    """Return the run whose id begins with `requested`, or all runs of a campaign.

    `last` means the newest run, or the newest run of `ops` if any are given.
    """
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
        raise UserError(
            f"`{requested}` is ambiguous: {len(groups)} ids begin with it", f"give more characters: {_some(groups)}"
        )
    chosen = [run for run in every if groups[0] in (run.campaign, run.id)]
    if others := [name for name in names if name not in {run.op for run in chosen}]:
        theirs = listed([run.op for run in chosen])
        raise UserError(f"run {groups[0]} evolves {theirs}, not {listed(others)}", "leave the op out, or correct it")
    return chosen


def one(store: Store, requested: str) -> Run:
    """Return the single run that is requested. A campaign over several ops is an error."""
    prefixed = store.find(Run, prefix=requested) if requested else []
    if len(prefixed) == 1:
        return prefixed[0]
    found = runs(store, requested)
    if len(found) > 1:
        raise UserError(
            f"`{requested}` names a campaign of {len(found)} runs",
            f"choose one of: {_some([f'{run.id} ({run.op})' for run in found])}",
        )
    return found[0]


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")

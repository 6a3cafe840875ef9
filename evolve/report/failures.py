"""Requests that gave no kernel: their number for each reason, and a list with the ids that `evolve show` accepts."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from archive.store import Store
from archive.summaries import ProposalSummary
from evolve.errors import kind_of
from evolve.report.tables import WIDE, fitted, plain_table
from evolve.report.words import counted, moment, one_line, short

REASONS_SHOWN, REASON_CHARACTERS = 3, 160
MOST_LISTED = 50
NARROW = 70  # number of columns below which only the reason and the id are shown


def reasons(failures: Iterable[str]) -> list[tuple[int, str]]:
    """Return the number of failures of each kind, most frequent first, with the newest message of each kind."""
    found: dict[str, tuple[int, str]] = {}
    for failure in failures:
        number, _ = found.get(kind_of(failure), (0, ""))
        found[kind_of(failure)] = number + 1, failure
    return sorted(found.values(), key=lambda one: -one[0])


def tally(found: Sequence[tuple[int, str]], characters: int = REASON_CHARACTERS) -> str:
    """Return text such as `4 x the request failed with status 500, 1 x the reply contains no kernel`."""
    shown = [f"{number} x {one_line(words, characters)}" for number, words in found[:REASONS_SHOWN]]
    if others := found[REASONS_SHOWN:]:
        shown.append(f"{sum(number for number, _ in others)} for {counted(len(others), 'other reason')}")
    return "; ".join(shown)


def failed_requests(store: Store, op: str = "", run: str = "") -> list[ProposalSummary]:
    """Return the requests that gave no kernel, oldest first."""
    found = store.find(ProposalSummary, op, kernels=[""])
    return [proposal for proposal in found if proposal.failure and run in ("", proposal.run)]


def failures_line(failed: Sequence[ProposalSummary], given: str = "") -> str:
    """Return a sentence that counts these requests by reason and names the command that lists them."""
    found = reasons(proposal.failure for proposal in failed)
    listing = f"`evolve top {failed[0].op} --failures{given}` lists them"
    return f"{counted(len(failed), 'request')} without a kernel: {tally(found)}; {listing}"


def failures_table(failed: Sequence[ProposalSummary], width: int) -> Table:
    """Return a table of these requests, newest first, with as much of the reasons as fits."""
    wide, narrow = width >= WIDE, width < NARROW
    of_run = [] if narrow else ["run", *(["op", "when"] if wide else []), "proposer", "operator"]
    table = plain_table("id", *of_run, "reason")
    for one in reversed(failed[-MOST_LISTED:]):
        cells = {
            "run": one.run,
            "op": one.op,
            "when": moment(one.created),
            "proposer": one_line(one.proposer, 24),
            "operator": one.operator,
        }
        row = [fitted(cells[name]) for name in of_run]
        table.add_row(fitted(short(one.id), "bold"), *row, fitted(one_line(one.failure), "dim"))
    return table

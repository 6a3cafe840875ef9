"""The main loop: evaluate pending kernels, request and archive new ones, and repeat; confirm the champions at the end.

Every event is archived before the next step begins. A loop that was killed continues where it stopped: proposals
without a verdict are evaluated first, and no step is done twice.
"""

import time
from collections.abc import Generator, Iterable
from itertools import chain
from typing import TypeVar

from archive.kernel import Proposal
from archive.records import Evaluation
from archive.store import Store
from evolve import budget
from evolve.budget import Ended, Spent
from evolve.confirm import Champions, confirm
from evolve.engines.engine import Engine, Job
from evolve.request import Bounded, Proposer
from evolve.search import Search
from evolve.selection import selection
from evolve.selection.view import OpView

Event = Proposal | Evaluation
E = TypeVar("E", Proposal, Evaluation)


def evolve(
    search: Search, seeds: Iterable[Proposal], proposer: Proposer, engine: Engine, store: Store
) -> Generator[Event, None, Ended]:
    """Yield each proposal and evaluation once it is archived, and return the reason why the run ended."""
    view, proposer = OpView(store, search.op.name, engine.info, search.scope), Bounded(proposer)
    spent, ended = Spent(), None
    with search.leg(store):
        view.ask_for(seed.kernel_id for seed in (yield from keep(seeds, store)))
        while not ended:
            spent, ended = yield from one_round(search, spent, proposer, engine, view)
            if ended is Ended.NOTHING and search.share.others_work(view, search.deadline):
                ended = search.over(view, spent)  # the verdicts of other runs may lead to new proposals
            if ended:
                yield from confirm([Champions(search.locator, view, search.share)], engine)
            if ended is Ended.LIGHT:  # continue if the champion that ended the search has failed its confirmation
                ended = search.over(view, spent)
    return ended


def one_round(
    search: Search, spent: Spent, proposer: Proposer, engine: Engine, view: OpView
) -> Generator[Event, None, tuple[Spent, Ended | None]]:
    """Evaluate pending kernels, request new ones and evaluate these.

    Return the cost, and the reason why the run is over.
    """
    spent = yield from settle(search, spent, engine, view)
    if ended := search.over(view, spent):
        return spent, ended
    request = search.request(view, spent)
    if search.profile(request, engine, view.store):
        request = search.request(view, spent)
    proposals = yield from keep(search.share.unproposed(view, request, proposer.propose(request)), view.store)
    spent = sum((budget.paid(proposal.cost) for proposal in proposals), spent)
    new = {proposal.kernel_id for proposal in proposals if proposal.kernel} - request.known
    # New kernels count when they are evaluated. Known kernels count now. Requests that gave no kernel do not count.
    spent += Spent(evals=sum(bool(proposal.kernel) for proposal in proposals) - len(new))
    spent = yield from settle(search, spent, engine, view)
    return spent, search.over(view, spent) or (None if proposals else Ended.NOTHING)


def settle(search: Search, spent: Spent, engine: Engine, view: OpView) -> Generator[Event, None, Spent]:
    """Evaluate kernels without a verdict, as far as the budget allows, and return the total spent."""
    share = search.share
    agenda = selection.agenda(view, share.free(view, view.pending())[: budget.left(search.budget, spent).evals])
    repeated = (verdict for verdict in agenda.repeated if share.take(view, verdict.kernel_id))
    jobs = (
        Job(kernel, search.locator, agenda.bars, kernel.id in agenda.settings, duplicates=agenda.duplicates)
        for kernel in agenda.new if time.monotonic() < search.deadline and share.take(view, kernel.id)
    )  # fmt: skip
    verdicts = yield from keep(share.judged(view, chain(repeated, engine.evaluate(jobs))), view.store)
    return spent + Spent(evals=len(verdicts))


def keep(records: Iterable[E], store: Store) -> Generator[E, None, list[E]]:
    """Archive and yield records as they arrive, and return all of them."""
    kept = []
    for record in records:
        store.append(record)
        kept.append(record)
        yield record
    return kept

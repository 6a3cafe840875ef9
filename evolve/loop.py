"""The main loop: evaluate pending kernels, request and archive new ones, and repeat; confirm the champions at the end.

Every event is archived before the next step begins. A loop that was killed continues where it stopped: proposals
without a verdict are evaluated first, and no step is done twice.
"""

import time
from collections.abc import Generator, Iterable
from typing import TypeVar

from archive.proposals import Proposal
from archive.records import Evaluation
from archive.store import Store
from evolve import budget
from evolve.budget import Ended, Spent
from evolve.engines.engine import Engine, Job
from evolve.request import Proposer, Request
from evolve.search import Search
from evolve.selection import selection
from evolve.selection.view import OpView

CONFIRMING_ROUNDS = 4  # if a champion fails, the next round confirms its successor

Event = Proposal | Evaluation
E = TypeVar("E", Proposal, Evaluation)


def evolve(
    search: Search, seeds: Iterable[Proposal], proposer: Proposer, engine: Engine, store: Store
) -> Generator[Event, None, Ended]:
    """Yield each proposal and evaluation once it is archived, and return the reason why the run ended."""
    view = OpView(store, search.op.name, engine.info, search.scope)
    spent, ended = Spent(), None
    with search.leg(store):
        view.ask_for(seed.kernel_id for seed in (yield from keep(seeds, store)))
        while not ended:
            spent, ended = yield from one_round(search, spent, proposer, engine, view)
            if ended:
                yield from confirm(search.locator, engine, view)
            if ended is Ended.LIGHT:  # go on if the fast champion has failed its confirmation
                ended = search.over(view, spent)
    return ended


def one_round(
    search: Search, spent: Spent, proposer: Proposer, engine: Engine, view: OpView
) -> Generator[Event, None, tuple[Spent, Ended | None]]:
    """Evaluate pending kernels, request new ones and evaluate these. Return what is spent, and why the run is over."""
    spent = yield from settle(search, spent, engine, view)
    if ended := search.over(view, spent):
        return spent, ended
    request = search.request(view, spent)
    if search.profiled and profile(search, request, engine, view.store):
        request = search.request(view, spent)
    proposals = yield from keep(proposer.propose(request), view.store)
    spent = sum((budget.paid(proposal.cost) for proposal in proposals), spent)
    new = {proposal.kernel_id for proposal in proposals if proposal.kernel} - request.known
    # New kernels count when they are evaluated, and requests without a reply not at all.
    spent += Spent(evals=sum(proposal.answered for proposal in proposals) - len(new))
    spent = yield from settle(search, spent, engine, view)
    return spent, search.over(view, spent) or (None if proposals else Ended.NOTHING)


def profile(search: Search, request: Request, engine: Engine, store: Store) -> int:
    """Profile unprofiled parents at the workload with the most to gain, and return the number of new profiles."""
    profiles = (engine.profile(kernel, search.locator, at) for kernel, at in selection.unprofiled(request))
    return store.append(*(profile for profile in profiles if profile))


def confirm(locator: str, engine: Engine, view: OpView) -> Generator[Evaluation, None, None]:
    """Test the champions again in fresh processes. This ignores the deadline, but the number of rounds is bounded."""
    for _ in range(CONFIRMING_ROUNDS):
        jobs = [Job(kernel, locator, confirm=True) for kernel in view.unconfirmed()]
        yield from keep(engine.evaluate(jobs), view.store)


def settle(search: Search, spent: Spent, engine: Engine, view: OpView) -> Generator[Event, None, Spent]:
    """Evaluate kernels without a verdict, as far as the budget allows, and return the total spent."""
    waiting = view.pending()[: budget.left(search.budget, spent).evals]
    agenda = selection.agenda(view, waiting)
    repeated = yield from keep(agenda.repeated, view.store)
    jobs = (
        Job(kernel, search.locator, agenda.bars, duplicates=agenda.duplicates)
        for kernel in agenda.new if time.monotonic() < search.deadline
    )  # fmt: skip
    evaluated = yield from keep(engine.evaluate(jobs), view.store)
    return spent + Spent(evals=len(repeated) + len(evaluated))


def keep(records: Iterable[E], store: Store) -> Generator[E, None, list[E]]:
    """Archive and yield records as they arrive, and return all of them."""
    kept = []
    for record in records:
        store.append(record)
        kept.append(record)
        yield record
    return kept

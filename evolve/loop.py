"""The story: judge what waits, ask for more, keep it, and again; in the end the champions are confirmed.

Everything that happened is in the archive before the next step begins. So a loop that was killed goes on
where it was: proposals without a verdict are evaluated first, and nothing is done twice.
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
from evolve.selection.selection import EVERYTHING, Scope

CONFIRMING_ROUNDS = 4  # where a champion falls, the next one is confirmed in its place

Event = Proposal | Evaluation
E = TypeVar("E", Proposal, Evaluation)


def evolve(
    search: Search, seeds: Iterable[Proposal], proposer: Proposer, engine: Engine, store: Store
) -> Generator[Event, None, Ended]:
    """Yield each proposal and each evaluation once it is safely in the archive; in the end, why it is the end."""
    spent, ended = Spent(), None
    with search.leg(store):
        yield from keep(seeds, store)
        while not ended:
            spent, ended = yield from one_round(search, spent, proposer, engine, store)
            if ended:
                yield from confirm(search.op.name, search.locator, engine, store, search.scope)
            if ended is Ended.LIGHT:  # unless the champion that was so fast has fallen
                ended = search.over(store, engine.info, spent)
    return ended


def one_round(
    search: Search, spent: Spent, proposer: Proposer, engine: Engine, store: Store
) -> Generator[Event, None, tuple[Spent, Ended | None]]:
    """Judge what waits, ask for more, judge that too; what is spent by then, and the reason if nothing may follow."""
    spent = yield from settle(search, spent, engine, store)
    if ended := search.over(store, engine.info, spent):
        return spent, ended
    request = search.request(spent, engine.info, store)
    if search.profiled and observe(search, request, engine, store):
        request = search.request(spent, engine.info, store)
    proposals = yield from keep(proposer.propose(request), store)
    spent = sum((budget.paid(proposal.cost) for proposal in proposals), spent)
    fresh = {proposal.kernel_id for proposal in proposals if proposal.kernel} - request.known
    spent += Spent(evals=len(proposals) - len(fresh))  # the fresh ones count when they are evaluated
    spent = yield from settle(search, spent, engine, store)
    return spent, search.over(store, engine.info, spent) or (None if proposals else Ended.NOTHING)


def observe(search: Search, request: Request, engine: Engine, store: Store) -> int:
    """Have the device's profiler count what parents do, where nobody has yet; how much was learned."""
    profiles = (engine.profile(kernel, search.locator, at) for kernel, at in selection.unprofiled(request))
    return store.append(*(profile for profile in profiles if profile))


def confirm(
    op: str, locator: str, engine: Engine, store: Store, scope: Scope = EVERYTHING
) -> Generator[Evaluation, None, None]:
    """Test the champions again, harder, in a fresh process each; also when the time is over, for it is bounded."""
    for _ in range(CONFIRMING_ROUNDS):
        champions = selection.unconfirmed(store, op, engine.info, scope)
        yield from keep(engine.evaluate(Job(kernel, locator, confirm=True) for kernel in champions), store)


def settle(search: Search, spent: Spent, engine: Engine, store: Store) -> Generator[Event, None, Spent]:
    """Judge what has no verdict on this device yet, as far as the budget goes; what is spent by then."""
    where = (store, search.op.name, engine.info, search.scope)
    agenda = selection.agenda(selection.pending(*where)[: budget.left(search.budget, spent).evals], *where)
    repeated = yield from keep(agenda.repeated, store)
    jobs = (
        Job(kernel, search.locator, agenda.bars, known=agenda.known)
        for kernel in agenda.new if time.monotonic() < search.deadline
    )  # fmt: skip
    judged = yield from keep(engine.evaluate(jobs), store)
    return spent + Spent(evals=len(repeated) + len(judged))


def keep(records: Iterable[E], store: Store) -> Generator[E, None, list[E]]:
    """Archive records as they come."""
    kept = []
    for record in records:
        store.append(record)
        kept.append(record)
        yield record
    return kept

"""From what was typed to what is going to be run: new runs, runs that go on, or one that is replayed."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from archive.proposals import Budget, Proposal, Run
from archive.store import Store
from evolve import budget, wiring
from evolve.cli import limits, lookup, resuming, wishes
from evolve.cli.options import op_names
from evolve.cli.wishes import Wishes
from evolve.errors import UserError
from evolve.report.words import listed


@dataclass(frozen=True)
class Plan:
    """The ops, how they are to be run, and for how much."""

    locators: tuple[str, ...]
    wishes: Wishes
    budget: Budget = field(default=Budget())  # in all, also what is spent already
    runs: tuple[Run, ...] = ()  # those that go on; none where new ones begin
    given: Budget = field(default=Budget())  # what raises the budget of those


def new(ops: Sequence[str], typed: Wishes, given: Budget, *, every: bool) -> Plan:
    if ops and every:
        raise UserError("--all takes every op of the catalog, so no OP can be named", "leave out --all, or the OP")
    if not ops and not every:
        raise UserError("which OP is to be evolved?", "`evolve ops` lists the catalog; --all takes every one")
    return Plan(tuple(dict.fromkeys(ops or op_names())), typed, given)


def resumed(wished: str, ops: Sequence[str], typed: Wishes, given: Budget, archive: Path | None) -> Plan:
    """With what is left of its budget; what is given now raises that."""
    with closing(wiring.archive(archive, read_only=True)) as store:
        found = resuming.runs(store, wished, ops)
    for run in found:
        wishes.check_same(run, typed)
    first = found[0]
    named = {lookup.op_name(op): op for op in ops}
    if named and len(named) < len(found):
        raise UserError(
            f"`{wished}` is of campaign {first.campaign} over {len(found)} ops, which share one budget; "
            f"it does not go on with {listed(list(named))} alone",
            f"leave the op out to go on with all: --resume {first.campaign}; or begin a run of it, without --resume",
        )
    locators = tuple(named.get(run.op, wishes.locator(run)) for run in found)
    return Plan(locators, wishes.recorded(first), limits.raised(first.budget, given), tuple(found), given)


def replayed(ops: Sequence[str], typed: Wishes, given: Budget, archive: Path | None) -> Plan:
    """As a recorded run was started, with as many evaluations; only the answers come from the archive."""
    with closing(wiring.archive(archive, read_only=True)) as store:
        run = resuming.one(store, typed.replay)
        resuming.runs(store, run.id, ops)  # complains about another op
        evals = _evaluations(store, run)
    before = wishes.recorded(run)
    wanted = replace(
        before,
        device=typed.device,
        replay=run.id,
        fresh=typed.fresh or before.fresh,
        no_tune=typed.no_tune or before.no_tune,
        no_seeds=typed.no_seeds or before.no_seeds,
        strategy=typed.strategy or before.strategy,
        seed=before.seed if typed.seed is None else typed.seed,
    )
    return Plan(tuple(ops) or (wishes.locator(run),), wanted, limits.raised(Budget(evals=evals), given))


def _evaluations(store: Store, run: Run) -> int:
    if not any(proposal.run == run.id and proposal.reply for proposal in store.find(Proposal, run.op)):
        raise UserError(
            f"run {run.id} asked no model, so there is nothing to replay", "`evolve runs` names the proposers"
        )
    return max(1, budget.spent(run.id, budget.history(store, run.op, run.device)).evals)

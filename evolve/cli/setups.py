"""Setups: the ops, options and budget of runs that start, resume or are replayed, from command-line options."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from archive.kernel import Proposal
from archive.runs import STRATEGIES, Budget, Run
from archive.store import Store
from evolve import budget, wiring
from evolve.cli import lookup, options
from evolve.cli.options import LLM, OFFLINE, RunOptions, op_names
from evolve.errors import UserError
from evolve.report.words import listed, typed
from evolve.search import GENERATION


@dataclass(frozen=True)
class Setup:
    """The ops, options and budget of runs that start or resume, before ops are loaded and workers started."""

    locators: tuple[str, ...]
    run_options: RunOptions
    budget: Budget = field(default=Budget())  # total, including what earlier legs spent
    runs: tuple[Run, ...] = ()  # the runs to resume; empty for new runs
    given: Budget = field(default=Budget())  # limits given on the command line of a resumed run


def new(ops: Sequence[str], given: RunOptions, limits: Budget, *, every: bool) -> Setup:
    """Set up a new run per op, or per op of the catalog."""
    if ops and every:
        raise UserError(f"--all runs every op of the catalog, got also {listed(ops)}", "leave out --all, or the ops")
    if not ops and not every:
        raise UserError("no OP was given", "name one or more ops, such as softmax; `evolve ops` lists them")
    return Setup(tuple(dict.fromkeys(ops or op_names())), given, limits)


def resumed(requested: str, ops: Sequence[str], given: RunOptions, limits: Budget, archive: Path | None) -> Setup:
    """Set up a recorded run or campaign to continue with the rest of its budget; `limits` replace the recorded ones."""
    with closing(wiring.archive(archive, read_only=True)) as store:
        found = lookup.runs(store, requested, ops)
    for run in found:
        options.check_unchanged(run, given)
    first = found[0]
    if source := options.recorded(first).replay:
        raise UserError(
            f"run {first.id} replays run {source}, and a replay cannot be continued where it stopped",
            f"replay it again: evolve run {typed(options.locator(first))} --replay {source}",
        )
    named = {lookup.op_name(op): op for op in ops}
    if named and len(named) < len({run.op for run in found}):
        raise UserError(
            f"campaign {first.campaign} shares one budget among {len({run.op for run in found})} ops, "
            f"so it cannot resume with {listed(list(named))} alone",
            f"leave out the ops to resume all of it: --resume {first.campaign}; or start a new run without --resume",
        )
    locators = tuple(named.get(run.op, options.locator(run)) for run in found)
    proposer = OFFLINE if first.proposer == OFFLINE else LLM  # not the proposer that the environment would choose now
    run_options = replace(options.recorded(first), machines=given.machines, proposer=proposer)
    return Setup(locators, run_options, options.with_limits(first.budget, limits), tuple(found), limits)


def replayed(ops: Sequence[str], given: RunOptions, limits: Budget, archive: Path | None) -> Setup:
    """Set up a replay of a recorded run: same options and number of proposals, with answers from the archive."""
    with closing(wiring.archive(archive, read_only=True)) as store:
        run = lookup.one(store, given.replay)
        lookup.runs(store, run.id, ops)  # raises an error if the run is one of another op
        evals = _evaluations(store, run)
    before = options.recorded(run)
    run_options = replace(
        before,
        device=given.device,
        machines=given.machines,
        replay=run.id,
        fresh=given.fresh or before.fresh,
        no_tune=given.no_tune or before.no_tune,
        no_seeds=given.no_seeds or before.no_seeds,
        no_champions=given.no_champions or before.no_champions,
        strategy=given.strategy or before.strategy,
        seed=before.seed if given.seed is None else given.seed,
    )
    # With more evaluations left, a replay would request more kernels at once than the run did; with fewer, it would end
    # earlier.
    asked = replace(limits, evals=evals if limits.evals is None else min(limits.evals, evals))
    return Setup(tuple(ops) or (options.locator(run),), run_options, options.with_limits(Budget(), asked))


def _evaluations(store: Store, run: Run) -> int:
    if not any(proposal.reply for proposal in store.find(Proposal, run=run.id)):
        raise UserError(
            f"run {run.id} has no model answers to replay",
            "choose a run with a model as its proposer; `evolve runs` shows the proposers",
        )
    spent = budget.spent(run.id, budget.history(store, run.op, run.device)).evals
    # The number of evaluations that are left determines how many proposals are requested at once.
    return max(run.budget.evals, spent) if run.budget.evals else spent + 2 * GENERATION


def check_strategy(strategy: str) -> None:
    if strategy and strategy not in STRATEGIES:
        raise UserError(f"unknown strategy `{strategy}`", f"choose one of: {', '.join(STRATEGIES)}")

"""A certain question, as a person wants it: this operator, applied to these kernels."""

import random
from collections.abc import Sequence

from archive.kernel import Kernel
from archive.records import Evaluation, Profile
from archive.store import Store
from evolve.cli import lookup
from evolve.errors import UserError
from evolve.prompting.compose import CROSSOVER, EXPLORE, IMPROVE, OPERATORS, PARENTS, PORT, REPAIR, SPECIALISE
from evolve.proposers.llm import openings
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.questions import Ask, asked
from evolve.proposers.llm.reference_text import reference_source
from evolve.report.words import counted, short
from evolve.request import Candidate, Request
from evolve.selection import population

NONE_ALIVE = "no kernel of {op} is alive on {device}"
START = "`evolve run {op}` finds some; a draft needs none: --operator draft"
LACKING = {
    IMPROVE: (NONE_ALIVE, START),
    EXPLORE: (NONE_ALIVE, START),
    CROSSOVER: ("fewer than two designs of {op} are alive on {device}", START),
    REPAIR: ("nothing of {op} waits for repair on {device}", "--parent names any kernel that failed"),
    SPECIALISE: (
        "no two workloads of {op} have been timed on {device}, so there is none to specialise for",
        "--parent names a kernel to begin from all the same",
    ),
    PORT: (
        "no other op has a champion on {device} whose idea could be taken over",
        "--parent names any kernel that passed, also one of this op to take to another dtype",
    ),
}


def check_operator(operator: str, prefixes: Sequence[str]) -> None:
    """Raise for what can be told without looking anything up."""
    if not operator:
        if prefixes:
            raise UserError("--parent needs to know what to do with it", f"add --operator {IMPROVE}, or another")
        return
    if operator not in OPERATORS:
        raise UserError(f"there is no operator `{operator}`", f"choose one of: {', '.join(OPERATORS)}")
    if prefixes and len(prefixes) != PARENTS[operator]:
        takes = counted(PARENTS[operator], "kernel") if PARENTS[operator] else "no kernel"
        hint = (
            f"give --parent {PARENTS[operator]} times, or leave it out" if PARENTS[operator] else "leave --parent out"
        )
        raise UserError(f"the operator {operator} is applied to {takes}, not to {len(prefixes)}", hint)


def questions(
    request: Request, models: Sequence[Model], operator: str, prefixes: Sequence[str], store: Store
) -> tuple[Ask, ...]:
    """As many as the request wants, applied to the kernels named, or else to those that lend themselves in turn."""
    named = _named(request, operator, prefixes, store)
    if not named and operator not in openings.operators(request):
        message, hint = LACKING[operator]
        words = {"op": request.op.name, "device": request.device.name}
        raise UserError(message.format(**words), hint.format(**words))
    rng, source = random.Random(request.seed), reference_source(request.op)
    found = []
    for turn in range(request.wanted):
        parents = named or openings.parents(request, operator, turn, rng)
        found.append(asked(request, models[turn % len(models)], operator, parents, source, turn))
    return tuple(found)


def _named(request: Request, operator: str, prefixes: Sequence[str], store: Store) -> tuple[Candidate, ...]:
    kernels = [lookup.kernel(store, prefix) for prefix in prefixes]
    if len({kernel.id for kernel in kernels}) < len(kernels):
        raise UserError("both parents are the same kernel", "name two different ones, or leave --parent out")
    for kernel in kernels:
        if kernel.op != request.op.name and operator != PORT:
            raise UserError(
                f"{short(kernel.id)} is a kernel of {kernel.op}, not of {request.op.name}",
                f"--operator {PORT} takes an idea over from another op",
            )
    candidates = tuple(_candidate(kernel, request, store) for kernel in kernels)
    for candidate in candidates:
        _check_fits(candidate, operator)
    return candidates


def _candidate(kernel: Kernel, request: Request, store: Store) -> Candidate:
    """The kernel with all that the archive knows of it on this device."""
    device = request.device
    verdict = population.latest(store.find(Evaluation, kernel.op), device.key).get(kernel.id)
    if verdict is None:
        raise UserError(
            f"{short(kernel.id)} was never evaluated on {device.name}",
            f"`evolve evaluate {kernel.op}` does that there, --device asks for another device of the archive",
        )
    profiles = {
        p.workload: p for p in store.find(Profile, kernel.op) if (p.kernel_id, p.device) == (kernel.id, device.key)
    }
    return Candidate(kernel, verdict, tuple(profiles.values()))


def _check_fits(candidate: Candidate, operator: str) -> None:
    name, evaluation = short(candidate.kernel.id), candidate.evaluation
    if evaluation.passed and operator == REPAIR:
        raise UserError(f"{name} passed: there is nothing to repair", f"use --operator {IMPROVE}")
    if not evaluation.passed and operator != REPAIR:
        raise UserError(f"{name} failed: {evaluation.outcome}", f"use --operator {REPAIR}")

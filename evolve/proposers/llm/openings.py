"""Which operators a situation allows, and what each is applied to."""

import random
from collections.abc import Sequence
from typing import TypeVar

from evolve.prompting.compose import CROSSOVER, DRAFT, EXPLORE, IMPROVE, PORT, REPAIR, SPECIALISE
from evolve.prompting.kernel_sections import weakest_workload
from evolve.request import Candidate, Request

T = TypeVar("T")


def operators(request: Request) -> tuple[str, ...]:
    """All that apply. Where nothing is known yet, and nothing is shown, only a draft does."""
    alive = bool(request.population)
    applies = {
        DRAFT: True,
        IMPROVE: bool(_parents(request)),
        EXPLORE: alive,
        CROSSOVER: bool(_pairs(request)),
        REPAIR: bool(request.failures),
        SPECIALISE: len({m.workload for c in request.population for m in c.evaluation.measurements}) > 1,
        PORT: alive and bool(request.donors),
    }
    return tuple(operator for operator, possible in applies.items() if possible)


def most(request: Request) -> dict[str, int]:
    """How many of a request's questions may use an operator, where that is bounded: repairs, each failure once."""
    return {REPAIR: min(len(request.failures), max(request.wanted // 2, 1))}


def parents(request: Request, operator: str, turn: int, rng: random.Random) -> tuple[Candidate, ...]:
    """What an operator is applied to when it has its nth turn in a request."""
    if operator == CROSSOVER:
        first, others = _nth(_pairs(request), turn)
        return first, rng.choice(others)
    if operator == SPECIALISE:
        return (_leader(request),)
    candidates = {IMPROVE: _parents(request), REPAIR: request.failures, PORT: request.donors}.get(operator, ())
    return (_nth(candidates, turn),) if candidates else ()


def _parents(request: Request) -> Sequence[Candidate]:
    return request.parents or request.population


def _pairs(request: Request) -> list[tuple[Candidate, list[Candidate]]]:
    """Every parent with the kernels of other designs: two settings of one design have nothing to give each other."""
    found = []
    for parent in _parents(request):
        others = [other for other in request.population if other.kernel.family != parent.kernel.family]
        if others:
            found.append((parent, others))
    return found


def _leader(request: Request) -> Candidate:
    """The champion of the workload where the population is weakest; where nobody runs that, the fittest."""
    weak, _ = weakest_workload(request)
    times = [
        (measurement.median_us, place)
        for place, candidate in enumerate(request.population)
        for measurement in candidate.evaluation.measurements
        if measurement.workload == weak
    ]
    return request.population[min(times)[1] if times else 0]


def _nth(found: Sequence[T], turn: int) -> T:
    return found[turn % len(found)]

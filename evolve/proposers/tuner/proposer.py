"""The offline proposer: the knob tuner, used alone or on kernels that a language model wrote."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from archive.library import shipped
from archive.proposals import Proposal
from evolve.proposers.tuner.acquisition import all_candidates, best_measurements, families, points, space_for
from evolve.proposers.tuner.choose import choices
from evolve.request import Proposer, Request


@dataclass(frozen=True)
class OfflineProposer:
    """A proposer of the settings with the highest expected improvement over all workloads. It needs no model.

    Its operators: `knobs` spreads settings over an unexplored family, `tune` follows the model of a family, and
    `crossover` transfers the fastest setting of another family.
    """

    name: str = "offline"

    def propose(self, request: Request) -> Iterator[Proposal]:
        """Yield settings of all families, or none if every setting has been tried."""
        yield from self.tune(request, None)

    def tune(self, request: Request, most: Mapping[str, int] | None) -> Iterator[Proposal]:
        """Yield at most `most[family]` settings of each family in `most`, or settings of all families if it is None."""
        for choice in choices(request, most):
            yield Proposal(
                op=request.op.name,
                operator=choice.operator,
                proposer=self.name,
                kernel=choice.kernel,
                parents=tuple(dict.fromkeys(parent.kernel_id for parent in choice.parents)),
                run=request.run,
                created=time.time(),
            )


CLOSE = math.log(1.5)  # families this close to a champion on some workload are tuned
MIN_TUNED, MAX_TUNED = 4, 24  # limits on the settings tried in one family
SHARE_TUNED = 10  # one in this many settings of the space is tried


class Tuner(Protocol):
    def tune(self, request: Request, most: Mapping[str, int] | None) -> Iterator[Proposal]:
        """Yield at most `most[family]` settings of each family in `most`, or settings of all families if it is None."""


@dataclass(frozen=True)
class FinishingProposer:
    """A proposer that first tunes the models' kernels, and asks the models once none is left to tune."""

    models: Proposer
    tuner: Tuner

    @property
    def name(self) -> str:
        return self.models.name

    def propose(self, request: Request) -> Iterator[Proposal]:
        waiting = unfinished(request)
        tuned = list(self.tuner.tune(request, waiting)) if waiting else []
        yield from tuned or self.models.propose(request)


def unfinished(request: Request) -> dict[str, int]:
    """Return how many settings to try of each family that is close to a champion, except shipped families."""
    tuned_before = _shipped(request.op.name)
    best = best_measurements(all_candidates(request))
    at = points(request)
    waiting = {}
    for family in families(request):
        tuned = len(set(family.settings)) - 1
        if family.id in tuned_before or tuned >= MAX_TUNED or family.gap(best) > CLOSE:
            continue
        others = len(space_for(family, at).settings) - 1
        if (left := min(MAX_TUNED, max(MIN_TUNED, others // SHARE_TUNED), others) - tuned) > 0:
            waiting[family.id] = left
    return waiting


@lru_cache(maxsize=64)
def _shipped(op: str) -> frozenset[str]:
    """Return the shipped families, which were tuned before they were shipped."""
    return frozenset(kernel.family for kernel in shipped(op))

"""The knob tuner as a proposer, alone or for kernels that a language model wrote."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from archive.library import shipped
from archive.proposals import Proposal
from evolve.proposers.tuner.choose import choices
from evolve.proposers.tuner.outlook import bars, everyone, families, points, space_for
from evolve.request import Proposer, Request


@dataclass(frozen=True)
class OfflineProposer:
    """Tries the settings from which most is expected, on all workloads together; everything follows from the request.

    The operators: `knobs` spreads out over a family of which little is known, `tune` follows what was learned of it,
    `crossover` carries over the fastest setting of another family.
    """

    name: str = "offline"

    def propose(self, request: Request) -> Iterator[Proposal]:
        """Of every family; none when nothing is left to try."""
        yield from self.tune(request, None)

    def tune(self, request: Request, most: Mapping[str, int] | None) -> Iterator[Proposal]:
        """At most so many settings of each of these families, and nothing else."""
        for choice in choices(request, most):
            yield Proposal(
                op=request.op.name,
                operator=choice.operator,
                proposer=self.name,
                kernel=choice.kernel,
                parents=tuple(dict.fromkeys(parent.kernel.id for parent in choice.parents)),
                run=request.run,
                created=time.time(),
            )


CLOSE = math.log(1.5)  # to the champion's time on some workload: worth finishing
LEAST_TUNED, MOST_TUNED = 4, 24  # settings of one family
SHARE_TUNED = 10  # one setting in so many of its space


class Tuner(Protocol):
    def tune(self, request: Request, most: Mapping[str, int] | None) -> Iterator[Proposal]:
        """At most so many settings of each of these families, and nothing else."""


@dataclass(frozen=True)
class FinishingProposer:
    """Asks the models only when none of their kernels waits to be tuned."""

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
    """The families close to a champion that did not come with the package, and how many settings each may still try."""
    ours = _shipped(request.op.name)
    times = bars(everyone(request))
    places = points(request)
    waiting = {}
    for family in families(request):
        tuned = len(set(family.settings)) - 1
        if family.id in ours or tuned >= MOST_TUNED or family.behind(times) > CLOSE:
            continue
        others = len(space_for(family, places).settings) - 1
        if (left := min(MOST_TUNED, max(LEAST_TUNED, others // SHARE_TUNED), others) - tuned) > 0:
            waiting[family.id] = left
    return waiting


@lru_cache(maxsize=64)
def _shipped(op: str) -> frozenset[str]:
    """The families whose written settings were found by measuring."""
    return frozenset(kernel.family for kernel in shipped(op))

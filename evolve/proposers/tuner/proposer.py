"""Evolution without a language model: a tuner over the knobs of the kernels that are alive."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from archive.proposals import Proposal
from evolve.proposers.tuner.choose import choices
from evolve.request import Request


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

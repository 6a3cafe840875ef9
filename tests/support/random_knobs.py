"""The proposer from CONTRIBUTING's recipe: it sets the parents' knobs at random."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from archive.kernel import Proposal
from evolve.request import Request


@dataclass(frozen=True)
class RandomKnobs:
    """Proposer of parents with other knob values, drawn with the seed of the request."""

    name: str = "random"

    def propose(self, request: Request) -> Iterator[Proposal]:
        children = {}
        for parent in (candidate.kernel for candidate in request.parents):
            names = [name for name, _ in parent.plan.knobs]
            for values in itertools.product(*(values for _, values in parent.plan.knobs)):
                child = parent.with_knobs(dict(zip(names, values, strict=True)))
                if child.id not in request.known:
                    children[child] = parent
        for child in random.Random(request.seed).sample(list(children), min(request.wanted, len(children))):
            yield Proposal(request.op.name, "random", self.name, child, (children[child].id,), request.run)

"""Evolution without a language model: other knob settings of kernels that are alive, and settings carried across."""

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from archive.binding import IllegalError, accepts, bind
from archive.kernel import Kernel
from archive.plan import PlanError
from archive.proposals import Proposal
from evolve.points import point
from evolve.population import champions
from evolve.proposers.proposer import Candidate, Request

DRAWS = 200  # before a generation settles for fewer proposals than it was asked for
MOST_SETTINGS = 20_000  # of one kernel, when everything that is left is listed


@dataclass(frozen=True)
class OfflineProposer:
    """Varies knobs, crosses settings between kernels that share knobs, and tunes each workload's champion."""

    name: str = "offline"

    def propose(self, request: Request) -> Iterator[Proposal]:
        rng = random.Random(request.seed)
        seen = set(request.known)
        tunable = [candidate for candidate in request.population if candidate.kernel.plan.knobs]
        offered = 0
        for child in itertools.chain(_drawn(request, tunable, rng), _left(tunable, rng)):
            kernel, operator, parents = child
            if offered == request.wanted:
                return
            if kernel.id not in seen and _legal(kernel, request):
                seen.add(kernel.id)
                offered += 1
                yield Proposal(
                    op=request.op.name,
                    operator=operator,
                    proposer=self.name,
                    kernel=kernel,
                    parents=tuple(parent.kernel.id for parent in parents),
                    run=request.run,
                    created=time.time(),
                )


Child = tuple[Kernel, str, tuple[Candidate, ...]]


def _drawn(request: Request, tunable: Sequence[Candidate], rng: random.Random) -> Iterator[Child]:
    """Children by the three operators in turn, at random."""
    if not tunable:
        return
    parents = [candidate for candidate in request.parents if candidate.kernel.plan.knobs] or tunable
    operators: list[Callable[[], Child | None]] = [
        lambda: _tuned(tunable, rng),
        lambda: _varied(rng.choice(parents), rng),
        lambda: _crossed(rng.choice(parents), tunable, rng),
    ]
    for draw in range(DRAWS):
        if child := operators[draw % len(operators)]():
            yield child


def _left(tunable: Sequence[Candidate], rng: random.Random) -> Iterator[Child]:
    """Every setting of the kernels alive, for when chance finds nothing new any more."""
    for candidate in tunable:
        names = [name for name, _ in candidate.kernel.plan.knobs]
        every = itertools.product(*(values for _, values in candidate.kernel.plan.knobs))
        settings = list(itertools.islice(every, MOST_SETTINGS))
        rng.shuffle(settings)
        for values in settings:
            yield candidate.kernel.with_knobs(dict(zip(names, values, strict=True))), "knobs", (candidate,)


def _varied(parent: Candidate, rng: random.Random) -> Child:
    """A few knobs of a kernel set anew."""
    knobs = parent.kernel.plan.knobs
    chosen = rng.sample(knobs, rng.randint(1, min(2, len(knobs))))
    return parent.kernel.with_knobs({name: rng.choice(values) for name, values in chosen}), "knobs", (parent,)


def _tuned(tunable: Sequence[Candidate], rng: random.Random) -> Child | None:
    """One step of one knob from the champion of some workload."""
    winners = {champion.kernel_id for champion in champions([c.evaluation for c in tunable])}
    leaders = [candidate for candidate in tunable if candidate.kernel.id in winners]
    if not leaders:
        return None
    leader = rng.choice(leaders)
    name, values = rng.choice(leader.kernel.plan.knobs)
    ordered = sorted(values)
    at = ordered.index(values[0])
    step = ordered[max(0, min(len(ordered) - 1, at + rng.choice((-1, 1))))]
    return leader.kernel.with_knobs({name: step}), "tune", (leader,)


def _crossed(parent: Candidate, tunable: Sequence[Candidate], rng: random.Random) -> Child | None:
    """A kernel with the settings of another one, for the knobs that both have."""
    ours = dict(parent.kernel.plan.knobs)
    donors = [c for c in tunable if c.kernel.id != parent.kernel.id and ours.keys() & c.kernel.plan.settings.keys()]
    if not donors:
        return None
    donor = rng.choice(donors)
    carried = {name: value for name, value in donor.kernel.plan.settings.items() if value in ours.get(name, ())}
    kept = {name: value for name, value in carried.items() if rng.random() < 0.75}
    return parent.kernel.with_knobs(kept), "crossover", (parent, donor)


def _legal(kernel: Kernel, request: Request) -> bool:
    """Whether the setting is within its own rules and the hardware's on some workload."""
    for workload in request.op.workloads(request.device.kind):
        place = point(request.op, workload, request.device)
        try:
            if accepts(kernel, place):
                bind(kernel, place)
                return True
        except (IllegalError, PlanError):
            continue
    return False

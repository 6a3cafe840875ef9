"""Populations that evolve apart for a while, so that a long run does not follow its first good idea alone."""

from collections.abc import Iterable, Mapping, Sequence

from archive.proposals import Proposal
from archive.records import Evaluation
from evolve.selection.population import survivors

HOMES = 4
DESIGNS_PER_ISLAND = 16  # fewer designs than that are better off together


def homes(proposals: Iterable[Proposal]) -> dict[str, int]:
    """Where each kernel lives: with its first parent; who has none settles where the last newcomer did not."""
    lives: dict[str, int] = {}
    newcomers = 0
    for proposal in proposals:
        if not proposal.kernel or proposal.kernel_id in lives:
            continue
        parent = next((parent for parent in proposal.parents if parent in lives), None)
        if parent is None:
            lives[proposal.kernel_id] = newcomers % HOMES
            newcomers += 1
        else:
            lives[proposal.kernel_id] = lives[parent]
    return lives


def number(designs: int) -> int:
    """How many islands a population of so many designs (kernels that differ in more than their knobs) is worth."""
    return max(1, min(HOMES, designs // DESIGNS_PER_ISLAND))


def inhabitants(
    verdicts: Sequence[Evaluation], lives: Mapping[str, int], island: int, islands: int
) -> tuple[Evaluation, ...]:
    """The survivors of one island, and as an immigrant the fittest of the next one."""
    apart: list[list[Evaluation]] = [[] for _ in range(islands)]
    for verdict in verdicts:
        apart[lives.get(verdict.kernel_id, 0) % islands].append(verdict)
    natives = survivors(apart[island])
    immigrants = survivors(apart[(island + 1) % islands])[:1] if islands > 1 else ()
    return survivors([*natives, *immigrants])

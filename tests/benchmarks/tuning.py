"""Benchmark of the offline tuner: evaluations that it and random search need. Run this file with Python.

Without files it uses the synthetic landscapes of tests/support, which were not measured on a GPU.
"""

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from landscapes import Landscape, Setting, read, request, searched, shuffled  # noqa: E402
from made_up_gpu import landscape  # noqa: E402
from synthetic_landscapes import SKETCHES  # noqa: E402

from evolve.proposers.tuner.proposer import OfflineProposer  # noqa: E402
from evolve.proposers.tuner.space import with_setting  # noqa: E402

NEAR, AT_MOST = 1.05, 0.1  # a multiple of the optimum's time; a share of the space
WIDE, MANY = "made_up_wide", 500  # a landscape, and how many of its settings are known
PATIENCE = 0.4  # share of the space after which a search counts as failed


@dataclass(frozen=True)
class Row:
    """The results of all seeds on one landscape."""

    name: str
    points: int
    needed: tuple[int, ...]
    by_chance: tuple[int, ...]

    def __str__(self) -> str:
        median, late = statistics.median(self.needed), statistics.quantiles(self.needed, n=10)[-1]
        chance = statistics.median(self.by_chance)
        verdict = "" if median <= AT_MOST * self.points else "  OVER"
        return (
            f"{self.name[:60]:60} {self.points:5} points  median {median:6.1f} ({median / self.points:6.1%})  "
            f"90th {late:6.1f}  random {chance:6.1f}{verdict}"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="*", type=Path)
    options.add_argument("--seeds", type=int, default=50)
    options.add_argument("--wanted", type=int, default=8)
    options.add_argument("--overall", action="store_true", help="leave out the landscapes of single workloads")
    options.add_argument("--only", default="", help="use only landscapes with this in their names")
    requested = options.parse_args()
    made = map(read, requested.files) if requested.files else map(landscape, SKETCHES)
    ratios = []
    for whole in (found for found in made if requested.only in found.name):
        singles = () if requested.overall else whole.singles
        for one in [whole, *(singles if len(singles) > 1 else [])]:
            row = _row(one, requested.seeds, requested.wanted)
            ratios.append(statistics.median(row.needed) / (AT_MOST * row.points))
            print(row, flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"a request after {MANY} evaluations: {_request_seconds():.2f} s of CPU")
    print(f"of the evaluations allowed: {mean:.2f} in the geometric mean, {max(ratios):.2f} at most")


def _request_seconds() -> float:
    """Return the time that the tuner takes to propose once it knows many settings, with cached bindings."""
    one = next(landscape(sketch) for sketch in SKETCHES if sketch.name == WIDE).alone(0)
    settings = itertools.islice(shuffled(one, 1), MANY)
    tried = [one.candidate(with_setting(one.kernel, setting), number) for number, setting in enumerate(settings)]
    asked = request(one, tried, 8, 1)
    list(OfflineProposer().propose(asked))
    started = time.process_time()
    list(OfflineProposer().propose(asked))
    return time.process_time() - started


def _row(one: Landscape, seeds: int, wanted: int) -> Row:
    most = max(8, round(PATIENCE * len(one.results)))
    tuned = tuple(_needed(one, itertools.islice(searched(one, seed, wanted), most)) for seed in range(seeds))
    chance = tuple(_needed(one, shuffled(one, seed)) for seed in range(20 * seeds))
    return Row(one.name, len(one.results), tuned, chance)


def _needed(one: Landscape, order: Iterator[Setting]) -> int:
    """Return the evaluations until the best times are near the optimum, or the size of the space if they never are."""
    return one.needed(order, NEAR) or len(one.results)


if __name__ == "__main__":
    main()

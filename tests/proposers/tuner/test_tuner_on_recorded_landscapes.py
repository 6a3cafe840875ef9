"""The tuner on landscapes that were measured on a GPU, setting by setting."""

import itertools
import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from landscapes import Landscape, read, searched, shuffled

FILES = sorted((Path(__file__).parents[2] / "data" / "landscapes").glob("*.jsonl"))
SEEDS, NEAR = 50, 1.05
FEWER_SEEDS = 10
SOON = 4  # number of evaluations; shorter searches succeed only by luck
each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def from_anywhere(one: Landscape, seed: int) -> Landscape:
    """Return the landscape with a random start, because the shipped settings are already good."""
    served = [setting for setting, result in one.results.items() if result.times_us]
    names = [name for name, _ in one.kernel.plan.knobs]
    written = random.Random(seed).choice(served)
    return replace(one, kernel=one.kernel.with_knobs(dict(zip(names, written, strict=True))))


def tuned(one: Landscape, seed: int) -> int:
    """Return the number of evaluations until the best times are near the optimum."""
    most = len(one.results) // 3
    return one.needed(itertools.islice(searched(one, seed, 8), most), NEAR) or len(one.results)


def by_chance(one: Landscape, seed: int) -> int:
    return one.needed(shuffled(one, seed), NEAR) or len(one.results)


@each
def test_a_landscape_has_hundreds_of_settings_measured_on_a_gpu(file: Path) -> None:
    one = read(file)
    assert one.device.kind == "cuda"
    assert len(one.results) >= 150


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=[] if "long_rows" in file.stem else pytest.mark.exhaustive, id=file.stem)
        for file in FILES
    ],
)
def test_the_tuner_needs_a_tenth_of_the_space_from_a_random_start(file: Path) -> None:
    start = from_anywhere(read(file), 1)
    assert statistics.median(tuned(start, seed) for seed in range(SEEDS)) <= len(start.results) / 10


@pytest.mark.exhaustive
@each
def test_the_tuner_needs_a_tenth_of_the_space_and_beats_random_search_on_every_workload(file: Path) -> None:
    whole = read(file)
    for one in (whole, *whole.singles):
        ours = statistics.median(tuned(one, seed) for seed in range(SEEDS))
        chances = statistics.median(by_chance(one, seed) for seed in range(10 * SEEDS))
        assert ours <= len(one.results) / 10, one.name
        assert ours < max(chances, SOON), one.name


@pytest.mark.exhaustive
def test_from_random_starts_the_tuner_needs_fewer_evaluations_than_random_search() -> None:
    ours, chances = 0.0, 0.0
    for whole in map(read, FILES):
        for one in (whole, *whole.singles):
            starts = [from_anywhere(one, seed) for seed in range(FEWER_SEEDS)]
            ours += statistics.mean(tuned(start, seed) for seed, start in enumerate(starts))
            chances += statistics.mean(by_chance(s, 10 * n + seed) for n, s in enumerate(starts) for seed in range(10))
    assert ours < chances

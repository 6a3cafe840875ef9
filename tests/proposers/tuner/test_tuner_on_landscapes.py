"""The tuner on synthetic landscapes that have the cliffs of real ones."""

import itertools
import statistics
from pathlib import Path

import pytest
from each import sampled
from landscapes import Landscape, header, line, read, searched, setting_of, shuffled
from made_up_gpu import landscape
from synthetic_landscapes import SKETCHES

from evolve.proposers.tuner.space import with_setting

BY_NAME = {sketch.name: sketch for sketch in SKETCHES}
SEEDS, NEAR = 5, 1.05


def whole(name: str) -> Landscape:
    return landscape(BY_NAME[name])


def tuned(one: Landscape) -> float:
    """Return the number of evaluations until the best times are near the optimum, as a median over seeds."""
    most = len(one.results) // 3
    return statistics.median(
        one.needed(itertools.islice(searched(one, seed, 8), most), NEAR) or most for seed in range(SEEDS)
    )


def by_chance(one: Landscape) -> float:
    return statistics.median(one.needed(shuffled(one, seed), NEAR) or len(one.results) for seed in range(200))


@pytest.mark.parametrize(
    "name", sampled(["made_up_tiles", "made_up_split", "made_up_turn", "made_up_attend"], quick=["made_up_tiles"])
)
def test_the_tuner_needs_a_tenth_of_the_space_and_random_search_far_more(name: str) -> None:
    one = whole(name)
    needed = tuned(one)
    assert needed <= len(one.results) / 10
    assert needed <= by_chance(one) / 1.5


@pytest.mark.exhaustive
def test_a_single_workload_needs_at_most_a_tenth_of_the_space() -> None:
    for index in (0, 2, 4):
        one = whole("made_up_split").alone(index)
        assert tuned(one) <= len(one.results) / 10, index


def test_a_search_tries_no_setting_twice_and_ends() -> None:
    one = whole("made_up_rows")
    order = list(searched(one, 1, 8))
    assert len(order) == len(set(order))
    assert one.needed(order, 1.02)  # of the settings that compile to the same program, only one is tried


def test_the_same_seed_searches_in_the_same_order() -> None:
    one = whole("made_up_count")
    first, second = (list(itertools.islice(searched(one, 5, 8), 24)) for _ in range(2))
    assert first == second


def test_settings_of_one_request_differ_in_more_than_one_knob() -> None:
    one = whole("made_up_wide")
    order = list(itertools.islice(searched(one, 2, 8), 13))[9:]
    apart = [sum(a != b for a, b in zip(left, right, strict=True)) for left, right in itertools.combinations(order, 2)]
    assert statistics.mean(apart) >= 2


def test_a_landscape_is_read_back_from_its_file_without_a_truncated_last_line(tmp_path: Path) -> None:
    one = whole("made_up_count")
    path = tmp_path / "count.jsonl"
    some = list(one.results)[::7]
    lines = [
        line(setting, one.candidate(with_setting(one.kernel, setting)).evaluation, one.workloads) for setting in some
    ]
    op = Path(__file__).parents[2] / "samples" / "twice.py"
    path.write_text(header(str(op), one.kernel, one.device, one.workloads) + "".join(lines) + '{"setting": [1')
    found = read(path)
    assert list(found.results) == some
    assert (found.kernel, found.device, found.workloads) == (one.kernel, one.device, one.workloads)
    assert {result.failed for result in found.results.values()} == {"", "crashed"}
    assert all(
        found.results[setting].times_us == tuple(round(us, 3) if us else us for us in one.results[setting].times_us)
        for setting in some
    )


def test_a_search_begins_with_the_setting_of_the_kernel() -> None:
    one = whole("made_up_stream")
    assert next(searched(one, 1, 8)) == next(shuffled(one, 1)) == setting_of(one.kernel)

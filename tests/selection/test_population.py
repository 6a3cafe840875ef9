import random
from collections import Counter
from dataclasses import replace

from records import CPU, confirmed, failed, passed

from archive.records import Evaluation, Traits
from evolve.selection.population import champions, latest, parents, survivors


def traits(load_bytes: int) -> Traits:
    return Traits("code", load_bytes, 4, 0, 32, 256, 1, tensor_cores=False, atomics=False, occupancy=1.0)


def ids(evaluations: object) -> list[str]:
    return [evaluation.kernel_id for evaluation in evaluations]  # type: ignore[attr-defined]


def test_the_champion_of_each_workload_is_the_fastest_that_passed() -> None:
    found = champions([passed("a", w=5.0, v=1.0), passed("b", w=3.0, v=2.0), failed("c")])
    assert [(champion.workload, champion.kernel_id) for champion in found] == [("w", "b"), ("v", "a")]


def champion_of(*evaluations: Evaluation) -> str:
    (champion,) = champions(evaluations)
    return champion.kernel_id


def test_a_confirmed_champion_keeps_its_place_if_a_rival_is_hardly_faster() -> None:
    held = confirmed("held", w=10.0)  # the intervals extend 10 % to either side
    assert champion_of(held, passed("rival", w=8.3)) == "held"
    assert champion_of(passed("rival", w=8.3), held) == "held"


def test_a_rival_that_is_faster_by_more_than_the_intervals_takes_over() -> None:
    assert champion_of(confirmed("held", w=10.0), passed("rival", w=8.1)) == "rival"


def test_the_faster_of_two_confirmed_kernels_is_champion_even_if_they_are_close() -> None:
    assert champion_of(confirmed("held", w=10.0), confirmed("rival", w=9.99)) == "rival"


def test_a_rival_with_a_narrow_interval_beats_a_faster_one_with_a_wide_interval() -> None:
    sure, doubtful = passed("sure", w=8.0), passed("doubtful", w=7.0)
    wide = replace(doubtful.measurements[0], high_us=12.0)
    assert champion_of(confirmed("held", w=10.0), sure, replace(doubtful, measurements=(wide,))) == "sure"


def test_a_duel_is_won_only_if_its_speedup_exceeds_the_noise() -> None:
    (fast,), (slow,) = champions([confirmed("k", w=50.0)]), champions([confirmed("k", w=98.0)])
    assert (fast.won, slow.won) == (True, False)
    assert not champions([passed("k", w=50.0)])[0].won


def test_a_kernel_that_failed_never_survives() -> None:
    assert survivors([failed("a")]) == ()


def test_survivors_are_sorted_by_geometric_mean_fittest_first() -> None:
    assert ids(survivors([passed("slow", w=4.0, v=4.0), passed("fast", w=1.0, v=3.0)])) == ["fast", "slow"]


def test_kernels_beyond_the_best_few_survive_only_if_they_win_a_workload() -> None:
    crowd = [passed(f"k{i}", w=1.0 + i, v=1.0 + i) for i in range(5)]
    specialist = passed("specialist", w=99.0, v=0.5)
    assert ids(survivors([*crowd, specialist], keep=2)) == ["k0", "k1", "specialist"]


def test_only_a_few_kernels_of_a_niche_survive_while_there_are_other_niches() -> None:
    crowd = [replace(passed(f"k{i}", w=1.0 + 0.01 * i), traits=traits(16)) for i in range(6)]
    different = replace(passed("different", w=2.0), traits=traits(4))
    assert ids(survivors([*crowd, different], keep=4)) == ["k0", "k1", "k2", "different"]


def test_free_places_go_to_more_kernels_of_a_niche_if_there_is_no_other() -> None:
    crowd = [replace(passed(f"k{i}", w=1.0 + 0.01 * i), traits=traits(16)) for i in range(6)]
    assert ids(survivors(crowd, keep=4)) == ["k0", "k1", "k2", "k3"]


def test_a_far_too_slow_kernel_does_not_survive_although_it_is_different() -> None:
    crowd = [replace(passed(f"k{i}", w=1.0 + 0.01 * i), traits=traits(16)) for i in range(6)]
    hopeless = replace(passed("hopeless", w=9.0), traits=traits(4))
    assert ids(survivors([*crowd, hopeless], keep=4)) == ["k0", "k1", "k2", "k3"]


def test_refusing_a_workload_lowers_the_fitness() -> None:
    everywhere, picky = passed("everywhere", w=1.0, v=2.0), passed("picky", w=1.0)
    assert ids(survivors([passed("other", w=1.5, v=2.5), picky, everywhere]))[0] == "everywhere"


def test_the_latest_verdict_on_this_device_counts() -> None:
    verdicts = latest([passed("a", w=1.0), failed("a", created=2.0), passed("a", CPU, w=3.0)], "cuda Some GPU")
    assert [verdict.outcome.value for verdict in verdicts.values()] == ["wrong"]


def test_parents_are_drawn_by_rank_and_less_often_after_much_use() -> None:
    alive = [passed("best", w=1.0), passed("second", w=2.0), passed("third", w=3.0)]
    fresh = Counter(ids(parents(alive, {}, 3000, random.Random(1))))
    assert fresh["best"] > fresh["second"] > fresh["third"] > 0
    worn = Counter(ids(parents(alive, {"best": 9}, 3000, random.Random(1))))
    assert worn["second"] > worn["best"]


def test_the_same_seed_draws_the_same_parents() -> None:
    alive = [passed(name, w=1.0) for name in "abcdef"]
    assert parents(alive, {}, 9, random.Random(3)) == parents(alive, {}, 9, random.Random(3))


def test_without_survivors_there_are_no_parents() -> None:
    assert parents([], {}, 4, random.Random(0)) == ()

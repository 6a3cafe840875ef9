import random
from collections import Counter

from records import CPU, failed, passed

from evolve.population import champions, latest, parents, survivors


def ids(evaluations: object) -> list[str]:
    return [evaluation.kernel_id for evaluation in evaluations]  # type: ignore[attr-defined]


def test_the_champion_of_each_workload_is_the_fastest_that_passed() -> None:
    found = champions([passed("a", w=5.0, v=1.0), passed("b", w=3.0, v=2.0), failed("c")])
    assert [(champion.workload, champion.kernel_id) for champion in found] == [("w", "b"), ("v", "a")]


def test_a_kernel_that_failed_never_lives() -> None:
    assert survivors([failed("a")]) == ()


def test_the_fittest_comes_first_by_geometric_mean() -> None:
    assert ids(survivors([passed("slow", w=4.0, v=4.0), passed("fast", w=1.0, v=3.0)])) == ["fast", "slow"]


def test_more_than_the_best_few_live_only_where_they_win_a_workload() -> None:
    crowd = [passed(f"k{i}", w=1.0 + i, v=1.0 + i) for i in range(5)]
    specialist = passed("specialist", w=99.0, v=0.5)
    assert ids(survivors([*crowd, specialist], keep=2)) == ["k0", "k1", "specialist"]


def test_refusing_a_workload_does_not_pay() -> None:
    everywhere, picky = passed("everywhere", w=1.0, v=2.0), passed("picky", w=1.0)
    assert ids(survivors([passed("other", w=1.5, v=2.5), picky, everywhere]))[0] == "everywhere"


def test_the_last_verdict_on_this_device_is_in_force() -> None:
    verdicts = latest([passed("a", w=1.0), failed("a", created=2.0), passed("a", CPU, w=3.0)], "cuda Some GPU")
    assert [verdict.outcome.value for verdict in verdicts.values()] == ["wrong"]


def test_parents_are_drawn_by_rank_against_use() -> None:
    alive = [passed("best", w=1.0), passed("second", w=2.0), passed("third", w=3.0)]
    fresh = Counter(ids(parents(alive, {}, 3000, random.Random(1))))
    assert fresh["best"] > fresh["second"] > fresh["third"] > 0
    worn = Counter(ids(parents(alive, {"best": 9}, 3000, random.Random(1))))
    assert worn["second"] > worn["best"]


def test_the_same_seed_draws_the_same_parents() -> None:
    alive = [passed(name, w=1.0) for name in "abcdef"]
    assert parents(alive, {}, 9, random.Random(3)) == parents(alive, {}, 9, random.Random(3))


def test_nobody_alive_means_no_parents() -> None:
    assert parents([], {}, 4, random.Random(0)) == ()

from records import kernel, passed, proposal

from evolve.selection.islands import DESIGNS_PER_ISLAND, HOMES, homes, inhabitants, number

FOUNDERS = [kernel(n) for n in range(6)]


def test_newcomers_settle_in_turn_and_children_live_with_their_first_parent() -> None:
    child, grandchild = kernel(10), kernel(11)
    proposals = [
        *(proposal(founder) for founder in FOUNDERS),
        proposal(child, FOUNDERS[1].id, FOUNDERS[2].id),
        proposal(grandchild, child.id),
    ]
    lives = homes(proposals)
    assert [lives[founder.id] for founder in FOUNDERS] == [0, 1, 2, 3, 0, 1]
    assert lives[child.id] == lives[grandchild.id] == 1


def test_who_is_proposed_again_does_not_move() -> None:
    lives = homes([proposal(FOUNDERS[0]), proposal(FOUNDERS[1]), proposal(FOUNDERS[0], FOUNDERS[1].id)])
    assert lives == {FOUNDERS[0].id: 0, FOUNDERS[1].id: 1}


def test_a_short_run_has_one_island_and_a_long_one_not_too_many() -> None:
    assert [number(designs) for designs in (0, DESIGNS_PER_ISLAND, 2 * DESIGNS_PER_ISLAND, 10_000)] == [1, 1, 2, HOMES]


def test_an_island_has_its_own_survivors_and_the_best_of_the_next_one() -> None:
    here = [passed(f"here{n}", w=10.0 + n) for n in range(3)]
    there = [passed(f"there{n}", w=1.0 + n) for n in range(3)]
    lives = {verdict.kernel_id: int(verdict.kernel_id.startswith("there")) for verdict in (*here, *there)}
    found = inhabitants([*here, *there], lives, island=0, islands=2)
    assert [verdict.kernel_id for verdict in found] == ["there0", "here0", "here1", "here2"]


def test_one_island_is_the_whole_population() -> None:
    everyone = [passed(f"k{n}", w=1.0 + n) for n in range(3)]
    assert inhabitants(everyone, {"k1": 3}, island=0, islands=1) == tuple(everyone)

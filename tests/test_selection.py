from dataclasses import replace
from pathlib import Path

import bad_kernels
import pytest
from records import CPU, confirmed, failed, passed

from archive.proposals import Proposal
from archive.records import Evaluation
from archive.store import SqliteStore, open_archive
from evolve.selection import bars, pending, request, unconfirmed
from reference_ops import catalog

OP = catalog.load(str(Path(__file__).parent / "samples" / "twice.py"))
FIRST, SECOND = bad_kernels.twice_kernel(note="first"), bad_kernels.twice_kernel(note="second")


def proposal(of: object = FIRST, operator: str = "seed", parents: tuple[str, ...] = ()) -> Proposal:
    return Proposal("twice", operator, "shipped", of, parents=parents, created=1.0)  # type: ignore[arg-type]


def of_twice(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, op="twice", device=CPU)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_archive(tmp_path / "a.db")


def test_what_was_never_evaluated_here_is_pending(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0)))
    assert [kernel.id for kernel in pending(store, "twice", CPU)] == [SECOND.id]


def test_a_verdict_of_another_device_leaves_a_kernel_pending_here(store: SqliteStore) -> None:
    store.append(proposal(), of_twice(passed(FIRST.id, w=1.0)))
    assert [kernel.id for kernel in pending(store, "twice", replace(CPU, name="another"))] == [FIRST.id]


def test_champions_wait_for_their_confirmation(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0, v=9.0)))
    store.append(of_twice(passed(SECOND.id, w=1.5, v=2.0)))
    assert {kernel.id for kernel in unconfirmed(store, "twice", CPU)} == {FIRST.id, SECOND.id}
    store.append(of_twice(confirmed(FIRST.id, created=2.0, w=1.0, v=9.0)))
    assert [kernel.id for kernel in unconfirmed(store, "twice", CPU)] == [SECOND.id]


def test_a_kernel_that_leads_nowhere_is_not_confirmed(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0)), of_twice(passed(SECOND.id, w=2.0)))
    assert [kernel.id for kernel in unconfirmed(store, "twice", CPU)] == [FIRST.id]


def test_a_near_equal_of_a_confirmed_champion_is_not_confirmed_after_it(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND))
    store.append(of_twice(confirmed(FIRST.id, w=1.0)), of_twice(passed(SECOND.id, w=0.95)))
    assert unconfirmed(store, "twice", CPU) == []


def test_a_champion_that_failed_its_confirmation_makes_way_for_the_next(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0)), of_twice(passed(SECOND.id, w=2.0)))
    store.append(of_twice(failed(FIRST.id, created=2.0)))
    assert [kernel.id for kernel in unconfirmed(store, "twice", CPU)] == [SECOND.id]


def test_the_time_to_beat_is_the_champion_s(store: SqliteStore) -> None:
    store.append(of_twice(passed(FIRST.id, w=1.0, v=9.0)), of_twice(passed(SECOND.id, w=1.5, v=2.0)))
    assert dict(bars(store, "twice", CPU)) == {"w": 1.0, "v": 2.0}


def test_a_request_carries_failures_until_they_were_repaired(store: SqliteStore) -> None:
    store.append(proposal(), of_twice(failed(FIRST.id)))
    assert [failure.kernel.id for failure in request(OP, CPU, store, 4, seed=1).failures] == [FIRST.id]
    store.append(proposal(SECOND, "repair", (FIRST.id,)))
    assert request(OP, CPU, store, 4, seed=1).failures == ()


def test_a_request_knows_every_kernel_and_draws_parents_from_those_alive(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0)), of_twice(failed(SECOND.id)))
    asked = request(OP, CPU, store, 3, seed=1)
    assert asked.known == {FIRST.id, SECOND.id}
    assert [parent.kernel.id for parent in asked.parents] == [FIRST.id] * 3


def test_the_same_archive_and_seed_ask_the_same(store: SqliteStore) -> None:
    store.append(proposal(), of_twice(passed(FIRST.id, w=1.0)))
    assert request(OP, CPU, store, 4, seed=1) == request(OP, CPU, store, 4, seed=1)
    assert request(OP, CPU, store, 4, seed=1).seed != request(OP, CPU, store, 4, seed=2).seed

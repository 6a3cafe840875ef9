"""Shipped kernels in a view of an op: they count once they are requested or judged, and are not pending before."""

from dataclasses import replace
from pathlib import Path

import bad_kernels
import pytest
from records import CPU, GPU, confirmed, passed

from archive import seeds
from archive.kernel import Kernel, Proposal
from archive.records import SHIPPED, Evaluation
from archive.runs import EVERYTHING, Scope
from archive.sqlite import SqliteStore, open_archive
from evolve.report.standing import standing
from evolve.selection import selection
from evolve.selection.view import OpView
from reference_ops import catalog

OP = catalog.load(str(Path(__file__).parents[1] / "samples" / "twice.py"))
FIRST, SECOND = bad_kernels.twice_kernel(note="first"), bad_kernels.twice_kernel(note="second")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    store = open_archive(tmp_path / "a.db")
    store.append(seeds.proposal(FIRST, 1.0), seeds.proposal(SECOND, 1.0))
    return store


def view(store: SqliteStore, scope: Scope = EVERYTHING) -> OpView:
    return OpView(store, "twice", GPU, scope)


def verdict(of: Kernel, created: float = 2.0, run: str = SHIPPED) -> Evaluation:
    return replace(confirmed(of.id, GPU, created, w=5.0), op="twice", run=run)


def test_a_shipped_kernel_is_not_pending(store: SqliteStore) -> None:
    assert view(store).pending() == []
    assert standing(store, "twice", GPU).pending == 0


def test_a_shipped_kernel_is_pending_once_it_is_requested(store: SqliteStore) -> None:
    seen = view(store)
    seen.ask_for([FIRST.id])
    assert seen.pending() == [FIRST.id]
    seen.ask_for([SECOND.id])
    assert seen.pending() == [FIRST.id, SECOND.id]


def test_a_shipped_kernel_is_pending_once_another_proposer_proposes_it(store: SqliteStore) -> None:
    seen = view(store)
    assert seen.pending() == []
    store.append(Proposal("twice", "tell", "tell", SECOND, created=3.0))
    assert seen.pending() == [SECOND.id]
    assert standing(store, "twice", GPU).pending == 1


def test_a_run_that_starts_from_nothing_is_untried_beside_shipped_kernels(store: SqliteStore) -> None:
    assert selection.request(view(store), OP, 2, seed=1).untried


def test_a_run_starts_from_shipped_verdicts_on_its_own_device(store: SqliteStore) -> None:
    store.append(verdict(FIRST))
    asked = selection.request(view(store), OP, 2, seed=1)
    assert [one.kernel.id for one in asked.population] == [FIRST.id]
    assert OpView(store, "twice", CPU).alive() == ()


def test_a_shipped_champion_is_confirmed_again_here(store: SqliteStore) -> None:
    store.append(verdict(FIRST))
    assert [kernel.id for kernel in view(store).unconfirmed()] == [FIRST.id]
    store.append(verdict(FIRST, created=3.0, run=""))
    assert view(store).unconfirmed() == []


def test_an_excluded_kernel_counts_neither_on_request_nor_with_a_verdict(store: SqliteStore) -> None:
    store.append(verdict(FIRST))
    seen = view(store, Scope(excluded=frozenset([FIRST.id])))
    seen.ask_for([FIRST.id, SECOND.id])
    assert (seen.pending(), seen.champions(), seen.alive()) == ([SECOND.id], (), ())


def test_an_excluded_kernel_counts_if_the_run_proposes_it(store: SqliteStore) -> None:
    store.append(Proposal("twice", "draft", "model", FIRST, run="mine", created=3.0))
    assert view(store, Scope("mine", excluded=frozenset([FIRST.id]))).pending() == [FIRST.id]


def test_a_proposal_of_another_machine_is_not_a_trial_of_this_archive(store: SqliteStore) -> None:
    store.append(Proposal("twice", "improve", "model", FIRST, run=SHIPPED, created=0.5), verdict(FIRST))
    asked = selection.request(view(store), OP, 2, seed=1)
    assert {trial.proposer for trial in asked.trials} == {SHIPPED}


def test_a_verdict_of_this_archive_replaces_a_shipped_one(store: SqliteStore) -> None:
    store.append(verdict(FIRST), replace(passed(FIRST.id, GPU, 3.0, w=9.0), op="twice"))
    (champion,) = view(store).champions()
    assert (champion.measurement.median_us, champion.confirmed) == (9.0, None)
    assert standing(store, "twice", GPU).elsewhere == frozenset()

"""Several cards of one device, such as GPUs: all evaluate; the first one also confirms, profiles and times PyTorch."""

import time
from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import pytest
from fake_gpu import fake_gpus
from scripted_runs import PricedModel

from archive.records import Evaluation, Outcome
from archive.runs import Budget, Run, Scope
from archive.sqlite import SqliteStore, open_archive
from evolve import wiring
from evolve.campaign import SideBySide
from evolve.devices import choose
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine
from evolve.errors import UserError
from evolve.search import Search
from evolve.selection.view import OpView
from reference_ops import catalog


@pytest.fixture(autouse=True)
def fake_gpu(tmp_path: Path) -> Iterator[None]:
    with fake_gpus(tmp_path):
        yield


@pytest.fixture
def op(tmp_path: Path) -> str:
    return bad_kernels.small_twice(tmp_path)


def jobs(op: str, count: int, *, confirm: bool = False) -> list[Job]:
    kernels = [bad_kernels.twice_kernel(note=f"kernel {number}") for number in range(count)]
    return [Job(kernel, op, confirm=confirm) for kernel in kernels]


def used(engine: LocalEngine, jobs: list[Job]) -> set[str]:
    """Evaluate the jobs, all of which must pass, and return the logs, which name the cards that ran them."""
    verdicts = list(engine.evaluate(jobs))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.PASSED] * len(jobs), [v.log for v in verdicts]
    return {verdict.log for verdict in verdicts}


@pytest.fixture
def two() -> Iterator[LocalEngine]:
    engine = LocalEngine("fakegpu", 1, cards=("1", "0"))
    yield engine
    engine.close()


def test_every_card_evaluates(two: LocalEngine, op: str) -> None:
    assert used(two, jobs(op, 8)) == {"on card 0", "on card 1"}


@pytest.mark.parametrize(
    ("cards", "cores", "compilers"), [(1, 2, 1), (1, 8, 6), (1, 16, 12), (1, 128, 28), (2, 32, 24), (8, 128, 96)]
)
def test_compilers_use_the_cores_that_the_cards_processes_leave(cards: int, cores: int, compilers: int) -> None:
    assert wiring.compilers_beside(choose.policy_of("cuda"), cards, cores) == compilers


@pytest.mark.parametrize(
    ("cards", "cores", "workers"), [(1, 1, 1), (1, 2, 2), (1, 8, 2), (1, 16, 4), (1, 64, 4), (2, 16, 2), (2, 32, 4)]
)
def test_a_card_has_more_than_two_workers_only_if_there_are_cores_for_them(
    cards: int, cores: int, workers: int
) -> None:
    assert wiring.workers_per_card(choose.policy_of("cuda"), cards, cores) == workers


@pytest.mark.exhaustive
def test_champions_are_confirmed_only_on_the_first_card(two: LocalEngine, op: str) -> None:
    assert used(two, jobs(op, 3, confirm=True)) == {"on card 1"}


@pytest.mark.exhaustive
def test_two_cards_work_on_two_ops_of_a_campaign_at_once(two: LocalEngine, op: str, tmp_path: Path) -> None:
    other = tmp_path / "thrice.py"
    other.write_text(Path(op).read_text().replace('name="twice"', 'name="thrice"'))
    store, deadline = open_archive(tmp_path / "a.db"), time.monotonic() + 60
    searches = []
    for path in (op, str(other)):
        loaded = catalog.load(path)
        scope = Scope(f"run of {loaded.name}")
        store.append(Run(scope.run, loaded.name, two.info.key, "a model", 7, time.time()))
        searches.append(Search(scope.run, loaded, path, 7, Budget(evals=12), deadline, scope))
    for _ in share_out_side_by_side(searches, two, store):
        pass
    spans = [(one.op, one.created, one.created + one.seconds) for one in store.find(Evaluation)]
    assert len(spans) == 12
    assert any(a[0] != b[0] and a[1] < b[2] and b[1] < a[2] for a in spans for b in spans)


def share_out_side_by_side(searches: list[Search], engine: LocalEngine, store: SqliteStore) -> Iterator[object]:
    views = {search.run: OpView(store, search.op.name, engine.info, search.scope) for search in searches}
    return SideBySide(searches, PricedModel(), engine, views).run()


@pytest.mark.exhaustive
def test_each_card_gets_as_many_workers_as_the_policy_allows(op: str) -> None:
    engine = wiring.engine("fakegpu", gpus="all")
    try:
        used(engine, jobs(op, 2))
        while len(engine._pool.workers) < 4:
            engine._step()
        assert sorted(worker.card for worker in engine._pool.workers) == ["0", "0", "1", "1"]
    finally:
        engine.close()


@pytest.mark.exhaustive
def test_a_gpu_that_is_listed_twice_counts_as_two(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    monkeypatch.setenv("FAKE_GPUS", "0,0")
    engine = wiring.engine("fakegpu", gpus="0,1")
    try:
        assert used(engine, jobs(op, 4)) == {"on card 0"}
    finally:
        engine.close()


@pytest.mark.exhaustive
def test_a_worker_that_is_replaced_keeps_its_card(two: LocalEngine, op: str) -> None:
    used(two, jobs(op, 4))
    for worker in list(two._pool.workers):
        two._replace(worker)
    assert sorted(worker.card for worker in two._pool.workers) == ["0", "1"]
    assert used(two, jobs(op, 8)) == {"on card 0", "on card 1"}


@pytest.mark.exhaustive
def test_cards_of_different_kinds_are_refused(op: str) -> None:
    engine = LocalEngine("fakegpu", 1, cards=("0", "odd"))
    try:
        with pytest.raises(UserError, match="GPU 0 is Fake and GPU odd is Other"):
            list(engine.evaluate(jobs(op, 50)))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("kind", "requested", "message"),
    [
        ("fakegpu", "2", "there is no GPU `2`"),
        ("fakegpu", "0,x", "there is no GPU `x`"),
        ("fakegpu", "1,1", "names a GPU twice"),
        ("fakegpu", "0,", "there is no GPU ``"),
        ("emulated", "0", "the emulated device has no GPUs"),
    ],
)
def test_wrong_gpus_are_named(kind: str, requested: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose.cards(kind, requested)


def test_gpus_are_chosen_by_number_among_those_that_the_environment_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "GPU-a,GPU-b,GPU-c")
    assert choose.cards("fakegpu", "2,0") == ("GPU-c", "GPU-a")
    assert choose.cards("fakegpu", "all") == ("GPU-a", "GPU-b", "GPU-c")
    assert choose.cards("fakegpu") == ("",)

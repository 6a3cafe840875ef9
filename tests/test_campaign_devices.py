"""Tests of an op that is evolved for several devices under one budget, each with its own population."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from records import CPU
from scripted_runs import TWICE, PricedModel, by_number, number_of, op, outcome

from archive.records import DeviceInfo, Evaluation
from archive.runs import Budget, Run, Scope
from archive.sqlite import SqliteStore, open_archive
from evolve import budget
from evolve.budget import Ended
from evolve.campaign import campaign
from evolve.engines.engine import Engine, HasDevices, Job, devices_of, on_device
from evolve.search import Search
from evolve.selection.view import OpView

OTHER = replace(CPU, name="Another CPU")
SLOW = {"twice": (80.0,), "thrice": (80.0,)}  # the speed of light is 10 us


@dataclass
class TwoDevices(FakeEngine):
    """Engine with two devices that hold one job each. Odd kernels are faster on the first, even ones on the other."""

    cards: int = 2
    devices: Sequence[DeviceInfo] = (CPU, OTHER)
    held: dict[str, Job] = field(default_factory=dict)  # key: the device's
    waits: int = 0  # number of verdicts at which a device had no job although more jobs followed

    @property
    def idle(self) -> set[str]:
        return {device.key for device in self.devices} - self.held.keys()

    def on(self, device: str) -> Engine:
        (info,) = (one for one in self.devices if one.key == device)
        return FakeEngine(lambda job: self.judged(job, info), info, jobs=self.jobs)

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        incoming, ended = iter(jobs), False
        while True:
            while self.idle and not ended:
                job = next(incoming, self)  # `self` if there are no more jobs
                ended = job is self
                if not isinstance(job, Job):
                    break
                assert job.device in self.idle
                self.jobs.append(job)
                self.held[job.device] = job
            if not self.held:
                return
            self.waits += bool(self.idle) and not ended
            key, job = next(iter(self.held.items()))
            del self.held[key]
            yield self.judged(job, next(one for one in self.devices if one.key == key))

    def judged(self, job: Job, device: DeviceInfo) -> Evaluation:
        favoured = number_of(job.kernel) % 2 == (1 if device == CPU else 0)
        found = replace(self.judge(job), device=device)
        us = 20.0 if favoured else 80.0
        timed = [replace(one, median_us=us, low_us=us, high_us=us) for one in found.measurements]
        return replace(found, measurements=tuple(timed))


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_archive(tmp_path / "a.db")


def search(store: SqliteStore, name: str, device: DeviceInfo, limits: Budget) -> Search:
    run = Run(f"{name} on {device.name}", name, device.key, "a model", 7, time.time(), campaign="all")
    store.append(run)
    return Search(
        run.id, op(name), TWICE, 7, limits, time.monotonic() + 60, Scope(run.id), device=device.key
    )  # fmt: skip


def evolve(store: SqliteStore, limits: Budget, *names: str, most: int = 10**9) -> tuple[Ended, TwoDevices]:
    engine = TwoDevices(by_number(SLOW))
    searches = [search(store, name, device, limits) for name in names for device in engine.devices]
    return outcome(campaign(searches, [], PricedModel(most=most), engine, store)), engine


def spent(store: SqliteStore, name: str, device: DeviceInfo) -> int:
    return budget.spent(f"{name} on {device.name}", budget.history(store, name, device.key)).evals


def test_devices_share_one_budget(store: SqliteStore) -> None:
    ended, engine = evolve(store, Budget(evals=40), "twice")
    assert ended is Ended.EVALS
    assert len(engine.evaluated) == spent(store, "twice", CPU) + spent(store, "twice", OTHER) == 40
    assert min(spent(store, "twice", CPU), spent(store, "twice", OTHER)) >= 8


def test_each_device_has_its_own_champion_which_is_confirmed_there(store: SqliteStore) -> None:
    evolve(store, Budget(evals=40), "twice")
    for device, odd in ((CPU, 1), (OTHER, 0)):
        view = OpView(store, "twice", device)
        (champion,) = view.champions()
        assert number_of(view.kernels([champion.kernel_id])[champion.kernel_id]) % 2 == odd
        assert not view.unconfirmed()


def test_no_device_waits_for_the_other_while_there_are_ops_for_it(store: SqliteStore) -> None:
    _, engine = evolve(store, Budget(evals=64), "twice", "thrice")
    assert engine.waits <= 1  # a device is idle only during the last kernel of the budget


def test_a_campaign_on_two_devices_ends_when_nothing_is_left_to_try(store: SqliteStore) -> None:
    ended, engine = evolve(store, Budget(evals=1000), "twice", most=20)
    assert ended is Ended.NOTHING
    assert len({job.kernel.id for job in engine.jobs}) == 20


def test_an_engine_with_one_device_is_its_only_part() -> None:
    engine = FakeEngine()
    assert not isinstance(engine, HasDevices)
    assert devices_of(engine) == (CPU,)
    assert on_device(engine, "") is on_device(engine, CPU.key) is engine
    assert on_device(TwoDevices(), OTHER.key).info == OTHER

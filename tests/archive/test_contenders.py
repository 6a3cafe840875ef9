"""The contenders of an archive give the same champions as all its verdicts, in whatever order verdicts arrive."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import GPU, passed

from archive.records import Confirmed, DeviceInfo, Evaluation, Measurement, Outcome
from archive.sqlite import SqliteStore, merge, open_archive
from archive.summaries import RankedTimes
from evolve.selection import population

OTHER = DeviceInfo("cuda", "Other", "sm_80", 108, 166_912)
WORKLOADS = ("a float32", "b float32", "c float32")


def verdicts(seed: int, number: int = 120) -> list[Evaluation]:
    """Return verdicts on few kernels, so that many replace others; times are few, so that many are equal."""
    rng = random.Random(seed)
    return [_verdict(rng, 100.0 + rng.randrange(number)) for _ in range(number)]


def _verdict(rng: random.Random, created: float) -> Evaluation:
    found = passed(f"{rng.randrange(40):016x}", rng.choice((GPU, GPU, OTHER)), created=created, a=1.0)
    if rng.random() < 0.2:
        return replace(found, outcome=Outcome.WRONG, measurements=())
    timed = tuple(_measurement(rng, workload) for workload in rng.sample(WORKLOADS, rng.randrange(1, 4)))
    return replace(found, measurements=timed, confirmed=Confirmed((), ()) if rng.random() < 0.2 else None)


def _measurement(rng: random.Random, workload: str) -> Measurement:
    us = float(rng.randrange(10, 40))
    return Measurement(workload, us, us - rng.randrange(1, 5), us + rng.randrange(1, 5), 10, 100.0)


def told(store: SqliteStore, device: DeviceInfo, *, contending: bool) -> dict[str, str]:
    only = {"contending": True} if contending else {}
    found: Sequence[RankedTimes] = store.find(RankedTimes, "softmax", device=device.key, **only)  # type: ignore[arg-type]
    return {workload: leader.id for workload, leader in population.leaders(found).items()}


@pytest.mark.parametrize("seed", range(12))
def test_contenders_give_the_champions_after_every_verdict(tmp_path: Path, seed: int) -> None:
    store = open_archive(tmp_path / "a.db")
    for verdict in verdicts(seed):
        store.append(verdict)
        for device in (GPU, OTHER):
            assert told(store, device, contending=True) == told(store, device, contending=False)


def test_contenders_are_few(tmp_path: Path) -> None:
    store = open_archive(tmp_path / "a.db")
    store.append(*verdicts(1, 400))
    few = store.find(RankedTimes, "softmax", device=GPU.key, contending=True)
    assert len(few) < len(store.find(RankedTimes, "softmax", device=GPU.key)) / 2


def test_contenders_of_a_merge_are_those_of_all_verdicts(tmp_path: Path) -> None:
    first, second = open_archive(tmp_path / "a.db"), open_archive(tmp_path / "b.db")
    first.append(*verdicts(2))
    second.append(*verdicts(3))
    merge(first, second)
    for device in (GPU, OTHER):
        assert told(first, device, contending=True) == told(first, device, contending=False)


def test_an_older_archive_gets_its_contenders_when_it_is_opened(tmp_path: Path) -> None:
    store = open_archive(tmp_path / "a.db")
    store.append(*verdicts(4))
    expected = told(store, GPU, contending=True)
    for name in (
        "TABLE derived",
        "TABLE contenders",
        "INDEX evaluations_in_order",
        "INDEX proposals_in_order",
    ):
        store.connection.execute(f"DROP {name}")
    version = store.connection.execute("PRAGMA user_version").fetchone()[0]
    store.connection.execute(f"PRAGMA user_version = {version - 2}")
    store.close()
    assert told(open_archive(tmp_path / "a.db", read_only=True), GPU, contending=True) == expected

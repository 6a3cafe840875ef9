"""Tests of claims on kernels, by several holders in one process and by processes that die."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import alive
from records import CPU, GPU, confirmed, kernel, passed

from archive import claims
from archive.claims import SqliteClaims, claims_on
from archive.recovery import recover
from archive.sqlite import SqliteStore, merge, open_archive

KERNEL = kernel(1)
HOLDING = """
import sys, time
from pathlib import Path
from archive.claims import claims_on
with claims_on(Path(sys.argv[1])) as claims:
    print(claims.take(sys.argv[2], sys.argv[3]), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    opened = open_archive(tmp_path / "archive.db")
    opened.append(KERNEL)
    return opened


@pytest.fixture
def two(store: SqliteStore) -> Iterator[tuple[SqliteClaims, SqliteClaims]]:
    with claims_on(store.path) as first, claims_on(store.path) as second:
        yield first, second


def test_a_kernel_is_claimed_once_until_its_claim_is_given_back(two: tuple[SqliteClaims, SqliteClaims]) -> None:
    first, second = two
    assert first.take(KERNEL.id, GPU.key)
    assert not second.take(KERNEL.id, GPU.key)
    second.give_back(KERNEL.id, GPU.key)  # has no effect: the claim belongs to the other holder
    assert not second.take(KERNEL.id, GPU.key)
    first.give_back(KERNEL.id, GPU.key)
    assert second.take(KERNEL.id, GPU.key)


def test_a_holder_may_claim_its_kernel_again(two: tuple[SqliteClaims, SqliteClaims]) -> None:
    assert two[0].take(KERNEL.id, GPU.key)
    assert two[0].take(KERNEL.id, GPU.key)


def test_claims_on_other_devices_and_kernels_do_not_matter(two: tuple[SqliteClaims, SqliteClaims]) -> None:
    first, second = two
    assert first.take(KERNEL.id, GPU.key)
    assert second.take(KERNEL.id, CPU.key)
    assert second.take(kernel(2).id, GPU.key)
    assert first.of_others([KERNEL.id, kernel(2).id], GPU.key) == {kernel(2).id}
    assert second.of_others([KERNEL.id, kernel(2).id], GPU.key) == {KERNEL.id}


def test_a_kernel_with_a_verdict_is_claimed_only_by_those_that_know_the_verdict(store: SqliteStore) -> None:
    first, later = passed(KERNEL.id, a=1.0), confirmed(KERNEL.id, GPU, 2.0, a=1.0)
    with claims_on(store.path) as mine:
        store.append(first)
        assert not mine.take(KERNEL.id, GPU.key)
        assert mine.take(KERNEL.id, GPU.key, seen=first.id)
        store.append(later)
        assert not mine.take(KERNEL.id, GPU.key, seen=first.id)
        assert mine.take(KERNEL.id, GPU.key, seen=later.id)


def test_claims_end_with_the_program_that_holds_them(store: SqliteStore) -> None:
    with claims_on(store.path) as first:
        assert first.take(KERNEL.id, GPU.key)
    with claims_on(store.path) as second:
        assert second.take(KERNEL.id, GPU.key)


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "not reaped yet"])
def test_a_killed_process_gives_its_claims_back(store: SqliteStore, reaped: bool) -> None:
    arguments = [sys.executable, "-c", HOLDING, str(store.path), KERNEL.id, GPU.key]
    root = str(Path(claims.__file__).parents[1])
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root})
        )
        stack.callback(process.kill)
        assert process.stdout
        assert process.stdout.readline() == "True\n"
        mine = stack.enter_context(claims_on(store.path))
        assert not mine.take(KERNEL.id, GPU.key)
        assert mine.of_others([KERNEL.id], GPU.key) == {KERNEL.id}
        process.send_signal(signal.SIGKILL)
        if reaped:
            process.wait()
        while alive(process.pid):
            time.sleep(0.01)
        assert mine.of_others([KERNEL.id], GPU.key) == frozenset()
        assert mine.take(KERNEL.id, GPU.key)


def test_a_claim_does_not_outlive_its_process_when_another_process_gets_the_same_id(store: SqliteStore) -> None:
    with claims_on(store.path) as first, claims_on(store.path) as second:
        assert first.take(KERNEL.id, GPU.key)
        assert not second.take(KERNEL.id, GPU.key)
        with store.connection as connection:
            connection.execute("UPDATE claims SET born = '1'")
        assert second.take(KERNEL.id, GPU.key)


def test_a_claim_of_another_machine_holds_until_its_lease_ends(store: SqliteStore) -> None:
    with claims_on(store.path) as mine:
        for expires, granted in ((time.time() + 60, False), (time.time() - 1, True)):
            with store.connection as connection:
                row = (KERNEL.id, GPU.key, "holder", "elsewhere", 1, "dead", expires)
                connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            assert mine.take(KERNEL.id, GPU.key) is granted


def test_claims_are_renewed_while_their_process_works(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(claims, "RENEWAL_SECONDS", 0.1)
    with claims_on(store.path) as first, claims_on(store.path) as second:
        assert first.take(KERNEL.id, GPU.key)
        time.sleep(1.5)
        assert not second.take(KERNEL.id, GPU.key)


def test_a_claim_that_is_not_renewed_expires(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LEASE_SECONDS", 0.1)
    with claims_on(store.path) as first, claims_on(store.path) as second:
        assert first.take(KERNEL.id, GPU.key)
        time.sleep(0.2)
        assert second.take(KERNEL.id, GPU.key)


def test_merged_and_recovered_archives_contain_no_claims(store: SqliteStore, tmp_path: Path) -> None:
    into = open_archive(tmp_path / "other.db")
    with claims_on(store.path) as mine:
        assert mine.take(KERNEL.id, GPU.key)
        merge(into, store)
        recover(store.path, tmp_path / "recovered.db")
    for made in (into, open_archive(tmp_path / "recovered.db")):
        assert made.connection.execute("SELECT count(*) FROM kernels").fetchone() == (1,)
        assert made.connection.execute("SELECT count(*) FROM claims").fetchone() == (0,)

"""A folder that several machines share: a claim succeeds on one machine only, and a verdict appears once."""

import os
import threading
import time
from pathlib import Path

import pytest
from bad_kernels import twice_kernel
from fake_engine import verdict
from records import CPU

from archive import ArchiveError
from archive.kernel import Proposal
from archive.records import Evaluation
from archive.sqlite import open_archive
from evolve.engines import shared_folder
from evolve.engines.engine import Job
from evolve.engines.shared_folder import Folder, FolderClaims, gathered_in, is_remote
from evolve.errors import UserError

# A file `refused` beside it holds a line for each connection that it refuses, and a file `lost` one for each claim
# after which the connection ends before the result arrives.
STAND_IN = """#!/bin/sh
refused=$(dirname "$0")/refused
lost=$(dirname "$0")/lost
[ ! -s "$refused" ] || { sed -i 1d "$refused"; echo connection closed >&2; exit 255; }
while [ "$1" != -- ]; do shift; done
[ "$2" = node7 ] || exit 255
case "$3" in *claims/*) [ ! -s "$lost" ] || { sed -i 1d "$lost"; sh -c "$3"; exit 255; } ;; esac
exec sh -c "$3"
"""
KERNEL, DEVICE = twice_kernel(), CPU.key


@pytest.fixture(params=["local", "ssh"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a folder with an archive of one kernel, locally and on a host reached through a fake ssh."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    with_kernel(folder / "some.db")
    if request.param == "local":
        return str(folder)
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "ssh"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return f"node7:{folder}"


@pytest.fixture
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_folder, "FIRST_WAITS", (0.0,))
    monkeypatch.setattr(shared_folder, "LATER_WAITS", (0.0,) * 4)


def with_kernel(path: Path) -> None:
    store = open_archive(path)
    store.append(Proposal("twice", "tell", "tell", KERNEL, created=1.0))
    store.close()


def worker(location: str, lease_seconds: float = 90.0) -> FolderClaims:
    return FolderClaims(Folder(location), open_archive(Path(":memory:")), lease_seconds)


def judge(claims: FolderClaims, log: str = "") -> None:
    claims._store.append(verdict(Job(KERNEL, "twice"), log=log))
    claims.give_back(KERNEL.id, DEVICE)


def verdicts(location: str) -> list[Evaluation]:
    return [record for record in gathered_in(Folder(location)) if isinstance(record, Evaluation)]


@pytest.fixture
def one(location: str) -> FolderClaims:
    return worker(location)


@pytest.fixture
def other(location: str) -> FolderClaims:
    return worker(location)


def test_a_worker_takes_the_kernels_of_the_archives_in_the_folder(one: FolderClaims) -> None:
    assert one.refresh() == 1
    assert [proposal.kernel_id for proposal in one._store.find(Proposal)] == [KERNEL.id]
    assert one.refresh() == 0


def test_a_kernel_that_one_worker_has_claimed_is_refused_to_another(one: FolderClaims, other: FolderClaims) -> None:
    assert one.take(KERNEL.id, DEVICE)
    assert not other.take(KERNEL.id, DEVICE)
    assert other.of_others([KERNEL.id], DEVICE) == {KERNEL.id}
    assert one.of_others([KERNEL.id], DEVICE) == frozenset()
    assert other.take(KERNEL.id, "cuda another device")


def test_a_verdict_reaches_the_other_process_and_the_kernel_is_not_judged_again(
    one: FolderClaims, other: FolderClaims, location: str
) -> None:
    one.take(KERNEL.id, DEVICE)
    judge(one, "by one")
    assert other.of_others([KERNEL.id], DEVICE) == frozenset()
    assert not other.take(KERNEL.id, DEVICE)
    assert [each.log for each in other._store.find(Evaluation)] == ["by one"]
    assert [each.log for each in verdicts(location)] == ["by one"]


def test_a_claim_without_a_verdict_that_is_given_back_is_free(one: FolderClaims, other: FolderClaims) -> None:
    one.take(KERNEL.id, DEVICE)
    one.give_back(KERNEL.id, DEVICE)
    assert other.take(KERNEL.id, DEVICE)
    other.end()
    assert one.take(KERNEL.id, DEVICE)


def test_an_expired_claim_is_taken_over_and_the_first_verdict_counts(location: str) -> None:
    slow, next_one, third = (worker(location, lease_seconds=1.0) for _ in range(3))
    assert slow.take(KERNEL.id, DEVICE)
    assert not next_one.take(KERNEL.id, DEVICE)
    time.sleep(1.2)
    assert next_one.of_others([KERNEL.id], DEVICE) == frozenset()
    assert next_one.take(KERNEL.id, DEVICE)
    assert not third.take(KERNEL.id, DEVICE)
    judge(next_one, "by the next")
    judge(slow, "too late")
    assert (next_one.committed, slow.committed) == (1, 0)
    assert [each.log for each in verdicts(location)] == ["by the next"]


def test_a_renewed_claim_does_not_expire(location: str) -> None:
    holder, other = (worker(location, lease_seconds=1.0) for _ in range(2))
    holder.take(KERNEL.id, DEVICE)
    for _ in range(4):
        time.sleep(0.4)
        holder.renew()
    assert not other.take(KERNEL.id, DEVICE)


def test_only_one_of_many_simultaneous_claims_succeeds(location: str) -> None:
    workers, won = [worker(location) for _ in range(8)], list[bool]()
    for _ in range(5):
        folder = workers[0]._folder
        folder.remove([name for name in folder.list().files if name.startswith("claims/")])
        won.clear()
        threads = [threading.Thread(target=lambda w=w: won.append(w.take(KERNEL.id, DEVICE))) for w in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(won) == 1


def test_a_damaged_verdict_is_named(one: FolderClaims, location: str) -> None:
    one._folder.list()
    one._folder.commit(f"verdicts/{KERNEL.id}-0", b"not a verdict\n")
    with pytest.raises(ArchiveError, match=f"verdicts/{KERNEL.id}-0 is not a verdict"):
        gathered_in(Folder(location))


def test_an_archive_that_is_still_being_copied_is_read_later(one: FolderClaims, tmp_path: Path) -> None:
    file = tmp_path / "a folder" / "late.db"
    file.write_bytes((tmp_path / "a folder" / "some.db").read_bytes()[:1000])
    assert one.refresh() == 1
    with_kernel(tmp_path / "whole.db")
    (tmp_path / "whole.db").replace(file)
    assert one.refresh() == 1


def test_leaving_removes_files_that_only_this_worker_needs(one: FolderClaims, tmp_path: Path) -> None:
    one.refresh()
    one.end()
    assert sorted(path.name for path in (tmp_path / "a folder").iterdir()) == ["claims", "some.db", "verdicts"]


@pytest.mark.usefixtures("without_waits")
def test_a_folder_that_is_missing_or_cannot_be_reached_is_an_error(location: str) -> None:
    with pytest.raises(UserError, match=r"no folder|cannot be used"):
        Folder(f"{location}/missing").list()
    with pytest.raises(UserError, match="cannot be used"):
        Folder("nobody:folder").list()


@pytest.mark.usefixtures("without_waits")
@pytest.mark.parametrize("location", ["ssh"], indirect=True)
def test_a_connection_that_is_refused_is_tried_again_more_often_after_the_first_contact(
    location: str, tmp_path: Path
) -> None:
    folder, refused = Folder(location), tmp_path / "bin" / "refused"
    refused.write_text("once\n" * 2)
    with pytest.raises(UserError, match="cannot be used: connection closed"):
        folder.list()
    assert "some.db" in folder.list().files
    refused.write_text("once\n" * 4)
    assert folder.create("a claim")
    assert not Folder(location).create("a claim")
    refused.write_text("once\n" * 5)
    with pytest.raises(UserError, match="cannot be used: connection closed"):
        folder.list()


@pytest.mark.usefixtures("without_waits")
@pytest.mark.parametrize("location", ["ssh"], indirect=True)
def test_a_claim_whose_connection_was_lost_is_held_by_the_process_that_made_it(
    one: FolderClaims, other: FolderClaims, tmp_path: Path
) -> None:
    (tmp_path / "bin" / "lost").write_text("once\n")
    assert one.take(KERNEL.id, DEVICE)
    assert not (tmp_path / "bin" / "lost").read_text()
    assert not other.take(KERNEL.id, DEVICE)


def test_an_address_is_refused_with_the_form_that_is_accepted() -> None:
    with pytest.raises(UserError) as caught:
        Folder("ssh://node1/evolve")
    assert caught.value.hint == "write HOST:FOLDER, such as node1:evolve"


@pytest.mark.parametrize(
    ("given", "remote"),
    [("host:folder", True), ("me@host:/a/b", True), ("/a:b", False), ("a/b:c", False), ("a", False)],
)
def test_a_host_is_the_text_before_a_colon(given: str, remote: bool) -> None:
    assert is_remote(given) is remote

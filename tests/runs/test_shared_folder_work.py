"""Two `evolve work` processes on one folder: each kernel is judged once, even if one of the processes is killed."""

import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import bad_kernels
import pytest
from command import TWICE, run, start
from processes import all_gone, descendants

from archive.claims import LEASE_SECONDS
from archive.records import Evaluation
from archive.sqlite import open_archive

KERNELS = 12
WORK = ("work", "folder", TWICE, "--device", "emulated")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with `folder`, which contains an archive of kernels."""
    (tmp_path / "folder").mkdir()
    for number in range(KERNELS):
        (tmp_path / f"{number}.cu").write_text(bad_kernels.twice_kernel(note=f"number {number}").text)
    code, output = run(tmp_path, "tell", *(f"{n}.cu" for n in range(KERNELS)), TWICE, "--archive", "told.db")
    assert code == 0, output
    shutil.copy(tmp_path / "told.db", tmp_path / "folder" / "told.db")
    return tmp_path


def check_all_judged_once(place: Path) -> None:
    code, output = run(place, "merge", "folder", "--archive", "told.db")
    assert code == 0, output
    judged = Counter(each.kernel_id for each in open_archive(place / "told.db").find(Evaluation, shipped=False))
    assert len(judged) == KERNELS
    assert set(judged.values()) == {1}


def claimed_without_verdict(place: Path) -> list[Path]:
    judged = {path.name for path in (place / "folder" / "verdicts").iterdir()}
    return [path for path in (place / "folder" / "claims").iterdir() if path.name.rpartition(".")[0] not in judged]


def claims(place: Path) -> list[str]:
    """Return the name of the worker in each claim; a claim that is being written is not counted."""
    found = [path.read_text() for path in (place / "folder" / "claims").glob("*")]
    return [name for name in found if name]


def wait_for_claims_of(place: Path, *, workers: int) -> None:
    deadline = time.monotonic() + 120
    while len(set(claims(place))) < workers and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(set(claims(place))) == workers


@pytest.mark.exhaustive
def test_two_workers_share_the_kernels_of_a_folder(place: Path) -> None:
    first = start(place, *WORK)
    wait_for_claims_of(place, workers=1)
    first.send_signal(signal.SIGSTOP)  # so that kernels are left however long the other one takes to start
    workers = [first, start(place, *WORK)]
    wait_for_claims_of(place, workers=2)
    first.send_signal(signal.SIGCONT)
    outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert len(claims(place)) == KERNELS  # no kernel was claimed twice
    assert len(set(claims(place))) == 2  # both processes have judged kernels
    check_all_judged_once(place)


@pytest.mark.exhaustive
def test_a_worker_takes_over_the_kernels_that_a_killed_one_had_claimed(place: Path) -> None:
    killed = start(place, *WORK)
    claims, verdicts = place / "folder" / "claims", place / "folder" / "verdicts"
    while not len(list(claims.glob("*"))) > len(list(verdicts.glob("*"))) > 0:  # `glob`: the folders may not exist yet
        assert killed.poll() is None
        time.sleep(0.02)
    family = descendants(killed.pid)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert all_gone(family)
    left = claimed_without_verdict(place)
    assert left
    worker = start(place, *WORK)
    while len(list(verdicts.iterdir())) < KERNELS - len(left):
        assert worker.poll() is None
        time.sleep(0.1)
    time.sleep(3)
    assert worker.poll() is None, "it did not wait for the lease of the killed one"
    for claim in left:
        os.utime(claim, (time.time() - LEASE_SECONDS,) * 2)
    output, _ = worker.communicate(timeout=300)
    assert worker.returncode == 0, output
    check_all_judged_once(place)

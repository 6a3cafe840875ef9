"""Runs and workers killed with `kill -9` at random moments: nothing is lost or duplicated, and the run can continue."""

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bad_kernels
import pytest
from command import TWICE, run, start
from processes import all_gone, descendants

from archive.kernel import Proposal, parse
from archive.records import Evaluation, Leg
from archive.sqlite import open_archive

KILLS = 20
ARCHIVE = Path(".evolve/archive.db")
IN_PARTS = (
    "for (int part = 0; part < A * B; ++part) if (i < n && i % (A * B) == part) out[i] = x_t(2.0f * float(x[i]));"
)
RICH = bad_kernels.twice_kernel(IN_PARTS).text.replace(
    "THREADS = [128, 64, 256]", "THREADS = [128, 32, 64, 256, 512]\nA = [1, 2, 3, 4, 5]\nB = [1, 2, 3, 4, 5]"
)


def verdicts(archive: Path) -> list[str]:
    """Return the ids of the judged kernels, without confirmations, which are second verdicts on champions."""
    found = open_archive(archive).find(Evaluation, shipped=False) if archive.exists() else []
    return [evaluation.kernel_id for evaluation in found if not evaluation.confirmed]


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes through /proc")
def test_twenty_kills_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    """Runs on two archives at the same time, because a run mostly waits to be killed."""
    folders = [tmp_path / name for name in ("first", "second")]
    with ThreadPoolExecutor() as pool:
        kept = list(pool.map(killed_again_and_again, folders))
    for folder, before in zip(folders, kept, strict=True):
        archive = folder / ARCHIVE
        assert sqlite3.connect(archive).execute("PRAGMA integrity_check").fetchone() == ("ok",)
        code, output = run(folder, "run", TWICE, "--device", "emulated", "--proposer", "offline", "--evals", "5")
        assert code == 0, output
        final = open_archive(archive)
        assert len(verdicts(archive)) == len(before) + 5
        assert all(e.passed for e in final.find(Evaluation, shipped=False))
        assert len({p.id for p in final.find(Proposal)}) == len(final.find(Proposal))


def killed_again_and_again(folder: Path) -> list[str]:
    """Kill runs on one archive repeatedly, every second time after one of their processes.

    Return the kernels that are judged at the end.
    """
    folder.mkdir()
    archive = folder / ARCHIVE
    (folder / "rich.cu").write_text(parse(RICH).text)
    code, output = run(folder, "tell", "rich.cu", TWICE)
    assert code == 0, output
    rng = random.Random(f"{os.environ.get('EVOLVE_TEST_SEED', '17')} {folder.name}")
    before: list[str] = []
    for kill in range(KILLS // 2):
        process = start(folder, "run", TWICE, "--device", "emulated", "--proposer", "offline")
        time.sleep(rng.uniform(0.2, 6.0))
        family = descendants(process.pid)
        if kill % 2 and family:  # the fork server, or a worker
            os.kill(rng.choice(sorted(family)), signal.SIGKILL)
            time.sleep(rng.uniform(0.1, 1.0))
            family = descendants(process.pid)
        process.kill()
        process.wait()
        assert all_gone(family), "a process outlived its run"
        after = verdicts(archive)
        assert after[: len(before)] == before
        assert max(Counter(after).values(), default=1) == 1
        before = after
    return before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes through /proc")
@pytest.mark.exhaustive
def test_a_killed_run_spends_the_rest_of_its_budget_when_resumed(tmp_path: Path) -> None:
    archive = tmp_path / ARCHIVE
    (tmp_path / "rich.cu").write_text(parse(RICH).text)
    assert run(tmp_path, "tell", "rich.cu", TWICE)[0] == 0
    process = start(tmp_path, "run", TWICE, "--device", "emulated", "--proposer", "offline", "--evals", "8")
    deadline = time.monotonic() + 120
    while len(verdicts(archive)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    family = descendants(process.pid)
    process.kill()
    process.wait()
    assert all_gone(family), "a process outlived its run"
    assert 3 <= len(verdicts(archive)) < 8
    code, output = run(tmp_path, "run", "--resume", "last")
    assert code == 0, output
    assert len(verdicts(archive)) == 8
    assert len({leg.run for leg in open_archive(archive).find(Leg)}) == 1
    assert len(open_archive(archive).find(Leg)) == 2

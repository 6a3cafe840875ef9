"""Two `evolve run` processes on one archive: they share the work, and a run takes over the claims of a killed run."""

import json
import signal
import time
from collections import Counter
from pathlib import Path

import bad_kernels
import pytest
from command import TWICE, run, start

from archive.kernel import parse
from archive.records import Evaluation
from archive.sqlite import open_archive

RUN = ("run", TWICE, "--device", "emulated", "--proposer", "offline", "--minutes", "4", "--json")
SETTINGS = 12
RICH = bad_kernels.twice_kernel(
    "for (int part = 0; part < A; ++part) if (i < n && i % A == part) out[i] = x_t(2.0f * float(x[i]));"
).text.replace("THREADS = [128, 64, 256]", "THREADS = [128, 64, 256]\nA = [1, 2, 3, 4]")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "rich.cu").write_text(parse(RICH).text)
    code, output = run(tmp_path, "tell", "rich.cu", TWICE)
    assert code == 0, output
    return tmp_path / ".evolve" / "archive.db"


def verdicts(archive: Path) -> list[Evaluation]:
    """Return the first verdict on each kernel and any others that are not confirmations."""
    return [
        evaluation for evaluation in open_archive(archive).find(Evaluation, shipped=False) if not evaluation.confirmed
    ]


def claimed(archive: Path) -> list[tuple[str, int]]:
    """Return the kernels that are claimed, and by which processes."""
    return list(open_archive(archive).connection.execute("SELECT kernel_id, pid FROM claims"))


@pytest.mark.exhaustive
def test_two_runs_judge_each_kernel_once_and_both_end(archive: Path) -> None:
    runs = [start(archive.parents[1], *RUN) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in runs]
    assert [process.returncode for process in runs] == [0, 0], outputs
    judged = Counter(evaluation.kernel_id for evaluation in verdicts(archive))
    assert len(judged) == SETTINGS
    assert set(judged.values()) == {1}
    facts = [json.loads(output[output.index("\n{") :]) for output in outputs]
    assert [fact["ended"] for fact in facts] == ["nothing", "nothing"]
    assert sum(fact["spent"]["evals"] for fact in facts) == SETTINGS
    assert min(fact["spent"]["evals"] for fact in facts) > 0
    assert claimed(archive) == []


@pytest.mark.exhaustive
def test_a_run_takes_over_the_kernels_that_a_killed_run_had_claimed(archive: Path) -> None:
    killed, other = (start(archive.parents[1], *RUN) for _ in range(2))
    deadline, held = time.monotonic() + 120, list[str]()
    while not held and time.monotonic() < deadline:
        held = [kernel_id for kernel_id, pid in claimed(archive) if pid == killed.pid]
        if held:  # the kernel may have been judged in the meantime
            killed.send_signal(signal.SIGSTOP)
            held = [kernel_id for kernel_id, pid in claimed(archive) if pid == killed.pid]
            killed.send_signal(signal.SIGCONT if not held else signal.SIGKILL)
        time.sleep(0.02)
    killed.communicate(timeout=60)
    assert held
    output, _ = other.communicate(timeout=300)
    assert other.returncode == 0, output
    judged = Counter(evaluation.kernel_id for evaluation in verdicts(archive))
    assert len(judged) == SETTINGS
    assert set(judged.values()) == {1}
    assert set(held) <= judged.keys()
    assert claimed(archive) == []


@pytest.mark.exhaustive
def test_evaluate_skips_kernels_that_a_run_is_working_on(archive: Path) -> None:
    searching = start(archive.parents[1], *RUN)
    while not claimed(archive) and searching.poll() is None:
        time.sleep(0.02)
    code, output = run(archive.parents[1], "evaluate", TWICE, "--device", "emulated")
    assert code == 0, output
    searching.communicate(timeout=300)
    assert max(Counter(evaluation.kernel_id for evaluation in verdicts(archive)).values()) == 1

"""The processes behind an engine: clean, confined, quickly born, and gone when it is gone."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import hostile_kernels
import pytest
from processes import alive, all_gone, children, descendants

from archive.kernel import Kernel
from archive.records import Evaluation, Outcome
from evolve.engines import sandbox
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine

ROOT = Path(__file__).parents[2]
TWICE = str(ROOT / "tests" / "samples" / "twice.py")
ENGINE_AT_WORK = f"""
import sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests" / "support")!r}]
import bad_kernels
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine
engine = LocalEngine("emulated", 2, lambda kernel, phase: phase == "run" and print(phase, flush=True))
print("made", flush=True)
for _ in engine.evaluate([Job(bad_kernels.HANGING, {TWICE!r})] * 2):
    pass
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes through /proc")
confined = pytest.mark.skipif(bool(sandbox.gaps()), reason="this system lacks something of the sandbox")


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    """For all tests that leave its fork_server alone."""
    made = LocalEngine("emulated", 1)
    yield made
    made.close()


@pytest.fixture
def own_engine() -> Iterator[LocalEngine]:
    made = LocalEngine("emulated", 1)
    yield made
    made.close()


def verdicts(engine: LocalEngine, *kernels: Kernel) -> list[Evaluation]:
    return list(engine.evaluate([Job(kernel, TWICE) for kernel in kernels]))


def pid_of_fork_server(engine: LocalEngine) -> int:
    """Once it has forked every worker."""
    while not all(worker.ready for worker in engine._pool.workers):
        engine._step()
    return engine._pool._living_fork_server.pid


def test_workers_know_no_keys_and_are_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "NVIDIA_API_KEY", "CC_TOKEN", "PYTHON_SECRET"):
        monkeypatch.setenv(name, "hush")
    made = LocalEngine("emulated", 2)
    try:
        fork_server = pid_of_fork_server(made)
        workers = children(fork_server)
        assert len(workers) == 2
        for pid in (fork_server, *workers):
            assert b"hush" not in Path(f"/proc/{pid}/environ").read_bytes()
            assert os.getpgid(pid) == os.getsid(pid) == pid
        folders = {Path(f"/proc/{pid}/cwd").readlink() for pid in workers}
        assert len(folders) == 2
        assert all(folder.parent == made._pool.folder for folder in folders)
    finally:
        made.close()


def test_a_worker_is_replaced_by_a_fork_of_what_has_pytorch_loaded(engine: LocalEngine) -> None:
    fork_server = pid_of_fork_server(engine)
    assert "libtorch" in Path(f"/proc/{fork_server}/maps").read_text()
    known = children(fork_server)
    for _ in range(5):
        engine._replace(engine._pool.workers[0])
        assert pid_of_fork_server(engine) == fork_server
        (worker,) = children(fork_server) - known
        known.add(worker)


def test_nothing_of_the_fork_server_is_within_the_reach_of_a_worker(engine: LocalEngine) -> None:
    fork_server = pid_of_fork_server(engine)
    (worker,) = children(fork_server)

    def sockets(pid: int) -> set[str]:
        links = (str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
        return {link for link in links if link.startswith(("socket:", "pipe:"))}

    assert sockets(worker)
    assert not sockets(worker) & sockets(fork_server)


@confined
def test_a_kernel_cannot_write_outside_its_workers_folder(engine: LocalEngine, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside, without = verdicts(engine, hostile_kernels.writing("inside"), hostile_kernels.writing(str(outside)))
    assert inside.outcome is Outcome.WRONG  # as it would be with a file anywhere
    assert without.outcome is Outcome.PASSED, without.log
    assert not outside.exists()


@confined
@pytest.mark.parametrize("kernel", [hostile_kernels.DIALLING, hostile_kernels.SIGNALLING], ids=lambda k: k.plan.note)
def test_a_kernel_reaches_neither_the_network_nor_other_processes(engine: LocalEngine, kernel: Kernel) -> None:
    (evaluation,) = verdicts(engine, kernel)
    assert evaluation.outcome is Outcome.PASSED, evaluation.log


def test_what_kernels_print_is_kept_for_one_job_only(engine: LocalEngine) -> None:
    sizes = []
    for _ in range(2):
        (evaluation,) = verdicts(engine, hostile_kernels.CHATTING)
        assert evaluation.passed
        sizes.append((engine._pool.workers[0].folder / "stderr").stat().st_size)
    assert 0 < sizes[1] < 1.5 * sizes[0]


def test_processes_that_a_kernel_leaves_behind_are_ended(engine: LocalEngine) -> None:
    fork_server = pid_of_fork_server(engine)
    verdicts(engine, hostile_kernels.BREEDING)
    bred = descendants(fork_server) - children(fork_server)
    assert bred
    verdicts(engine, bad_kernels.CRASHING)  # takes the worker with it
    assert all_gone(bred)


def test_crashes_in_a_row_are_each_named_and_leave_nothing(own_engine: LocalEngine) -> None:
    fork_server, folder = pid_of_fork_server(own_engine), own_engine._pool.folder
    crashing = [bad_kernels.twice_kernel(f"out[(1ll << 44) + i] = x_t({n}.0f);", f"crash {n}") for n in range(20)]
    found = {e.kernel_id: e for e in verdicts(own_engine, *crashing)}
    assert found.keys() == {kernel.id for kernel in crashing}
    assert {(e.outcome, "SIGSEGV" in e.log) for e in found.values()} == {(Outcome.CRASHED, True)}
    assert verdicts(own_engine, bad_kernels.twice_kernel())[0].passed
    assert len(children(fork_server)) == 1
    assert len(list(folder.glob("worker-*"))) == 1
    everyone = descendants(fork_server) | {fork_server}
    own_engine.close()
    assert all_gone(everyone, seconds=0)
    assert not folder.exists()


def test_an_engine_outlives_its_fork_server(own_engine: LocalEngine) -> None:
    fork_server = pid_of_fork_server(own_engine)
    workers = children(fork_server)
    phases: list[str] = []

    def kill_the_fork_server(_kernel: str, phase: str) -> None:
        phases.append(phase)
        if phases.count("run") == 1 and phase == "run":
            os.kill(fork_server, signal.SIGKILL)

    own_engine._watch = kill_the_fork_server
    (evaluation,) = verdicts(own_engine, bad_kernels.twice_kernel())
    assert evaluation.passed
    assert all_gone(workers)
    assert pid_of_fork_server(own_engine) != fork_server


def started_and_running(say: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", ENGINE_AT_WORK], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    for line in process.stdout:
        if line.strip() == say:
            return process
    raise AssertionError("the engine ended by itself")


@pytest.mark.parametrize("moment", ["made", "run"])
@pytest.mark.parametrize("victims", ["engine", "fork_server then engine", "worker then engine"])
def test_no_process_outlives_an_engine_that_is_killed(moment: str, victims: str) -> None:
    process = started_and_running(moment)
    family = descendants(process.pid)
    (fork_server,) = children(process.pid)
    if "fork_server" in victims:
        os.kill(fork_server, signal.SIGKILL)
    for worker in children(fork_server) if "worker" in victims else ():
        os.kill(worker, signal.SIGKILL)
    process.kill()
    process.communicate()
    assert all_gone(family)


def test_what_a_killed_engine_left_on_disk_goes_when_the_next_one_starts() -> None:
    process = started_and_running("made")
    process.kill()
    process.communicate()
    LocalEngine("emulated", 1).close()
    assert not list(Path(tempfile.gettempdir()).glob(f"evolve-engine-{process.pid}-*"))


def test_ctrl_c_leaves_the_processes_to_the_engine(engine: LocalEngine) -> None:
    fork_server = pid_of_fork_server(engine)
    (worker,) = children(fork_server)
    for pid in (fork_server, worker):
        os.kill(pid, signal.SIGINT)
    assert verdicts(engine, bad_kernels.twice_kernel())[0].passed
    assert alive(fork_server)
    assert children(fork_server) == {worker}


def test_closing_twice_or_before_anything_has_started_leaves_nothing() -> None:
    made = LocalEngine("emulated", 2)
    fork_server, folder = made._pool._living_fork_server.pid, made._pool.folder
    made.close()
    made.close()
    assert not alive(fork_server)
    assert not folder.exists()


def test_an_engine_starts_although_its_working_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    made = LocalEngine("emulated", 1)
    try:
        assert verdicts(made, bad_kernels.twice_kernel())[0].passed
    finally:
        made.close()

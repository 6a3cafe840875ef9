"""Processes of an engine: they get no keys, are confined, fork quickly, and end with the engine."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import hostile_kernels
import pytest
from each import sampled
from processes import alive, all_gone, children, descendants

from archive.kernel import Kernel
from archive.records import Evaluation, Outcome
from evolve.engines import sandbox
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine
from evolve.engines.pool import FOLDER_PREFIX, environment

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
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the tests find processes through /proc")
as_users_start_it = pytest.mark.usefixtures("cold_fork_servers")
confined = pytest.mark.skipif(bool(sandbox.gaps()), reason="this system lacks something that the sandbox needs")


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    """Yield one engine for all tests that do not kill its fork server."""
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
    """Return the fork server's process id once it has forked every worker."""
    while not all(worker.ready for worker in engine._pool.workers):
        engine._step()
    return engine._pool.fork_server.pid


@as_users_start_it
def test_workers_inherit_no_keys_and_lead_their_own_process_groups(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_worker_is_replaced_by_a_fork_of_the_process_that_has_loaded_pytorch(engine: LocalEngine) -> None:
    fork_server = pid_of_fork_server(engine)
    assert "libtorch" in Path(f"/proc/{fork_server}/maps").read_text()
    known = children(fork_server)
    for _ in range(5):
        engine._replace(engine._pool.workers[0])
        assert pid_of_fork_server(engine) == fork_server
        (worker,) = children(fork_server) - known
        known.add(worker)


def test_the_fork_server_keeps_bytecode_unless_the_user_forbids_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    assert "PYTHONDONTWRITEBYTECODE" not in environment(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert environment(tmp_path)["PYTHONDONTWRITEBYTECODE"] == "1"


def test_a_worker_shares_no_socket_or_pipe_with_the_fork_server(engine: LocalEngine) -> None:
    fork_server = pid_of_fork_server(engine)
    for _ in range(100):  # a worker that was replaced may still be ending
        if len(children(fork_server)) == 1:
            break
        time.sleep(0.1)
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
    assert inside.outcome is Outcome.WRONG  # the kernel was able to write inside the folder
    assert without.outcome is Outcome.PASSED, without.log
    assert not outside.exists()


@confined
@pytest.mark.parametrize("kernel", [hostile_kernels.CONNECTING, hostile_kernels.SIGNALLING], ids=lambda k: k.plan.note)
def test_a_kernel_cannot_use_the_network_or_signal_other_processes(engine: LocalEngine, kernel: Kernel) -> None:
    (evaluation,) = verdicts(engine, kernel)
    assert evaluation.outcome is Outcome.PASSED, evaluation.log


def test_the_output_of_a_kernel_is_kept_for_one_job_only(engine: LocalEngine) -> None:
    sizes = []
    for _ in range(2):
        (evaluation,) = verdicts(engine, hostile_kernels.PRINTING)
        assert evaluation.passed
        sizes.append((engine._pool.workers[0].folder / "stderr").stat().st_size)
    assert 0 < sizes[1] < 1.5 * sizes[0]


def test_processes_that_a_kernel_started_are_killed_with_its_worker(engine: LocalEngine) -> None:
    fork_server = pid_of_fork_server(engine)
    verdicts(engine, hostile_kernels.FORKING)
    started = descendants(fork_server) - children(fork_server)
    assert started
    verdicts(engine, bad_kernels.CRASHING)  # the crash ends the worker
    assert all_gone(started)


@pytest.mark.exhaustive
def test_many_crashes_are_each_reported_and_leave_no_process_or_file(own_engine: LocalEngine) -> None:
    fork_server, folder = pid_of_fork_server(own_engine), own_engine._pool.folder
    crashing = [bad_kernels.twice_kernel(f"out[(1ll << 44) + i] = x_t({n}.0f);", f"crash {n}") for n in range(20)]
    found = {e.kernel_id: e for e in verdicts(own_engine, *crashing)}
    assert found.keys() == {kernel.id for kernel in crashing}
    assert {(e.outcome, "SIGSEGV" in e.log) for e in found.values()} == {(Outcome.CRASHED, True)}
    assert verdicts(own_engine, bad_kernels.twice_kernel())[0].passed
    assert len(children(fork_server)) == 1
    assert len(list(folder.glob("worker-*"))) == 1
    processes = descendants(fork_server) | {fork_server}
    own_engine.close()
    assert all_gone(processes, seconds=0)
    assert not folder.exists()


def test_an_engine_survives_the_death_of_its_fork_server(own_engine: LocalEngine) -> None:
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


def engine_process(until: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", ENGINE_AT_WORK], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    for line in process.stdout:
        if line.strip() == until:
            return process
    raise AssertionError(f"the engine ended before it printed {until}")


@pytest.mark.parametrize("moment", sampled(["made", "run"], quick=["run"]))
@pytest.mark.parametrize(
    "victims", sampled(["engine", "fork_server then engine", "worker then engine"], quick=["engine"])
)
def test_no_process_outlives_an_engine_that_is_killed(moment: str, victims: str) -> None:
    process = engine_process(moment)
    family = descendants(process.pid)
    (fork_server,) = children(process.pid)
    if "fork_server" in victims:
        os.kill(fork_server, signal.SIGKILL)
    for worker in children(fork_server) if "worker" in victims else ():
        os.kill(worker, signal.SIGKILL)
    process.kill()
    process.communicate()
    assert all_gone(family)


@as_users_start_it
def test_an_engine_removes_the_folder_of_one_that_has_ended() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    left = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{ended.pid}-"))
    LocalEngine("emulated", 1).close()
    assert not left.exists()


@pytest.mark.exhaustive
@as_users_start_it
def test_the_next_engine_removes_the_files_of_a_killed_one() -> None:
    process = engine_process("made")
    process.kill()
    process.communicate()
    LocalEngine("emulated", 1).close()
    assert not list(Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}{process.pid}-*"))


def test_ctrl_c_does_not_end_the_fork_server_or_a_worker(engine: LocalEngine) -> None:
    fork_server = pid_of_fork_server(engine)
    (worker,) = children(fork_server)
    for pid in (fork_server, worker):
        os.kill(pid, signal.SIGINT)
    assert verdicts(engine, bad_kernels.twice_kernel())[0].passed
    assert alive(fork_server)
    assert children(fork_server) == {worker}


@as_users_start_it
def test_closing_twice_or_before_a_worker_is_ready_leaves_nothing() -> None:
    made = LocalEngine("emulated", 2)
    fork_server, folder = made._pool.fork_server.pid, made._pool.folder
    made.close()
    made.close()
    assert not alive(fork_server)
    assert not folder.exists()


@pytest.mark.exhaustive
@as_users_start_it
def test_an_engine_starts_even_if_its_working_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    made = LocalEngine("emulated", 1)
    try:
        assert verdicts(made, bad_kernels.twice_kernel())[0].passed
    finally:
        made.close()

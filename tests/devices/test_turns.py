"""Turns on a device: checks share it, timing uses it alone, and a process that is killed loses its turn."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from evolve.devices import turns
from evolve.devices.turns import Turns

SECONDS = 10.0  # seconds after which a thread that should not wait counts as blocked


class Watched:
    """A worker's turns, with their reports."""

    def __init__(self, folder: Path) -> None:
        self.waits, self.settled = threading.Event(), 0
        self.turns = Turns(folder, self._settle, self.waits.set)

    def _settle(self) -> None:
        self.settled += 1


@pytest.fixture
def some(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_two_workers_check_at_the_same_time(some: Watched, other: Watched) -> None:
    some.turns.take("check")
    other.turns.take("run")
    assert not other.waits.is_set()


def test_timing_waits_until_the_other_worker_has_ended_its_check(some: Watched, other: Watched) -> None:
    some.turns.take("check")
    timing = in_thread(lambda: other.turns.take("time"))
    assert other.waits.wait(SECONDS)
    assert timing.is_alive()
    some.turns.leave()
    timing.join(SECONDS)
    assert not timing.is_alive()


def test_a_worker_that_waits_to_time_takes_precedence_over_a_check(some: Watched, other: Watched) -> None:
    some.turns.take("check")
    timing = in_thread(lambda: other.turns.take("time"))
    assert other.waits.wait(SECONDS)
    check = in_thread(lambda: some.turns.take("run"))  # the same turn, but another phase
    timing.join(SECONDS)
    assert not timing.is_alive()
    assert some.waits.wait(SECONDS)
    other.turns.leave()
    check.join(SECONDS)
    assert not check.is_alive()


def test_a_worker_keeps_its_turn_for_the_next_phase_if_no_other_worker_waits(some: Watched) -> None:
    some.turns.take("check")
    some.turns.take("run")
    assert some.settled == 0


def test_the_device_is_idle_before_a_turn_ends(some: Watched) -> None:
    some.turns.take("check")
    some.turns.take("time")
    some.turns.leave()
    some.turns.leave()  # has no effect: the turn has ended
    assert some.settled == 2


def test_a_device_that_has_failed_does_not_keep_the_turn(tmp_path: Path, other: Watched) -> None:
    def fail() -> None:
        raise RuntimeError("an illegal access")

    failed = Turns(tmp_path, fail, lambda: None)
    failed.take("time")
    failed.leave()
    other.turns.take("time")
    assert not other.waits.is_set()


@pytest.mark.parametrize("phase", turns.ELSEWHERE)
def test_a_phase_that_does_not_need_the_device_releases_it(some: Watched, other: Watched, phase: str) -> None:
    some.turns.take("check")
    some.turns.take(phase)
    other.turns.take("time")
    assert not other.waits.is_set()


def test_a_process_of_the_sanitizer_waits_for_a_shared_turn(tmp_path: Path, some: Watched, other: Watched) -> None:
    def run() -> None:
        with turns.shared(str(tmp_path)):
            some.turns.take("time")

    other.turns.take("time")
    process = in_thread(run)
    process.join(0.2)
    assert process.is_alive()
    other.turns.leave()
    assert some.waits.wait(SECONDS)  # another worker waits to time until this turn ends


def test_without_the_files_of_a_card_a_process_runs_at_once(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path / "missing")):
        with turns.shared(folder):
            pass


def test_a_worker_that_needs_the_memory_compiles_alone_but_sanitizes_in_other_processes(
    some: Watched, other: Watched
) -> None:
    some.turns.always_alone = True
    some.turns.take("prepare")
    check = in_thread(lambda: other.turns.take("check"))
    assert other.waits.wait(SECONDS)
    some.turns.take("sanitize")
    check.join(SECONDS)
    assert not check.is_alive()


def test_a_worker_that_needs_the_memory_checks_alone(some: Watched, other: Watched) -> None:
    some.turns.always_alone = True
    some.turns.take("check")
    check = in_thread(lambda: other.turns.take("check"))
    assert other.waits.wait(SECONDS)
    some.turns.leave()
    check.join(SECONDS)
    assert not check.is_alive()


# Needs only `evolve`: a new interpreter does not find the modules of the tests.
HOLD = """
import signal, sys
from pathlib import Path
from evolve.devices import turns
from evolve.devices.turns import Turns
turns = Turns(Path(sys.argv[1]), lambda: None, lambda: None)  # the lock lasts as long as the object
turns.take("time")
print("ready", flush=True)
signal.pause()
"""


def test_a_process_that_is_killed_gives_its_turn_back(tmp_path: Path, other: Watched) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        timing = in_thread(lambda: other.turns.take("time"))
        assert other.waits.wait(SECONDS)
        process.kill()
        timing.join(SECONDS)
        assert not timing.is_alive()


def test_all_runs_on_a_machine_use_the_same_files_for_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "EVERYWHERE", tmp_path)
    one, two = (Watched(turns.folder_of_card("gpu-1", tmp_path / run)) for run in ("run 1", "run 2"))
    another = Watched(turns.folder_of_card("gpu-2", tmp_path / "run 3"))
    one.turns.take("time")
    another.turns.take("time")
    waiting = in_thread(lambda: two.turns.take("time"))
    assert two.waits.wait(SECONDS)
    one.turns.leave()
    waiting.join(SECONDS)
    assert not waiting.is_alive()


def test_a_card_whose_files_cannot_be_used_gets_turns_of_this_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "EVERYWHERE", tmp_path)
    (tmp_path / "evolve-gpu-1").write_text("a file of another program")
    own = tmp_path / "own"
    assert turns.folder_of_card("gpu-1", own) == own
    assert turns.folder_of_card("", own) == own
    assert Watched(own).turns

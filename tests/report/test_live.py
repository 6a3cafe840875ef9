"""The live display of a run, and the log without a terminal."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from drawn import drawn
from records import CPU, GPU, confirmed, failed, failed_reply, kernel, passed, proposal

from archive.kernel import Proposal
from archive.records import DeviceInfo, Evaluation, Outcome
from archive.runs import Budget
from archive.sqlite import open_archive
from evolve.report.live import EventLog, RunDisplay
from evolve.report.progress import BudgetMeter, Phases, Watcher
from evolve.selection.population import Champion

WORKLOADS = [f"rows={rows} cols=256 float32" for rows in (1, 2, 4, 8, 16, 32, 64, 128)]


def take(watching: Watcher, event: Proposal | Evaluation) -> tuple[Champion, ...]:
    """Archive an event, as the loop does before it reports it, and pass it to the watcher."""
    open_archive(watching._path).append(event)
    return watching.take(event)


def lines(log: EventLog, watching: Watcher, event: Proposal | Evaluation) -> list[str]:
    open_archive(watching._path).append(event)
    return list(log.lines(event))


def watcher(folder: Path, device: DeviceInfo = GPU) -> tuple[Watcher, Phases]:
    """Return a watcher of twenty judged kernels, every third of which failed, and one that is being checked."""
    phases = Phases()
    watching = Watcher("softmax", device, open_archive(folder / "a.db"), phases)
    for number in range(20):
        made = kernel(number)
        take(watching, Proposal("softmax", "improve", "a model", made, (kernel(number - 1).id,) if number else ()))
        phases.watch(made.id, "compile")
        if number % 3 == 2:
            take(watching, failed(made.id))
        else:
            take(watching, passed(made.id, device, **dict.fromkeys(WORKLOADS, 30.0 - number)))
    take(watching, failed_reply())
    take(watching, proposal(kernel(77), kernel(1).id))
    phases.watch(kernel(77).id, "check")
    return watching, phases


def display(watching: Watcher) -> RunDisplay:
    now = time.monotonic()
    return RunDisplay(watching, WORKLOADS, "a model", BudgetMeter(now - 30, now + 90, Budget(seconds=120.0)))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (80, 16), (50, 30)])
def test_the_display_fits_the_terminal(tmp_path: Path, width: int, height: int) -> None:
    lines = drawn(display(watcher(tmp_path)[0]), width, height)
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)


def test_the_display_has_champions_budget_outcomes_and_failures(tmp_path: Path) -> None:
    text = "\n".join(drawn(display(watcher(tmp_path)[0]), 120, 40))
    for expected in (
        "softmax on Some GPU, proposed by a model",
        "0:30 of 2:00",
        "20 evaluated",
        "11.0",  # the fastest time
        "9.09x",
        "14 passed, 6 wrong, 1 request without a kernel, 1 pending",
        f"{kernel(77).id[:8]} check",
        "draft: no kernel: no kernel in the reply",
        f"{kernel(17).id[:8]} wrong: it is wrong",
    ):
        assert expected in text


def test_the_display_shows_population_and_champions_in_a_small_terminal(tmp_path: Path) -> None:
    lines = drawn(display(watcher(tmp_path)[0]), 80, 24)
    assert sum("256" in line for line in lines) + sum("fp32" in line for line in lines) >= 8
    assert sum("improve" in line for line in lines) >= 3


def test_a_kernel_whose_profile_is_finished_is_no_longer_shown_as_being_worked_on(tmp_path: Path) -> None:
    watching, phases = watcher(tmp_path)
    phases.done(kernel(77).id)
    phases.watch(kernel(19).id, "profile")
    assert any(f"confirm {kernel(19).id[:8]} profile" in line for line in drawn(display(watching)))
    phases.watch(kernel(19).id, "")
    assert any("waiting for a model" in line for line in drawn(display(watching)))


def test_a_narrow_display_leaves_out_the_bar_before_it_cuts_off_the_activity(tmp_path: Path) -> None:
    watching, phases = watcher(tmp_path)
    phases.watch(kernel(19).id, "check")
    line = drawn(display(watching), 50, 24)[1]
    assert line.startswith("confirming the champions  0:30, 20 evaluated")
    assert len(line) <= 50


def test_an_empty_display_waits_for_the_proposer(tmp_path: Path) -> None:
    watching = Watcher("softmax", CPU, open_archive(tmp_path / "a.db"), Phases())
    text = "\n".join(drawn(display(watching)))
    assert "waiting for a model" in text
    assert "none yet" in text
    assert "CPU times" in text


def test_the_display_says_when_the_time_is_up(tmp_path: Path) -> None:
    meter = BudgetMeter(time.monotonic() - 60, time.monotonic() - 1, Budget(seconds=59.0))
    late = RunDisplay(watcher(tmp_path)[0], WORKLOADS, "a model", meter)
    assert any("time is up" in line for line in drawn(late))


def test_a_log_has_a_line_per_improvement_and_none_for_the_rest(tmp_path: Path) -> None:
    watching = Watcher("softmax", GPU, open_archive(tmp_path / "a.db"), Phases())
    log = EventLog(watching, WORKLOADS, time.monotonic())
    assert lines(log, watching, proposal(kernel(1), operator="seed")) == []
    (line,) = lines(log, watching, passed(kernel(1).id, GPU, **{WORKLOADS[0]: 25.0}))
    assert "seed: number 1" in line
    assert "25.0 µs (4.00x)" in line
    assert lines(log, watching, passed(kernel(2).id, GPU, **{WORKLOADS[0]: 26.0})) == []


def test_a_kernel_that_another_run_proposed_and_has_beaten_since_is_named_by_its_idea(tmp_path: Path) -> None:
    store = open_archive(tmp_path / "a.db")
    watching = Watcher("softmax", GPU, store, Phases())
    log = EventLog(watching, WORKLOADS, time.monotonic())
    store.append(proposal(kernel(1), run="other"), proposal(kernel(2), run="other"))
    store.append(passed(kernel(2).id, GPU, **{WORKLOADS[0]: 20.0}))
    (line,) = lines(log, watching, passed(kernel(1).id, GPU, **{WORKLOADS[0]: 25.0}))
    assert f"{kernel(1).id[:8]} knobs: number 1: fastest on" in line


def test_a_kernel_slower_than_an_archived_one_is_not_an_improvement(tmp_path: Path) -> None:
    store = open_archive(tmp_path / "a.db")
    store.append(kernel(1), passed(kernel(1).id, GPU, **{WORKLOADS[0]: 20.0}))
    watching = Watcher("softmax", GPU, store, Phases())
    assert take(watching, passed(kernel(2).id, GPU, **{WORKLOADS[0]: 21.0})) == ()


def test_running_and_checking_are_one_phase_on_the_display() -> None:
    phases = Phases()
    phases.watch("k", "run")
    assert [active.phase for active in phases.now()] == ["check"]


def test_a_kernel_that_is_right_keeps_its_speedup_on_the_display_while_its_baselines_are_timed() -> None:
    phases, told = Phases(), list[tuple[str, str]]()
    phases.found = lambda kernel_id, phase: told.append((kernel_id, phase))
    for phase in ("check", "right: 2.31x eager PyTorch", "prepare", "baseline"):
        phases.watch("k", phase)
    assert [active.phase for active in phases.now()] == ["right: 2.31x eager PyTorch"]
    assert told == [("k", "right: 2.31x eager PyTorch")]
    phases.done("k")
    phases.watch("k", "sanitize")
    assert [active.phase for active in phases.now()] == ["sanitize"]


def test_a_log_has_a_line_on_the_first_kernel_that_waits_for_its_baselines(tmp_path: Path) -> None:
    watching = Watcher("softmax", GPU, open_archive(tmp_path / "a.db"), Phases())
    log = EventLog(watching, WORKLOADS, time.monotonic())
    (line,) = log.found(kernel(1).id, "right: 2.31x eager PyTorch")
    assert line.endswith(f"{kernel(1).id[:8]} right: 2.31x eager PyTorch")
    assert list(log.found(kernel(2).id, "right: 1.5x eager PyTorch")) == []


def test_the_display_says_when_champions_are_confirmed(tmp_path: Path) -> None:
    watching, phases = watcher(tmp_path)
    phases.done(kernel(77).id)
    phases.watch(kernel(19).id, "sanitize")
    text = "\n".join(drawn(display(watching), 120, 40))
    assert "confirming the champions" in text
    assert f"confirm {kernel(19).id[:8]} sanitize" in text


def test_confirmations_do_not_count_as_kernels_evaluated(tmp_path: Path) -> None:
    watching, _ = watcher(tmp_path)
    take(watching, confirmed(kernel(19).id, GPU, **dict.fromkeys(WORKLOADS, 11.0)))
    assert watching.progress().evaluated == 20


def test_a_champion_that_fails_its_confirmation_is_a_failure_and_the_next_one_leads(tmp_path: Path) -> None:
    watching, _ = watcher(tmp_path)
    take(watching, failed(kernel(19).id, Outcome.UNSAFE, created=2.0))
    progress = watching.progress()
    assert progress.failures[0].startswith(f"{kernel(19).id[:8]} unsafe when confirmed")
    assert {champion.kernel_id for champion in progress.standing.champions} == {kernel(18).id}


def test_after_a_failed_confirmation_a_kernel_that_beats_the_next_champion_is_an_improvement(tmp_path: Path) -> None:
    watching, _ = watcher(tmp_path)
    take(watching, failed(kernel(19).id, Outcome.UNSAFE, created=2.0))
    assert take(watching, passed(kernel(30).id, GPU, **{WORKLOADS[0]: 11.5}))
    assert not take(watching, passed(kernel(31).id, GPU, **{WORKLOADS[0]: 11.7}))


def test_a_log_has_a_line_per_confirmation(tmp_path: Path) -> None:
    watching, _ = watcher(tmp_path)
    log = EventLog(watching, WORKLOADS, time.monotonic())
    (success,) = lines(log, watching, confirmed(kernel(19).id, GPU, 2.0, **{WORKLOADS[0]: 50.0, WORKLOADS[1]: 99.0}))
    assert "confirmed: won 1 of 2 duels with PyTorch, at best 2.00x; memcheck" in success
    (failure,) = lines(log, watching, failed(kernel(18).id, Outcome.UNSAFE, created=2.0))
    assert "failed its confirmation: unsafe: it is wrong" in failure


def test_a_requested_answer_in_words_is_not_a_failure_on_the_display(tmp_path: Path) -> None:
    watching = Watcher("softmax", GPU, open_archive(tmp_path / "a.db"), Phases())
    take(watching, replace(failed_reply("1. one"), operator="designs", failure=""))
    assert watching.progress().failures == ()
    take(watching, failed_reply())
    assert len(watching.progress().failures) == 1

"""Screens of the emulated device: kernels are compared with the op's first kernel, never with PyTorch."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import evolve
from drawn import drawn
from records import CPU, GPU, confirmed, kernel, measurement, passed, proposal
from standings import archive_of, standing

from archive.records import DeviceInfo, Evaluation, Traits
from archive.runs import Run
from archive.sqlite import open_archive
from archive.summaries import Timing
from evolve.cli import kernelbench
from evolve.report.basis import Basis, known_basis
from evolve.report.facts import of_champion
from evolve.report.gains import Reached, reached_table
from evolve.report.kernelbench import Published, TaskResult
from evolve.report.live import EventLog, confirmation_line
from evolve.report.progress import Phases, Watcher
from evolve.report.standing import Standing, basis_of
from evolve.report.standing_tables import champions_table, footnotes, population_table
from evolve.report.tables import measurements_table
from evolve.report.words import console

Capture = pytest.CaptureFixture[str]
ROWS, COLS = "rows=8 cols=16 float32", "rows=2 cols=512 float32"
FIRST, SECOND = kernel(1), kernel(2)
PYTORCH_US = 12.25  # a time that no kernel has
TRAITS = Traits("abc", 16, 16, 0, 40, 256, 2, tensor_cores=False, atomics=False, occupancy=0.5)


def timed(kernel_id: str, times: dict[str, float], created: float = 1.0, device: DeviceInfo = CPU) -> Evaluation:
    one = passed(kernel_id, device, created, **times)
    beside = tuple(measurement(workload, us, PYTORCH_US) for workload, us in times.items())
    return replace(one, measurements=beside, traits=TRAITS)


def emulated() -> Standing:
    evaluations = [timed(FIRST.id, {ROWS: 900.0, COLS: 600.0}), timed(SECOND.id, {ROWS: 450.0}, 2.0)]
    return standing("softmax", CPU, [FIRST, SECOND], [proposal(FIRST), proposal(SECOND, FIRST.id)], evaluations)


def test_the_basis_is_the_first_kernel_that_passed_on_a_workload() -> None:
    store = archive_of(FIRST, SECOND, timed(SECOND.id, {ROWS: 450.0, COLS: 300.0}), timed(FIRST.id, {ROWS: 900.0}))
    assert basis_of(store, "softmax", CPU).first_us == {ROWS: 900.0, COLS: 300.0}


def test_the_first_kernel_remains_the_basis_after_it_is_evaluated_again() -> None:
    again = timed(FIRST.id, {ROWS: 800.0}, 9.0)
    store = archive_of(FIRST, SECOND, timed(FIRST.id, {ROWS: 900.0}), timed(SECOND.id, {ROWS: 9.0}, 2.0), again)
    assert basis_of(store, "softmax", CPU).first_us == {ROWS: 800.0}


def test_on_a_gpu_the_basis_is_pytorch() -> None:
    assert basis_of(archive_of(FIRST, timed(FIRST.id, {ROWS: 9.0}, device=GPU)), "softmax", GPU).is_pytorch


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_champions_show_verdict_ratio_launches_and_loads_and_no_time_of_pytorch(width: int) -> None:
    found = emulated()
    header, row, *_ = drawn(champions_table(found, width), width)
    assert row.split()[:5] == ["8×16", "fp32", f"{SECOND.id[:8]}?", "correct", "2.00x"]
    assert width < 80 or header.split()[-3:-1] == ["launches", "bytes/load"]
    printed = "\n".join([header, row, *drawn(population_table(found, width), width), footnotes(found)])
    assert not {"12.25", "12.3", "eager", "compile", "0.03x", "PyTorch"} & set(printed.split())


def test_a_table_of_ops_has_no_speedup_over_pytorch_on_a_device_without_gpu_times() -> None:
    found = Reached("softmax", CPU, (Timing(ROWS, 900.0, 890.0, 910.0, 12.25, None),), judged=2)
    row = drawn(reached_table([found], 120), 120)[1]
    assert row.split()[-6:] == ["-", "-", "-", "-", "-", "2"]


def test_the_measurements_of_one_kernel_leave_pytorch_out() -> None:
    verdict = timed(FIRST.id, {ROWS: 900.0})
    header, row = drawn(measurements_table(verdict, 80, Basis({ROWS: 450.0})))
    assert header.split() == ["rows×cols", "time", "µs", "95", "%", "over", "first"]
    assert row.split()[-1] == "0.50x"
    header, row = drawn(measurements_table(verdict, 80, known_basis("emulated")))
    assert header.split() == ["rows×cols", "time", "µs", "95", "%"]
    assert "12.2" not in row


def test_the_log_of_a_run_compares_with_the_first_kernel(tmp_path: Path) -> None:
    store = open_archive(tmp_path / "a.db")
    log = EventLog(Watcher("softmax", CPU, store, Phases()), [ROWS], time.monotonic())
    printed: list[str] = []
    for event in (
        proposal(FIRST, operator="seed"),
        timed(FIRST.id, {ROWS: 900.0}),
        proposal(SECOND, FIRST.id),
        timed(SECOND.id, {ROWS: 450.0}, 2.0),
    ):
        store.append(event)
        printed += log.lines(event)
    assert [line.partition(": ")[2].partition(": ")[2] for line in printed] == [
        "correct, fastest on 1 workload, such as 8×16 fp32 (1.00x the first kernel)",
        "correct, fastest on 1 workload, such as 8×16 fp32 (2.00x the first kernel)",
    ]


def test_a_confirmation_without_a_gpu_names_the_shapes_and_no_duel() -> None:
    line = confirmation_line(confirmed(FIRST.id, CPU, **{ROWS: 900.0}))
    assert line == f"{FIRST.id[:8]} confirmed: correct on 1 shape drawn at random: rows=7 cols=1023 float32"


@pytest.mark.parametrize("command", [["show", FIRST.id], ["tree", "softmax"], ["top", "softmax"], ["runs"]])
def test_no_command_shows_pytorchs_time_beside_the_emulators(
    command: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "a.db"
    store = open_archive(path)
    store.append(Run("run", "softmax", CPU.key, "offline", 0, 1.0), proposal(FIRST), proposal(SECOND, FIRST.id))
    store.append(timed(FIRST.id, {ROWS: 900.0}), timed(SECOND.id, {ROWS: 450.0}, 2.0))
    store.close()
    code, output, _ = evolve(capsys, *command, "--archive", path)
    assert code == 0
    assert "1.00x" in output or "2.00x" in output
    assert not {"12.2", "12.3", "0.01x", "0.03x", "eager"} & set(output.split())


def test_a_level_of_kernelbench_without_gpu_times_is_a_list_of_verdicts(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    champion = of_champion(emulated().champions[0], emulated().basis)
    assert (champion["eager_us"], champion["speedup"], champion["over_first"]) == (None, None, 2.0)
    tasks = [TaskResult("1_Softmax", "1_Softmax.py", measured=(champion,)), TaskResult("2_Other", "2_Other.py")]
    kernelbench._print_result(tasks, Published("H100", {"1_Softmax.py": 250.0}), 1, "emulated", console())
    output = capsys.readouterr().out
    assert "fast_0: 1 of 2 tasks correct" in output
    assert [line.split()[:2] for line in output.splitlines()[3:5]] == [["1_Softmax", "correct"], ["2_Other", "-"]]
    assert not {"eager", "450", "250.0", "250"} & set(output.split())


def test_runs_without_gpu_times_are_compared_over_the_first_kernel(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.db"
    store = open_archive(path)
    store.append(proposal(kernel(0), operator="seed", run=""), timed(kernel(0).id, {ROWS: 900.0}, 0.5))
    for number, (run, us) in enumerate((("aaaa", 450.0), ("bbbb", 14.0)), start=1):
        made = kernel(number)
        store.append(Run(run, "softmax", CPU.key, "offline", 0, 1.0), proposal(made, run=run))
        store.append(timed(made.id, {ROWS: us}, 2.0))
    store.close()
    _, output, _ = evolve(capsys, "compare", "aaaa", "bbbb", "--archive", path)
    assert "over the op's first kernel" in " ".join(output.split())
    assert "2.00x" in output
    assert "64.29x" in output
    assert "slowest" not in output


def test_a_column_that_a_narrow_terminal_leaves_out_is_not_explained() -> None:
    found = emulated()
    assert "bytes/load" in footnotes(found, shown=["over first", "bytes/load"])
    assert "bytes/load" not in footnotes(found, shown=["over first"])

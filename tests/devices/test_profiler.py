"""NVIDIA's profiler: reading its log, and running it on a kernel.

The logs are samples that follow its manual and its messages; a script stands in for the program itself.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from device_kernels import PAIR, bound, single
from processes import all_gone

from archive.kernel import Bound
from evolve.devices import counters
from evolve.devices.device import Counted

pytest.importorskip("cupy")

from evolve.devices.cuda import profiler, replay
from evolve.devices.cuda.compiler import compile_cubin
from evolve.devices.cuda.profiler import Ncu, combined, command_line, judged, rows

TIME, READ, DRAM = (counter.name for counter in (counters.DURATION, counters.DRAM_READ, counters.DRAM))
HITS, WAVES = counters.L2_HITS.name, counters.WAVES.name
FRONT = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size"'
HEADER = f'{FRONT},"Device","CC","{READ}","{DRAM}","{TIME}","{HITS}","{WAVES}"\n'
UNITS = '"","","","","","","","","","","","byte","%","ns","%",""\n'


def row(number: int, *values: str) -> str:
    front = (str(number), "77", "python3.12", "127.0.0.1", "scale, then add(float *, int)", "1", "0", "(32, 1, 1)")
    return ",".join(f'"{value}"' for value in (*front, "(8, 1, 1)", "0", "9.0", *values)) + "\n"


CONNECTED = "==PROF== Connected to process 77 (/usr/bin/python3.12)\n"
TWO_LAUNCHES = (
    f'{CONNECTED}==PROF== Profiling "scale": 0%....50%....100% - 9 passes\n'
    '==WARNING== Backing up device memory in system memory.\n==PROF== Profiling "add": 0%....50%....100% - 9 passes\n'
    "==PROF== Disconnected from process 77\n"
    f"{HEADER}{UNITS}{row(0, '1,048,576', '80.5', '3,000', 'n/a', '32')}{row(1, '1024', '20.5', '1000', '50', '64.0')}"
)
ONE_LAUNCH = f"{CONNECTED}{HEADER}{UNITS}{row(0, '4096', '12.5', '2,048.00', 'n/a', '16')}"
REFUSED = f"""{CONNECTED}==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU \
Performance Counters on the target device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 77
==WARNING== No kernels were profiled.
"""
HELD = f"""{CONNECTED}==ERROR== Profiling failed because a driver resource was unavailable or the user does not have \
permission to access NVIDIA GPU Performance Counters. Ensure that no other tool (like DCGM) is concurrently \
collecting profiling data. For instructions on enabling permissions, see https://developer.nvidia.com/ERR_NVGPUCTRPERM.
==ERROR== Failed to profile "scale" in process 77
"""
NO_DRIVER = "==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\n"
SAID_OF_DRIVER = "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).\n"


def test_a_launch_is_read_in_base_units_without_unavailable_counters() -> None:
    first, second = rows(TWO_LAUNCHES)
    assert first == {READ: 1048576.0, DRAM: 80.5, TIME: 3000.0, WAVES: 32.0}
    assert second == {READ: 1024.0, DRAM: 20.5, TIME: 1000.0, HITS: 50.0, WAVES: 64.0}


@pytest.mark.parametrize(("unit", "text", "ns"), [("us", "1.5", 1500.0), ("msecond", "2", 2e6), ("nsecond", "7", 7.0)])
def test_a_time_in_another_unit_is_converted_to_nanoseconds(unit: str, text: str, ns: float) -> None:
    table = f"{HEADER}{UNITS.replace('ns', unit)}{row(0, '1', '1', text, '1', '1')}"
    assert rows(table)[0][TIME] == ns


@pytest.mark.parametrize("value", ["n/a", "", "nan", "inf", "1; 2; 3", "(!) n/a"])
def test_a_value_that_is_not_a_number_is_left_out(value: str) -> None:
    assert READ not in rows(HEADER + UNITS + row(0, value, "1", "1", "1", "1"))[0]


def test_a_table_without_units_is_read_too() -> None:
    assert rows(HEADER + row(0, "5", "1", "1", "1", "1"))[0][READ] == 5.0


def test_counts_are_added_ratios_weighted_by_time_and_facts_of_a_launch_taken_from_the_longest() -> None:
    found = dict(combined(rows(TWO_LAUNCHES)))
    assert found[TIME] == 4000.0
    assert found[READ] == 1049600.0
    assert found[DRAM] == pytest.approx((80.5 * 3 + 20.5) / 4)
    assert found[HITS] == 50.0  # the other launch has no hit rate
    assert found[WAVES] == 32.0


def test_a_count_that_one_launch_lacks_is_left_out() -> None:
    found = dict(combined([{READ: 10.0, TIME: 1.0}, {TIME: 1.0}]))
    assert READ not in found
    assert found[TIME] == 2.0


def test_counters_are_listed_in_the_order_in_which_they_are_explained() -> None:
    names = [counter.name for counter in counters.COUNTERS]
    found = [name for name, _ in combined(rows(TWO_LAUNCHES)) if "[" not in name]
    assert found == sorted(found, key=names.index)


def test_each_of_several_launches_keeps_its_time_and_bytes() -> None:
    found = dict(combined(rows(TWO_LAUNCHES)))
    assert [found[counters.of_launch(TIME, number)] for number in (1, 2)] == [3000.0, 1000.0]
    assert [found[counters.of_launch(READ, number)] for number in (1, 2)] == [1048576.0, 1024.0]
    assert counters.of_launch(TIME, 3) not in found


def test_the_only_launch_is_not_repeated() -> None:
    assert not [name for name, _ in combined(rows(TWO_LAUNCHES)[:1]) if "[" in name]


def test_a_whole_run_is_counted() -> None:
    counted = judged(TWO_LAUNCHES, "", 2, finished=True)
    assert not counted.fault
    assert dict(counted.counters)[TIME] == 4000.0


@pytest.mark.parametrize(("launches", "finished"), [(3, True), (2, False)])
def test_an_incomplete_run_has_no_counters(launches: int, finished: bool) -> None:
    counted = judged(TWO_LAUNCHES, "", launches, finished=finished)
    assert not counted.counters
    assert f"2 of {launches} launches" in counted.fault


def test_a_missing_permission_is_a_lasting_fault_with_a_remedy() -> None:
    counted = judged(REFUSED, "", 1, finished=True)
    assert counted.fault.startswith("this user may not read the GPU's counters: run as root")
    assert counted.lasting


def test_counters_that_another_tool_uses_are_not_a_lasting_fault() -> None:
    counted = judged(HELD, "", 1, finished=True)
    assert counted.fault.startswith("another tool holds the GPU's counters")
    assert not counted.lasting


def test_a_driver_that_cannot_be_reached_is_a_lasting_fault() -> None:
    counted = judged(NO_DRIVER, SAID_OF_DRIVER, 1, finished=False)
    assert "failed to connect to the CUDA driver" in counted.fault
    assert counted.lasting


def test_the_last_line_of_a_process_that_fails_is_quoted() -> None:
    said = "Traceback (most recent call last):\n  File x\ncudaErrorMemoryAllocation: out of memory\n"
    counted = judged(NO_DRIVER, said, 1, finished=False)
    assert counted.fault.endswith(
        "The application returned an error code (1); cudaErrorMemoryAllocation: out of memory"
    )
    assert not counted.lasting


X = torch.rand(32)


def pair(n: int) -> Bound:
    return bound(PAIR, {"x": X, "y": X}, {"n": n})


def test_skipped_launches_are_not_profiled() -> None:
    command = command_line(Path("/opt/ncu"), ["a.sum", "b.ratio"], pair(1), Path("/tmp/log"))
    assert command[0] == "/opt/ncu"
    assert command[command.index("--launch-count") + 1] == "2"
    assert command[command.index("--kernel-name") + 1] == "regex:^(scale)$"
    assert command[command.index("--metrics") + 1] == "a.sum,b.ratio"
    assert command_line(Path("/opt/ncu"), [], pair(2), Path("/tmp/log"))[-5] == "3"


def test_clocks_are_not_changed_and_caches_are_cold() -> None:
    command = command_line(Path("ncu"), [], pair(2), Path("log"))
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--cache-control") + 1] == "all"


Stand = Callable[[str], Ncu]


@pytest.fixture
def standing_in(tmp_path: Path) -> Stand:
    """Return a function that makes a stand-in for ncu: `given` holds its options, `run` the kernel's command line."""

    def made(code: str) -> Ncu:
        script = tmp_path / "ncu"
        lines = (
            f"#!{sys.executable}",
            "import os, sys, time, subprocess",
            "from pathlib import Path",
            "at = sys.argv.index(sys.executable)",
            "given, run = dict(zip(sys.argv[1:at], sys.argv[2:at])), sys.argv[at:]",
            "log, done, here = Path(given['--log-file']), Path(run[3]) / run[4], Path(__file__).parent",
            "names = given['--metrics'].split(',')",
        )
        script.write_text("\n".join([*lines, code]))
        script.chmod(0o755)
        return Ncu(script)

    return made


def count(ncu: Ncu, seconds: float = 30.0) -> Counted:
    whole = bound(single("y[threadIdx.x] = x[threadIdx.x];", "const float* x, float* y"), {"x": X, "y": X})
    return ncu.count(whole, compile_cubin(whole, "sm_90a"), {"x": X}, {"y": 128}, seconds)


def test_counters_are_read_from_the_profilers_log(standing_in: Stand) -> None:
    ncu = standing_in(f"log.write_text({ONE_LAUNCH!r}); done.touch()")
    assert dict(count(ncu).counters) == {READ: 4096.0, DRAM: 12.5, TIME: 2048.0, WAVES: 16.0}


def test_the_kernels_process_finds_the_packed_run_and_the_profiler_keeps_its_files_there(standing_in: Stand) -> None:
    checks = (
        "assert run[1:3] == ['-m', 'evolve.devices.cuda.replay']\n"
        "assert sorted(file.name for file in done.parent.glob('*.*')) == [\n"
        "    'buffer0.bin', 'done.out', 'kernel.cubin', 'plan.json']\n"
        "assert os.environ['TMPDIR'] == os.environ['HOME'] == str(done.parent) == os.getcwd()\n"
    )
    assert count(standing_in(f"{checks}log.write_text({ONE_LAUNCH!r}); done.touch()")).counters


def test_the_profiler_uses_the_only_kind_of_socket_that_a_sandbox_allows(standing_in: Stand) -> None:
    check = "assert os.environ['NV_COMPUTE_PROFILER_LOCAL_CONNECTION_OVERRIDE'] == 'uds'\n"
    assert count(standing_in(f"{check}log.write_text({ONE_LAUNCH!r}); done.touch()")).counters


@pytest.mark.parametrize("told", [r"{}", r"regex:^{}\.(sum|min|max|avg)$"])
def test_a_counter_that_the_profiler_does_not_know_is_left_out_from_then_on(standing_in: Stand, told: str) -> None:
    refused = counters.WAVES.name
    ncu = standing_in(
        "with (here / 'calls').open('a') as calls: calls.write('.')\n"
        f"error = '==ERROR== Failed to find metric ' + {told.format(refused)!r} + chr(10)\n"
        f"if {refused!r} in names: log.write_text(error)\n"
        f"else: log.write_text({ONE_LAUNCH!r}); done.touch()"
    )
    assert count(ncu).counters
    assert count(ncu).counters
    assert (ncu._tool.parent / "calls").read_text() == "..."


def test_a_profiler_without_any_of_the_counters_is_a_fault(standing_in: Stand) -> None:
    ncu = standing_in("log.write_text(''.join(f'==ERROR== Failed to find metric {name}\\n' for name in names))")
    assert "Failed to find metric gpu__time_duration.sum" in count(ncu).fault


@pytest.mark.exhaustive
def test_a_profiler_that_hangs_is_killed_with_all_processes_it_started(
    standing_in: Stand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(profiler, "GRACE_SECONDS", 0.2)
    ncu = standing_in(
        "below = subprocess.Popen(['sleep', '600'])\n"
        "(here / 'pids').write_text(f'{os.getpid()} {below.pid}')\ntime.sleep(600)"
    )
    started = time.monotonic()
    assert "took more than 2 s" in count(ncu, 2.0).fault
    assert time.monotonic() - started < 10
    assert all_gone(set(map(int, (tmp_path / "pids").read_text().split())))


def test_a_run_without_available_counters_is_a_fault() -> None:
    counted = judged(HEADER + UNITS + row(0, *["n/a"] * 5), "", 1, finished=True)
    assert counted.fault
    assert not counted.lasting


def test_a_tool_that_cannot_be_started_is_a_fault(tmp_path: Path) -> None:
    assert "No such file" in count(Ncu(tmp_path / "nowhere")).fault


def test_inputs_that_cannot_be_written_are_a_fault(standing_in: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replay, "write", full)
    assert "No space left on device" in count(standing_in("")).fault


def test_a_kernel_that_launches_nothing_needs_no_profiler(standing_in: Stand) -> None:
    plan = single("", "const float* x", grid='["n"]')
    whole = bound(plan, {"x": X}, {"n": 0})
    counted = standing_in("raise SystemExit").count(whole, compile_cubin(whole, "sm_90a"), {"x": X}, {}, 9.0)
    assert counted.fault == "the kernel launches nothing here"

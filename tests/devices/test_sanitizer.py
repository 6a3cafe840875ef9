"""compute-sanitizer: reading its log, packing runs for it and, on a GPU, running the tool itself."""

import ctypes
import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from device_kernels import bound, made, single

from archive.kernel import BoundLaunch, BoundMap, Pointer, Pointers
from archive.records import Sanitized
from evolve.devices.device import Device, SeparateRun
from evolve.devices.turns import Turns

pytest.importorskip("cupy")

from evolve.devices.cuda import replay, sanitizer
from evolve.devices.cuda.compiler import compile_cubin
from evolve.devices.cuda.replay import Buffer, PackedRun, ReplayLaunch
from evolve.devices.cuda.sanitizer import judged

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
NO_RACE = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
BEYOND = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at test_entry+0x90 in /elsewhere/kernel.cu:12
=========     by thread (31,0,0) in block (0,0,0)
=========     Access to 0x7f92c5a00080 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f92c5a00000 of size 128 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x7a689] in libcuda.so.1
=========
========= Target application returned an error
========= ERROR SUMMARY: 12 errors
========= ERROR SUMMARY: 2 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at test_entry+0x110 in kernel.cu:9
=========     and Read access at test_entry+0x190 in kernel.cu:11 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNED = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Write access at test_entry+0x110 in kernel.cu:9
=========     and Read access at test_entry+0x190 in kernel.cu:9 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
NOT_RUN = """========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
"""

UNSUPPORTED = """========= COMPUTE-SANITIZER
========= Error: Device not supported. Please refer to the "Supported Devices" section of the sanitizer documentation
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(("tool", "log"), [("memcheck", CLEAN), ("racecheck", NO_RACE), ("racecheck", WARNED)])
def test_a_summary_without_errors_is_clean(tool: str, log: str) -> None:
    assert judged(tool, log, "", finished=True) == Sanitized(tool, 0)


def test_errors_are_counted_once_and_their_text_is_kept() -> None:
    found = judged("memcheck", BEYOND, "", finished=False)
    assert found.errors == 12
    assert found.report.splitlines() == [
        "Invalid __global__ read of size 4 bytes",
        "    at test_entry+0x90 in kernel.cu:12",
        "    by thread (31,0,0) in block (0,0,0)",
        "    Access to 0x7f92c5a00080 is out of bounds",
        "    and is 1 bytes after the nearest allocation at 0x7f92c5a00000 of size 128 bytes",
    ]


def test_a_race_is_an_error() -> None:
    found = judged("racecheck", RACE, "", finished=True)
    assert found.errors == 1
    assert "Read access at test_entry+0x190 in kernel.cu:11" in found.report


def test_an_error_of_the_tool_itself_is_not_an_error_of_the_kernel() -> None:
    found = judged("synccheck", UNSUPPORTED, "", finished=True)
    assert found.errors is None
    assert "Device not supported" in found.report


@pytest.mark.parametrize("log", [NOT_RUN, "", CLEAN])
def test_a_process_that_did_not_finish_proves_nothing(log: str) -> None:
    found = judged(
        "initcheck", log, "Traceback\n  File x\ncudaErrorNoDevice: no device in /a/b/libcuda.so", finished=False
    )
    assert found.errors is None
    assert "cudaErrorNoDevice: no device in libcuda.so" in found.report


def test_a_tool_without_a_summary_proves_nothing() -> None:
    assert judged("memcheck", "========= COMPUTE-SANITIZER\n", "", finished=True).errors is None


def test_a_report_is_bounded() -> None:
    assert len(judged("memcheck", BEYOND * 100, "", finished=True).report) <= 2000


def test_a_packed_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    mapped = BoundMap("m", "x", "float32", (4, 8), (2, 8), 32)
    args = (Pointer("x"), Pointers(("x", "y")), mapped, 3, -(2**40), 1.0, math.inf)
    launch = BoundLaunch(1, "entry", (2, 3, 1), (32, 1, 1), 70000, args, cooperative=True)
    buffers = (Buffer("x", 4, contents=b"abcd"), Buffer("y", 0), Buffer("scratch", 12, zero=True))
    written = PackedRun(b"\x7fELF...", (ReplayLaunch(launch, (8, 16, 128, 4, 8, 4, 8), 100),), buffers, device=2)
    replay.write(written, tmp_path)
    found = replay.read(tmp_path)
    assert found == written
    assert [type(value) for value in found.steps[0].launch.args] == [
        Pointer,
        Pointers,
        BoundMap,
        int,
        int,
        float,
        float,
    ]


def test_only_inputs_and_zeroed_workspaces_are_initialised() -> None:
    plan = (
        '/*---\nop = "test"\n[workspace]\ncount = { shape = [3], dtype = "int32", zero = true }\n'
        'scratch = { shape = [5], dtype = "float64" }\n[[launch]]\nentry = "test_entry"\ngrid = [1]\nblock = [32]\n'
        'args = ["x", "y", "count", "scratch"]\n---*/\n'
        'extern "C" __global__ void test_entry(const float* x, float* y, int* count, double* scratch) {}\n'
    )
    x = torch.arange(6.0).view(3, 2).t()
    whole = bound(plan, {"x": x, "y": torch.zeros(7)})
    packed = replay.packed(whole, compile_cubin(whole, "sm_90a"), {"x": x}, {"y": 28})
    assert packed.buffers == (
        Buffer("x", 24, contents=x.contiguous().numpy().tobytes()),
        Buffer("y", 28),
        Buffer("count", 12, zero=True),
        Buffer("scratch", 40),
    )
    assert packed.steps[0].parameter_bytes == (8, 8, 8, 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int64])
def test_inputs_of_every_type_are_packed(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 0, 1]).to(dtype)
    whole = bound(single("", "const x_t* x"), {"x": x})
    (buffer,) = replay.packed(whole, compile_cubin(whole, "sm_90a"), {"x": x}, {}).buffers
    assert buffer.contents == x.view(torch.uint8).numpy().tobytes()


def test_only_the_first_part_of_a_large_input_is_packed() -> None:
    x = torch.arange(100.0)
    whole = bound(single("", "const x_t* x"), {"x": x})
    (buffer,) = replay.packed(whole, compile_cubin(whole, "sm_90a"), {"x": x}, {}, most_bytes=30).buffers
    assert buffer == Buffer("x", 400, contents=x[:7].numpy().tobytes())


# A tool that runs nothing: it reports an error for each run whose cubin requests one. If a cubin requests that, it
# hangs, either always, or only with this cubin alone.
FAKE_TOOL = """#!{python}
import sys, time
from pathlib import Path

log, check = (sys.argv[sys.argv.index(option) + 1] for option in ("--log-file", "--tool"))
folder, mark = Path(sys.argv[-4]), sys.argv[-3]
images = [path.read_text() for path in sorted(folder.glob("run*/kernel.cubin"))]
with Path({started!r}).open("a") as started:
    print(check, *images, file=started)
if check + " hangs" in images or [check + " fails, or hangs alone"] == images:
    time.sleep(600)
errors = images.count(check + " fails") + images.count(check + " fails, or hangs alone")
Path(log).write_text("========= ERROR SUMMARY: %d errors\\n" % errors)
(folder / mark).touch()
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace compute-sanitizer; return a file with a line for each of its processes."""
    tool, found = tmp_path / "tool", tmp_path / "started"
    tool.write_text(FAKE_TOOL.format(python=sys.executable, started=str(found)))
    tool.chmod(0o755)
    monkeypatch.setattr(sanitizer, "command", lambda: tool)
    monkeypatch.setattr(sanitizer, "SECONDS_TOGETHER", 5.0)
    return found


def packed_run(image: str, shared: int) -> PackedRun:
    launch = BoundLaunch(0, "entry", (1, 1, 1), (32, 1, 1), shared, (), cooperative=False)
    return PackedRun(image.encode(), (ReplayLaunch(launch, (), 0),), ())


def found_in(*images: str) -> list[dict[str, int | None]]:
    """Return the errors by tool of runs with these images; tools without any are left out."""
    reports = sanitizer.sanitize([packed_run(image, shared=1024) for image in images], 3.0)
    assert all([report.tool for report in each] == list(sanitizer.TOOLS) for each in reports)
    return [{report.tool: report.errors for report in each if report.errors != 0} for each in reports]


def test_one_process_of_each_tool_does_all_runs(started: Path) -> None:
    assert found_in("a", "b", "c") == [{}, {}, {}]
    assert sorted(started.read_text().splitlines()) == sorted(f"{tool} a b c" for tool in sanitizer.TOOLS)


def test_a_tool_that_finds_an_error_examines_each_run_alone(started: Path) -> None:
    assert found_in("a", "racecheck fails") == [{}, {"racecheck": 1}]
    alone = [line for line in started.read_text().splitlines() if " a racecheck fails" not in line]
    assert sorted(alone) == ["racecheck a", "racecheck racecheck fails"]


@pytest.mark.exhaustive
def test_a_tool_that_does_not_finish_examines_each_run_alone(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "SECONDS_TOGETHER", 1.0)
    assert found_in("a", "initcheck hangs") == [{}, {"initcheck": None}]
    assert "initcheck a" in started.read_text().splitlines()


@pytest.mark.exhaustive
def test_an_error_is_kept_although_no_run_alone_finishes_to_show_it(started: Path) -> None:
    assert found_in("a", "memcheck fails, or hangs alone") == [{"memcheck": 1}, {"memcheck": None}]


def test_after_a_run_that_shows_the_error_no_other_is_examined(started: Path) -> None:
    images = ["memcheck fails", *(f"run {number}" for number in range(1, 9))]
    reports = sanitizer.sanitize([packed_run(image, shared=1024) for image in images], 3.0)
    assert [[report.errors for report in each if report.tool == "memcheck"] for each in reports] == [
        [1],
        *([0] for _ in range(sanitizer.ALONE_AT_ONCE - 1)),
        *([] for _ in range(9 - sanitizer.ALONE_AT_ONCE)),
    ]
    alone = [line for line in started.read_text().splitlines() if line.count("run") <= 1]
    assert len(alone) == sanitizer.ALONE_AT_ONCE


def test_a_single_run_is_examined_once(started: Path) -> None:
    assert found_in("synccheck fails") == [{"synccheck": 1}]
    assert len(started.read_text().splitlines()) == len(sanitizer.TOOLS)


def test_races_are_looked_for_only_where_there_is_shared_memory(started: Path) -> None:
    ((*reports,),) = sanitizer.sanitize([packed_run("a", shared=0)], 3.0)
    assert [report.tool for report in reports] == [tool for tool in sanitizer.TOOLS if tool != "racecheck"]
    assert len(started.read_text().splitlines()) == len(sanitizer.TOOLS) - 1


# A process that has one second for its work, and does it in a turn.
IN_A_TURN = """
import signal, sys, time
from pathlib import Path
from evolve.devices.cuda import replay

signal.alarm(1)
with replay.turn(sys.argv[1], Path(sys.argv[2])):
    time.sleep(float(sys.argv[3]))
"""


def in_a_turn(folder: Path, seconds: float) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", IN_A_TURN, str(folder), str(folder / "mark.waits"), str(seconds)])


def test_the_time_for_which_a_process_waits_until_another_worker_has_timed_does_not_count(tmp_path: Path) -> None:
    other = Turns(tmp_path, lambda: None, lambda: None)
    other.take("time")
    process = in_a_turn(tmp_path, seconds=0.1)
    while not (tmp_path / "mark.waits").exists():
        assert process.poll() is None
        time.sleep(0.01)
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(replay.ended, process, tmp_path, "mark", 0.5)
        time.sleep(1.5)
        assert not ended.done()
        other.leave()
        assert ended.result(timeout=60)
    assert process.returncode == 0


def test_a_process_that_has_its_turn_ends_after_its_time(tmp_path: Path) -> None:
    process = in_a_turn(tmp_path, seconds=600)
    assert process.wait(timeout=60) == -signal.SIGALRM


def test_a_process_that_works_too_long_is_not_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        assert not replay.ended(process, tmp_path, "mark", 0.3)
        process.kill()


@pytest.mark.gpu
def test_a_first_part_is_repeated_when_it_is_loaded() -> None:
    from cupy.cuda import runtime

    address = replay._placed(Buffer("x", 10, contents=b"abcd"))
    found = ctypes.create_string_buffer(10)
    runtime.memcpy(ctypes.addressof(found), address, 10, runtime.memcpyDeviceToHost)
    runtime.free(address)
    assert found.raw == b"abcdabcdab"


@pytest.fixture(scope="module")
def device() -> Device:
    found = made("cuda")
    if found.tools.sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    return found


def sanitized(device: Device, kernel: str) -> Mapping[str, int | None]:
    """Return the number of errors for each tool that finds any. `x` and `y` have 32 elements."""
    assert device.tools.sanitizer
    x = torch.rand(32, device="cuda")
    (said,) = device.tools.sanitizer([SeparateRun(bound(kernel, {"x": x, "y": x}), {"x": x}, {"y": 128})], 120.0)
    for one in said:
        assert one.errors is not None, one.report
    return {one.tool: one.errors for one in said if one.errors}


ARGUMENTS = "const float* x, float* y"
RIGHT = """
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x] * table[threadIdx.x % 4];
    __syncthreads();
    y[threadIdx.x] = s[31 - threadIdx.x];"""


@pytest.mark.gpu
@pytest.mark.parametrize("qualifier", ["__device__ const", "__constant__", "__device__"])
def test_a_correct_kernel_is_clean_under_all_tools(device: Device, qualifier: str) -> None:
    kernel = single(RIGHT, ARGUMENTS).replace('extern "C"', f'{qualifier} float table[4] = {{1, 2, 3, 4}};\nextern "C"')
    assert sanitized(device, kernel) == {}


@pytest.mark.gpu
def test_a_read_one_element_beyond_an_input_is_found(device: Device) -> None:
    assert set(sanitized(device, single("y[threadIdx.x] = x[threadIdx.x + 1];", ARGUMENTS))) == {"memcheck"}


@pytest.mark.gpu
def test_a_read_far_beyond_an_input_is_found(device: Device) -> None:
    assert "memcheck" in sanitized(device, single("y[threadIdx.x] = x[threadIdx.x + 8192];", ARGUMENTS))


@pytest.mark.gpu
def test_a_race_in_shared_memory_is_found(device: Device) -> None:
    body = "__shared__ float s[64];\ns[threadIdx.x] = x[threadIdx.x % 32];\ny[threadIdx.x % 32] = s[63 - threadIdx.x];"
    assert "racecheck" in sanitized(device, single(body, ARGUMENTS, block="[64]"))


@pytest.mark.gpu
def test_a_read_of_an_unwritten_output_is_found(device: Device) -> None:
    assert set(sanitized(device, single("y[threadIdx.x] += x[threadIdx.x];", ARGUMENTS))) == {"initcheck"}


@pytest.mark.gpu
def test_a_workspace_is_uninitialised_unless_it_is_zeroed(device: Device) -> None:
    kernel = single(
        "kept[threadIdx.x] += x[threadIdx.x]; y[threadIdx.x] = kept[threadIdx.x];", f"{ARGUMENTS}, float* kept"
    )
    plain = '[workspace]\nkept = { shape = [32], dtype = "float32" }\n[[launch]]'
    zeroed = plain.replace(" }", ", zero = true }")
    assert set(sanitized(device, kernel.replace("[[launch]]", plain))) == {"initcheck"}
    assert sanitized(device, kernel.replace("[[launch]]", zeroed)) == {}


@pytest.mark.gpu
def test_a_barrier_that_half_a_warp_skips_is_found(device: Device) -> None:
    body = "if (threadIdx.x < 48) __syncthreads();\nif (threadIdx.x < 32) y[threadIdx.x] = x[threadIdx.x];"
    assert "synccheck" in sanitized(device, single(body, ARGUMENTS, block="[64]"))


@pytest.mark.gpu
def test_the_one_of_several_runs_that_has_the_error_is_named(device: Device) -> None:
    assert device.tools.sanitizer
    x = torch.rand(32, device="cuda")
    bodies = "y[threadIdx.x] = x[threadIdx.x];", "y[threadIdx.x] = x[threadIdx.x + 8192];", "y[threadIdx.x] = 1;"
    runs = [SeparateRun(bound(single(body, ARGUMENTS), {"x": x, "y": x}), {"x": x}, {"y": 128}) for body in bodies]
    found = [{one.tool for one in reports if one.errors} for reports in device.tools.sanitizer(runs, 120.0)]
    assert found[0] == found[2] == set()
    assert "memcheck" in found[1]


@pytest.mark.gpu
def test_a_kernel_that_takes_too_long_proves_nothing(device: Device) -> None:
    assert device.tools.sanitizer
    x = torch.rand(32, device="cuda")
    kernel = bound(single("while (((volatile float*)x)[0] < 2.f) {}\ny[0] = 1;", ARGUMENTS), {"x": x, "y": x})
    (said,) = device.tools.sanitizer([SeparateRun(kernel, {"x": x}, {"y": 128})], 8.0)
    tools = [one.tool for one in said]
    assert tools == ["memcheck", "initcheck", "synccheck"]  # racecheck examines only kernels with shared memory
    assert {one.errors for one in said} == {None}
    assert "took more than 8 s" in said[0].report

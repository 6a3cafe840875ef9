"""A package in unusual environments: missing or damaged files, an unknown GPU, many processes at once."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_machine import EmulatedMachine, portable, primitives, winning
from gpu_records import exported

from archive.records import DeviceInfo
from evolve.export.families import forms
from evolve.export.template import cached, nvrtc
from evolve.export.template.calls import MissingError
from evolve.export.template.dispatch import Primitive
from evolve.export.template.functions import Function
from evolve.export.template.launching import KernelError
from evolve.export.template.manifest import BrokenPackageError
from evolve.export.template.plans import Launchable
from reference_ops import catalog

SOFTMAX = catalog.load("softmax")
X = torch.randn(4, 8)
PROCESSES = 16


@dataclass(frozen=True)
class Failing(EmulatedMachine):
    """A machine that cannot prepare a kernel."""

    error: Exception = field(default_factory=lambda: MissingError("there is no NVIDIA driver (libcuda.so.1)"))

    def prepare(self, *_: Any) -> Launchable:
        raise self.error


@dataclass(frozen=True)
class Unknown(EmulatedMachine):
    """A GPU on which nothing was measured."""

    def info(self, device: torch.device) -> DeviceInfo:
        return replace(super().info(device), name="NVIDIA Unheard-of", arch="sm_999a")


def softmax(folder: Path, machine: EmulatedMachine) -> Primitive:
    return primitives(["softmax"], folder, machine)["softmax"]


def test_on_an_unknown_gpu_pytorch_runs_and_the_reason_names_both(tmp_path: Path) -> None:
    op = softmax(tmp_path, Unknown())
    assert torch.equal(op((X,), {})[0], torch.softmax(X, -1))
    assert op.explain((X,), {}).reason == "nothing was measured on NVIDIA Unheard-of, only on NVIDIA H200"


def test_without_a_driver_pytorch_runs_and_the_reason_names_the_driver(tmp_path: Path) -> None:
    op = softmax(tmp_path, Failing())
    assert torch.equal(op((X,), {})[0], torch.softmax(X, -1))
    assert op.explain((X,), {}).reason == "there is no NVIDIA driver (libcuda.so.1)"


def test_a_kernel_that_does_not_compile_here_is_an_error_every_time(tmp_path: Path) -> None:
    op = softmax(tmp_path, Failing(error=KernelError("kernel abc of softmax: no such header")))
    for _ in range(2):
        with pytest.raises(KernelError, match="no such header"):
            op((X,), {})


@pytest.mark.parametrize("change", [b"// changed\n", b"\x00"])
def test_a_source_that_was_changed_never_runs(tmp_path: Path, change: bytes) -> None:
    entry = winning(SOFTMAX, portable("softmax"), tmp_path)
    (shipped,) = entry.kernels
    with (tmp_path / shipped.file).open("ab") as file:
        file.write(change)
    machine = EmulatedMachine()
    with pytest.raises(BrokenPackageError, match=r"was changed after it was measured; install the package again"):
        Primitive(SOFTMAX, entry, tmp_path, machine)((X,), {})
    assert not machine.launched


def test_files_that_a_killed_process_left_in_the_cache_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path))
    (tmp_path / "entryabcdef.part").write_bytes(b"half")
    cached.keep("entry.cubin", b"whole")
    assert cached.kept("entry.cubin") == b"whole"


def test_an_entry_under_the_name_of_another_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path))
    cached.keep("one.cubin", b"of one")
    (tmp_path / "one.cubin").rename(tmp_path / "other.cubin")
    assert cached.kept("other.cubin") is None


def test_threads_that_call_a_function_at_once_compile_one_kernel_and_get_their_own_results(tmp_path: Path) -> None:
    machine = EmulatedMachine(by_reference=True)
    called = Function(
        next(form for form in forms() if form.name == "softmax"),
        primitives(["softmax", "softmax_backward"], tmp_path, machine),
    )
    start = threading.Barrier(PROCESSES)

    def work(number: int) -> bool:
        generator = torch.Generator().manual_seed(number)
        start.wait()
        agree = []
        for _ in range(50):
            x = torch.randn(4, 8, generator=generator)
            x.requires_grad_(bool(number % 2))
            agree.append(torch.equal(called(x, -1), torch.softmax(x, -1)))
        return all(agree)

    with ThreadPoolExecutor(PROCESSES) as pool:
        assert all(pool.map(work, range(PROCESSES)))
    assert len(machine.prepared) == 1


def test_an_entry_whose_name_is_a_folder_is_made_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path))
    (tmp_path / "entry.cubin").mkdir()
    cached.keep("entry.cubin", b"whole")
    assert cached.kept("entry.cubin") is None
    assert [file.name for file in tmp_path.iterdir()] == ["entry.cubin"]


PROCESS = """
import sys, torch
import primitives_at_once as primitives
from primitives_at_once._runtime.cubins import compiled
out = primitives.softmax(torch.ones(2, 4), -1)
code = 'extern "C" __global__ void f(float* x) { x[threadIdx.x] = NUMBER; }'
images = [compiled(code.replace("NUMBER", str(number)), "sm_90a") for number in range(4)]
print(out.sum().item(), [len(image) for image in images])
"""


@pytest.mark.exhaustive
def test_sixteen_processes_import_and_compile_at_once_on_a_damaged_cache(tmp_path: Path) -> None:
    try:
        nvrtc.nvrtc()
    except MissingError as error:
        pytest.skip(str(error))
    exported(tmp_path, "softmax", package="primitives_at_once")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment[cached.VARIABLE] = str(tmp_path / "cache")

    def run(count: int) -> set[str]:
        command = [sys.executable, "-c", PROCESS]
        started = [
            subprocess.Popen(command, cwd=tmp_path / "out", env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        said = {process.communicate()[0] for process in started}
        assert all(process.returncode == 0 for process in started)
        return said

    first = run(PROCESSES)
    entries = list((tmp_path / "cache").iterdir())
    assert [entry.suffix for entry in entries] == [".cubin"] * 4
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-1])
    assert first == run(2)
    assert len(first) == 1

"""CONTRIBUTING's recipe for a device, followed for a toy device: one folder of two files, and no other edit.

Worker processes find the folder through a `sitecustomize.py`, which Python imports at every start.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import pytest
from commandline import evolve

from archive.kernel import Kernel
from archive.records import Outcome
from evolve import devices
from evolve.devices import choose
from evolve.devices.choose import policy_of
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine
from evolve.errors import UserError
from evolve.evaluation.compiling import Compilation
from evolve.evaluation.evaluate import evaluate
from evolve.evaluation.evaluator import Evaluator
from reference_ops import catalog

pytestmark = pytest.mark.usefixtures("cold_fork_servers")
SUPPLIED = '''
"""The toy device: computes a multiple of `x` with PyTorch; the factor is in the kernel's note."""

from archive.records import Outcome
from evolve.devices.choose import PHASE_SECONDS, Policy

POLICY = Policy(
    needs=("PyTorch",),
    times="toy times",
    phase_seconds={**PHASE_SECONDS, "run": 1.0},
    held_out_bytes=2**13,
    replaced_after=(Outcome.WRONG,),
    no_profiler="a toy counts nothing",
)


def missing():
    return ""


def cards():
    return ("",)


def make(known, cubins):
    from evolve.devices.toy.device import ToyDevice

    return ToyDevice()


def compiler_for(info, cubins):
    raise NotImplementedError("the policy asks for no compilers")


def supports(kernel):
    return "wmma" not in kernel.source


def preload():
    import evolve.devices.toy.device
'''
DEVICE = """
import time

from archive.records import DeviceInfo, Outcome
from evolve.devices.device import RejectedError, Tools


class ToyProgram:
    resources, log, traits = (), "", None

    def __init__(self, bound):
        self.bound = bound
        self.note = bound.kernel.plan.note

    def launch(self, tensors):
        if self.note == "hangs":
            time.sleep(600)
        tensors["out"].copy_(float(self.note) * tensors["x"])


class ToyDevice:
    info = DeviceInfo("toy", "Toy", "toy_1", sms=1, shared_bytes=1024)
    torch_device = "cpu"
    tools = Tools()

    def compile(self, bound):
        if self.info.arch not in bound.kernel.source:
            raise RejectedError(Outcome.UNSUPPORTED, "the source does not name toy_1")
        return ToyProgram(bound)

    def run(self, program, tensors):
        program.launch(tensors)

    def time(self, call):
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1000
"""
FOUND_BY_WORKERS = """
import evolve.devices

evolve.devices.__path__.append({folder!r})
"""


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the toy's folder to the search path of devices, in this process and in every process that it starts."""
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").write_text(SUPPLIED)
    (folder / "device.py").write_text(DEVICE)
    (tmp_path / "sitecustomize.py").write_text(FOUND_BY_WORKERS.format(folder=str(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    monkeypatch.setattr(devices, "__path__", [*devices.__path__, str(tmp_path)])
    yield
    for name in [name for name in sys.modules if name.startswith("evolve.devices.toy")]:
        del sys.modules[name]


@pytest.fixture
def op(tmp_path: Path) -> str:
    return bad_kernels.small_twice(tmp_path)


def toy_kernel(factor: str) -> Kernel:
    return bad_kernels.twice_kernel("// for toy_1", note=factor)


def test_a_folder_is_a_device_that_can_be_listed_and_chosen_by_name() -> None:
    assert choose.kinds() == ("cuda", "emulated", "toy")
    assert choose.device_kind("toy") == "toy"
    assert choose.make("toy").info.name == "Toy"
    with pytest.raises(UserError, match="there is no device `to`") as caught:
        choose.device_kind("to")
    assert "cuda, emulated, toy" in caught.value.hint


def test_a_device_without_gpu_times_is_never_the_default() -> None:
    assert choose.device_kind() in {"cuda", "emulated"}


def test_doctor_says_whether_the_device_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    _, output, _ = evolve(capsys, "doctor", "--json")
    assert "toy" in json.loads(output)["usable"]


@pytest.mark.parametrize(
    ("kernel", "outcome"),
    [
        (toy_kernel("2"), Outcome.PASSED),
        (toy_kernel("3"), Outcome.WRONG),
        (bad_kernels.twice_kernel(), Outcome.UNSUPPORTED),
    ],
    ids=["right", "wrong", "unsupported"],
)
def test_the_device_evaluates_kernels(kernel: Kernel, outcome: Outcome, op: str) -> None:
    evaluator = Evaluator(choose.make("toy"), lambda _phase: None)
    verdict = evaluate(kernel, catalog.load(op), evaluator, shapes_seed=0, bars={})
    assert verdict.outcome is outcome, verdict.log
    assert verdict.device.kind == "toy"


def test_held_out_shapes_are_no_larger_than_the_policy_allows(op: str) -> None:
    loaded, device = catalog.load(op), choose.make("toy")
    drawn = [
        workload
        for seed in range(10)
        for workload, _ in Compilation(toy_kernel("2"), loaded, device.info, device.compile)
        .everything(seed, confirm=False)
        .held_out
    ]
    assert len(drawn) == 20
    assert max(loaded.nbytes(workload) for workload in drawn) <= policy_of("toy").held_out_bytes


def test_workers_evaluate_and_obey_the_policy(op: str) -> None:
    engine = LocalEngine("toy", 1)
    try:
        right, wrong, hanging = toy_kernel("2"), toy_kernel("3"), toy_kernel("hangs")
        (passed,) = engine.evaluate([Job(right, op)])
        assert (passed.outcome, len(passed.measurements)) == (Outcome.PASSED, 2), passed.log
        assert passed.device == engine.info
        first = engine._pool.workers[0].number
        assert [verdict.outcome for verdict in engine.evaluate([Job(wrong, op)])] == [Outcome.WRONG]
        assert engine._pool.workers[0].number != first  # the policy replaces a worker after a wrong result
        (late,) = engine.evaluate([Job(hanging, op)])
        assert late.outcome is Outcome.TIMED_OUT
        assert "took more than 1 s" in late.log
        assert engine.profile(right, op, "n=4096 float32") is None
        assert engine.unprofiled == "a toy counts nothing"
    finally:
        engine.close()


def test_reports_say_what_its_times_are(capsys: pytest.CaptureFixture[str], tmp_path: Path, op: str) -> None:
    (tmp_path / "right.cu").write_text(toy_kernel("2").text)
    archive = tmp_path / "archive.db"
    code, output, errors = evolve(
        capsys, "evaluate", op, tmp_path / "right.cu", "--device", "toy", "--archive", archive
    )
    assert code == 0, errors
    assert "running on the toy device, as requested. Its times are toy times." in output + errors
    _, output, _ = evolve(capsys, "top", "twice", "--archive", archive)
    assert "Toy  (toy times of the toy device; speed can be measured only on a GPU)" in output


def test_an_archive_from_a_machine_with_another_device_claims_no_gpu_times() -> None:
    policy = policy_of("abacus")
    assert not policy.times_are_gpu_times
    assert policy.times == "non-GPU times"

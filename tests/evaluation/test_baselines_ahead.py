"""Compiling baselines ahead: nothing runs, nothing is measured, and the cache serves the process that times them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted_device import SMALL_OP as OP

from evolve.devices.choose import AUTOTUNE, COMPILE, EAGER
from evolve.evaluation import baselines
from evolve.evaluation.baselines import Ending

WORKLOAD = OP.gpu[0]
TESTS = Path(__file__).parents[1]
IN_A_PROCESS_OF_ITS_OWN = """
import sys
import torch
from torch._dynamo.utils import counters
from scripted_device import ScriptedDevice

from reference_ops import catalog

what, device, name = sys.argv[1:]
OP = catalog.load(name)
WORKLOAD = OP.gpu[0] if device == "cuda" else OP.emulated[0]
if what == "ahead":
    from evolve.evaluation.baselines import compile_ahead
    print(compile_ahead("compile", OP, WORKLOAD, device).name)
    if device == "cuda":  # no tensor had memory, so nothing can have run on one
        assert torch.cuda.max_memory_allocated() < OP.nbytes(WORKLOAD) / 100
else:
    from evolve.evaluation.baselines import prepared
    call = prepared("compile", OP, WORKLOAD, ScriptedDevice(torch_device=device), lambda _phase: None)
    print(call is not None, counters["inductor"]["fxgraph_cache_hit"])
"""


class Compiler:
    """A replacement for torch.compile's inductor that calls `work` for each graph."""

    def __init__(self, work: Callable[[], object] = lambda: None) -> None:
        self.work, self.modes, self.inputs = work, list[str](), list[Any]()

    def made(self, mode: str, _options: object, _dynamic: object) -> Callable[[Any, Any], None]:
        self.modes.append(mode)

        def compile_graph(_graph: Any, inputs: Any) -> None:
            self.inputs += inputs
            self.work()

        return compile_graph


@pytest.fixture
def benchmarker(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Replace torch.compile's functions that measure, because compiling ahead changes them in this process."""
    made = SimpleNamespace(benchmark_gpu=lambda: 1.0, benchmark=lambda: 1.0, infer_device=lambda: "cuda")
    module = import_module("torch._inductor.runtime.benchmarking")
    monkeypatch.setattr(module, "benchmarker", made)
    with import_module("torch._inductor.config").patch(compile_threads=2):
        yield made


def installed(monkeypatch: pytest.MonkeyPatch, compiler: Compiler) -> Compiler:
    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", compiler.made)
    return compiler


@pytest.mark.usefixtures("benchmarker")
@pytest.mark.parametrize("name", [COMPILE, AUTOTUNE])
def test_a_baseline_is_compiled_in_its_mode_for_inputs_without_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = installed(monkeypatch, Compiler())
    assert baselines.compile_ahead(name, OP, WORKLOAD, "cpu") is Ending.COMPILED
    assert compiler.modes == [baselines.MODES[name]]
    (given,) = compiler.inputs
    assert type(given).__name__ == "FakeTensor"
    assert tuple(given.shape) == OP.shape(OP.inputs[0], WORKLOAD)


def test_a_compilation_stops_where_it_would_measure(
    benchmarker: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on: list[bool] = []

    def choose() -> None:
        try:
            benchmarker.benchmark_gpu()
        except Exception:  # noqa: BLE001 - as the compiler does, which then takes another choice
            went_on.append(True)
        went_on.append(True)

    installed(monkeypatch, Compiler(choose))
    assert baselines.compile_ahead(AUTOTUNE, OP, WORKLOAD, "cpu") is Ending.FAILED
    assert went_on == []
    assert benchmarker.infer_device() == "cuda"


def test_nothing_is_compiled_where_measurements_cannot_be_stopped(
    benchmarker: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    del benchmarker.benchmark_gpu, benchmarker.benchmark
    compiler = installed(monkeypatch, Compiler())
    assert baselines.compile_ahead(COMPILE, OP, WORKLOAD, "cpu") is Ending.FAILED
    assert compiler.inputs == []


@pytest.mark.usefixtures("benchmarker")
def test_a_compiler_that_fails_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Compiler(lambda: torch.empty(-1)))
    assert baselines.compile_ahead(COMPILE, OP, WORKLOAD, "cpu") is Ending.FAILED


@pytest.mark.usefixtures("benchmarker")
@pytest.mark.parametrize(("seconds", "ending"), [(0.0, Ending.TOO_LONG), (0.01, Ending.FAILED)])
def test_a_compilation_took_too_long_only_if_it_did_not_wait_meanwhile(
    seconds: float, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(baselines.COMPILE_SECONDS, COMPILE, 0.5)
    monkeypatch.setattr(baselines, "OWN_SHARE", 0.5)  # other tests may run at the same time

    def endless() -> None:
        while True:
            if seconds:
                time.sleep(seconds)

    installed(monkeypatch, Compiler(endless))
    assert baselines.compile_ahead(COMPILE, OP, WORKLOAD, "cpu") is ending


def test_eager_pytorch_is_not_compiled() -> None:
    assert baselines.compile_ahead(EAGER, OP, WORKLOAD, "cpu") is Ending.FAILED


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("device", "op"),
    [("cpu", "gemv"), pytest.param("cuda", "softmax", marks=pytest.mark.gpu)],  # gemv needs no host compiler
)
def test_the_process_that_times_a_baseline_loads_the_compiled_code(device: str, op: str, tmp_path: Path) -> None:
    def run(what: str) -> str:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
            "TORCHINDUCTOR_VEC_ISA_OK": "0",  # the check of vector instructions would compile for half a minute
            "PYTHONPATH": os.pathsep.join([str(TESTS / "support"), str(TESTS.parent)]),
        }
        command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, what, device, op]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    assert run("ahead") == "COMPILED"
    assert run("timed") == "True 1"

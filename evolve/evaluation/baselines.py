"""Baselines: eager PyTorch and torch.compile, which a user would run instead of a kernel. Timed once and cached."""

import contextlib
import hashlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum, auto
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

from archive.records import DeviceInfo
from evolve.devices.choose import AUTOTUNE, COMPILE, EAGER, EVERY_BASELINE, policy_of
from evolve.devices.device import Device
from evolve.evaluation.baseline_times import Baselines
from reference_ops.inputs import inputs_at
from reference_ops.listing import user_cache_dir
from reference_ops.op import Op, Tensors, Workload
from reference_ops.precision import TORCH_DTYPES

VERSION = 2  # of the timing method; times cached by other versions are ignored
SAMPLES, SETS = 24, 2
# Time limits: torch.compile unrolls a loop over a sequence, which can take an hour.
COMPILE_SECONDS = {COMPILE: 60.0, AUTOTUNE: 120.0}
OWN_SHARE = 0.9  # least share of a limit as CPU time if a compilation itself has exceeded the limit
# This mode has no CUDA graphs, which would copy every input into their own buffers; a kernel's call makes no copies
# either.
MODES = {COMPILE: "default", AUTOTUNE: "max-autotune-no-cudagraphs"}
# If one of these is set, torch.compile silently compiles nothing.
SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
# Functions of torch.compile, and the phase of each: launching, measuring, and compiling one more candidate in between,
# which takes longer than measuring it.
USING = (
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "run", "run"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "benchmark_all_configs", "baseline"),
    ("torch._inductor.runtime.benchmarking", "InductorBenchmarker", "benchmark_gpu", "baseline"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "_precompile_config", "prepare"),
)
Call = Callable[[Tensors], object]


@dataclass(frozen=True)
class BaselineCache:
    """Cache of the baselines' times on disk, one file per device, driver, PyTorch, op and workload."""

    folder: Path

    def find(self, op: Op, workload: Workload, info: DeviceInfo) -> Baselines | None:
        try:
            return Baselines(**json.loads(self._file(op, workload, info).read_text()))
        except (OSError, ValueError, TypeError):  # missing or incomplete
            return None

    def keep(self, op: Op, workload: Workload, info: DeviceInfo, baselines: Baselines) -> None:
        file = self._file(op, workload, info)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{id(baselines)}")
            part.write_text(json.dumps(asdict(baselines)))
            part.replace(file)
        except OSError:
            return  # without the file, the baselines are timed again

    def _file(self, op: Op, workload: Workload, info: DeviceInfo) -> Path:
        facts = [VERSION, info.key, info.arch, info.driver, info.torch, op.name, workload.key, _source_of(op)]
        if switched_off():
            facts.append(EAGER)
        return self.folder / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]}.json"


def cache(card: str = "") -> BaselineCache:
    """Return the cache of a device, or of one of its cards: cards of one kind differ slightly."""
    return BaselineCache(user_cache_dir() / "baselines" / card)


def switched_off() -> bool:
    """Return whether the user's environment disables torch.compile, which would then run eager PyTorch."""
    return any(os.environ.get(switch) == "1" for switch in SWITCHES)


def import_compiler(device: Device) -> threading.Thread:
    """Begin to import torch.compile, if it is a baseline, in a thread, because that takes seconds.

    Join the thread to wait.
    """

    def load() -> None:
        if COMPILE not in policy_of(device.info.kind).baselines or switched_off():
            return
        with contextlib.suppress(Exception):  # baselines that need this import fail, and eager PyTorch is the baseline
            import_module("torch._dynamo")
            import_module("torch._inductor.compile_fx")

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    return thread


def timed(
    op: Op, workload: Workload, device: Device, watch: Callable[[str], None], names: Iterable[str] = EVERY_BASELINE
) -> Baselines:
    """Time the baselines that the device's policy lists, alternating between them."""
    calls: dict[str, Call] = {}
    given_up = ""
    offered = policy_of(device.info.kind).baselines
    for name in (name for name in names if name in offered):
        try:
            call = prepared(name, op, workload, device, watch)
        except TimeoutError:
            given_up, call = name, None
        if call is None:
            break  # a function that fails to compile also fails with autotuning
        calls[name] = call
    watch("baseline")
    times: dict[str, list[float]] = {name: [] for name in calls}
    sets = [inputs_at(op, workload, seed, device.torch_device) for seed in range(SETS)]
    for sample in range(SAMPLES + 1):
        for name, call in calls.items():
            took = device.time(lambda: call(sets[sample % SETS]))  # noqa: B023
            if sample:  # the first sample is a warm-up
                times[name].append(took)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    return Baselines(medians[EAGER], medians.get(COMPILE), medians.get(AUTOTUNE), given_up)


def prepared(name: str, op: Op, workload: Workload, device: Device, watch: Callable[[str], None]) -> Call | None:
    """Return a baseline compiled for this workload's exact shapes, as in a model of fixed sizes; None if it fails.

    Raises TimeoutError if torch.compile exceeds its limit.
    """
    if name == EAGER:
        return lambda inputs: op.call_baseline(inputs, workload)
    if switched_off():
        return None
    torch._dynamo.config.recompile_limit = 10_000  # noqa: SLF001 - one compiled function per workload, many workloads
    function = torch.compile(op.baseline or op.reference, dynamic=False, mode=MODES[name])
    parameters = dict(workload.parameters)

    def call(inputs: Tensors) -> object:
        return function(*inputs.values(), **parameters)

    watch("run")
    inputs = inputs_at(op, workload, 0, device.torch_device)
    expired = threading.Event()
    try:
        with in_turn(watch), time_limit(COMPILE_SECONDS[name], expired):
            call(inputs)
    except Exception as error:  # where the compiler fails, eager PyTorch is the baseline
        if expired.is_set():  # the compiler may raise its own error for the interruption
            raise TimeoutError(f"took more than {COMPILE_SECONDS[name]:g} s") from error
        return None
    return call


@contextlib.contextmanager
def in_turn(watch: Callable[[str], None]) -> Iterator[None]:
    """Begin a phase other than "prepare" while torch.compile uses the device in the body, to launch or to measure.

    torch.compile compiles for seconds and uses the device for a fraction of a second. If PyTorch's functions have other
    names in this version, the whole body is one phase with exclusive use of the device.
    """
    phases = ["prepare"]

    def with_phase(phase: str, use: Callable[..., object]) -> Callable[..., object]:
        def used(*args: object, **options: object) -> object:
            measures = phases[-1] == "baseline" and phase == "run"  # a measurement uses the device until it ends
            if phases[-1] == phase or measures or threading.current_thread() is not threading.main_thread():
                return use(*args, **options)
            phases.append(phase)
            watch(phase)
            try:
                return use(*args, **options)
            finally:
                phases.pop()
                watch(phases[-1])

        return used

    found = _using()
    watch("prepare" if found else "baseline")
    for owner, name, phase, use in found:
        setattr(owner, name, with_phase(phase, use))
    try:
        yield
    finally:
        for owner, name, _, use in found:
            setattr(owner, name, use)


def _using() -> list[tuple[object, str, str, Callable[..., object]]]:
    """Return the classes, names, phases and functions of USING, or none if one does not exist in this version."""
    try:
        owners = [(getattr(import_module(module), owner), name, phase) for module, owner, name, phase in USING]
        return [(owner, name, phase, getattr(owner, name)) for owner, name, phase in owners]
    except (ImportError, AttributeError):
        return []


@contextlib.contextmanager
def time_limit(seconds: float, expired: threading.Event | None = None) -> Iterator[None]:
    """Raise TimeoutError in the body after some seconds. It works only in the main thread, where evaluations run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        if expired:
            expired.set()
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _source_of(op: Op) -> str:
    """Return the text of the file that defines the op: changing it invalidates cached times."""
    file = getattr(sys.modules.get(op.reference.__module__), "__file__", None)
    return Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else ""


MEASURING = "benchmark"  # prefix of the names of methods that measure


class _StoppedError(BaseException):
    """Raised to end a compilation.

    It is not an Exception, because the compiler treats an Exception as a choice that does not work.
    """


class Ending(Enum):
    """The way in which a compilation ahead has ended."""

    COMPILED = auto()
    FAILED = auto()
    TOO_LONG = auto()  # it used the time limit itself, not because other programs delayed it


def compile_ahead(name: str, op: Op, workload: Workload, torch_device: str) -> Ending:
    """Compile a baseline for this workload until the device is needed; return how it ended."""
    if name not in MODES or switched_off():
        return Ending.FAILED
    ended: list[bool] = []
    began = time.process_time()

    def call(*_: object) -> NoReturn:
        ended.append(True)
        raise _StoppedError

    try:
        _keep_from_measuring()
        compiler = torch._TorchCompileInductorWrapper(MODES[name], None, False)  # noqa: SLF001 - there is no public name

        def backend(graph: Any, inputs: Any) -> Callable[..., NoReturn]:
            compiler(graph, inputs)
            return call

        function = torch.compile(op.baseline or op.reference, dynamic=False, backend=backend)
        with time_limit(COMPILE_SECONDS[name]):
            function(*fake_inputs(op, workload, torch_device).values(), **dict(workload.parameters))
    except (_StoppedError, Exception):  # noqa: BLE001, S110 - what fails here fails again where it counts
        pass
    finally:
        torch._dynamo.reset()  # noqa: SLF001 - torch.compiler.reset is this function
    if ended:
        return Ending.COMPILED
    used_all = time.process_time() - began >= OWN_SHARE * COMPILE_SECONDS[name]
    return Ending.TOO_LONG if used_all else Ending.FAILED


def fake_inputs(op: Op, workload: Workload, torch_device: str) -> Tensors:
    """Return inputs that have sizes but no values."""
    modes: Any = import_module("torch._subclasses.fake_tensor")
    with modes.FakeTensorMode():
        return {
            spec.name: torch.empty(
                op.shape(spec, workload), dtype=TORCH_DTYPES[spec.dtype or workload.dtype], device=torch_device
            )
            for spec in op.inputs
        }


def _keep_from_measuring() -> None:
    """Let this process compile without helper processes, and make torch.compile stop where it would measure.

    Raises an exception if this version of PyTorch measures in another way, so that nothing is compiled ahead.
    """
    settings: Any = import_module("torch._inductor.config")
    settings.compile_threads = 1
    measuring: Any = import_module("torch._inductor.runtime.benchmarking").benchmarker
    methods = [name for name in dir(measuring) if name.startswith(MEASURING) and callable(getattr(measuring, name))]
    if not methods:
        raise RuntimeError("torch.compile's measurements were not found")
    for name in methods:
        setattr(measuring, name, _stop)


def _stop(*_arguments: object, **_options: object) -> NoReturn:
    raise _StoppedError

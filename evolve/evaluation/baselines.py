"""What a user would run instead of a kernel: eager PyTorch and torch.compile. Timed once, and kept on disk."""

import contextlib
import hashlib
import json
import os
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from archive.records import DeviceInfo
from evolve.devices.device import Device
from evolve.evaluation.caches import evolve_cache_dir
from reference_ops.op import Op, Tensors, Workload

VERSION = 2  # of how baselines are timed: what an older one left on disk is not read
SAMPLES, SETS = 24, 2
STEADY = 0.03  # PyTorch's time may stray so far without meaning that the GPU has changed its pace
EAGER, COMPILE, AUTOTUNE = EVERY = "eager", "compile", "autotune"
# As long as anybody would wait; a loop over a sequence, which it unrolls, can take it an hour.
COMPILE_SECONDS = {COMPILE: 60.0, AUTOTUNE: 120.0}
# With one of them torch.compile compiles nothing, and does not say so.
SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
Call = Callable[[Tensors], object]


@dataclass(frozen=True)
class Baselines:
    """Times of what PyTorch offers for one workload; None where torch.compile cannot."""

    eager_us: float
    compile_us: float | None = None
    autotune_us: float | None = None
    given_up: str = ""  # the first of them that took too long to prepare

    @property
    def fastest_first(self) -> tuple[str, ...]:
        times = ((self.eager_us, EAGER), (self.compile_us, COMPILE), (self.autotune_us, AUTOTUNE))
        return tuple(name for _, name in sorted((time, name) for time, name in times if time))

    @property
    def best_us(self) -> float:
        return min(time for time in (self.eager_us, self.compile_us, self.autotune_us) if time)

    def anchored(self, eager_us: float) -> "Baselines":
        """The same at the GPU's present pace, which eager PyTorch, timed again just now, gives away.

        Only ever faster: where eager has become slower, something ails that alone, and no kernel may gain by it.
        """
        pace = eager_us / self.eager_us
        if pace >= 1 - STEADY:
            return self
        compile_us, autotune_us = (time and time * pace for time in (self.compile_us, self.autotune_us))
        return replace(self, eager_us=eager_us, compile_us=compile_us, autotune_us=autotune_us)


@dataclass(frozen=True)
class Shelf:
    """Baselines on disk, one file per device, driver, PyTorch, op and workload."""

    folder: Path

    def find(self, op: Op, workload: Workload, info: DeviceInfo) -> Baselines | None:
        try:
            return Baselines(**json.loads(self._file(op, workload, info).read_text()))
        except (OSError, ValueError, TypeError):  # absent, or half-written by a machine that lost power
            return None

    def keep(self, op: Op, workload: Workload, info: DeviceInfo, baselines: Baselines) -> None:
        file = self._file(op, workload, info)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            half = file.with_suffix(f".{id(baselines)}")
            half.write_text(json.dumps(asdict(baselines)))
            half.replace(file)
        except OSError:
            return  # then they are timed again next time

    def _file(self, op: Op, workload: Workload, info: DeviceInfo) -> Path:
        facts = [VERSION, info.key, info.arch, info.driver, info.torch, op.name, workload.key, _text(op)]
        if switched_off():
            facts.append(EAGER)
        return self.folder / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]}.json"


def shelf() -> Shelf:
    return Shelf(evolve_cache_dir() / "baselines")


def switched_off() -> bool:
    """Whether the user's environment leaves eager PyTorch alone: what torch.compile returned would be that again."""
    return any(os.environ.get(switch) == "1" for switch in SWITCHES)


def timed(op: Op, workload: Workload, device: Device, names: Iterable[str] = EVERY) -> Baselines:
    """Time what PyTorch offers here, in turns; on the emulated device eager PyTorch alone."""
    calls: dict[str, Call] = {}
    given_up = ""
    for name in names if device.info.kind == "cuda" else (EAGER,):
        try:
            call = prepared(name, op, workload, device)
        except TimeoutError:
            given_up, call = name, None
        if call is None:
            break  # what the compiler cannot do by default, it does not do with more effort either
        calls[name] = call
    times: dict[str, list[float]] = {name: [] for name in calls}
    sets = [op.inputs_at(workload, seed, device.torch_device) for seed in range(SETS)]
    for sample in range(SAMPLES + 1):
        for name, call in calls.items():
            took = device.time(lambda: call(sets[sample % SETS]))  # noqa: B023
            if sample:  # the first warms up
                times[name].append(took)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    return Baselines(medians[EAGER], medians.get(COMPILE), medians.get(AUTOTUNE), given_up)


def prepared(name: str, op: Op, workload: Workload, device: Device) -> Call | None:
    """A baseline ready to be called at this workload's exact shapes, as in a model of fixed sizes; None if it fails.

    Raises TimeoutError when torch.compile takes longer than anybody would wait.
    """
    if name == EAGER:
        return lambda inputs: op.call_baseline(inputs, workload)
    if switched_off():
        return None
    torch._dynamo.config.recompile_limit = 10_000  # noqa: SLF001 - one compiled function per workload, many workloads
    # CUDA graphs would copy every input into buffers of their own; a call of a kernel does not either.
    mode = "max-autotune-no-cudagraphs" if name == AUTOTUNE else "default"
    function = torch.compile(op.baseline or op.reference, dynamic=False, mode=mode)
    parameters = dict(workload.parameters)

    def call(inputs: Tensors) -> object:
        return function(*inputs.values(), **parameters)

    expired = threading.Event()
    try:
        with _at_most(COMPILE_SECONDS[name], expired):
            call(op.inputs_at(workload, 0, device.torch_device))
    except Exception as error:  # whatever the compiler cannot do, eager is the baseline
        if expired.is_set():  # the compiler may wrap what interrupts it into an error of its own
            raise TimeoutError(f"took more than {COMPILE_SECONDS[name]:g} s") from error
        return None
    return call


@contextlib.contextmanager
def _at_most(seconds: float, expired: threading.Event) -> Iterator[None]:
    """Raises TimeoutError amid whatever runs then, in a process' main thread, which is where evaluations run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        expired.set()
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _text(op: Op) -> str:
    """The file that defines the op: who changes it gets fresh baselines."""
    file = getattr(sys.modules.get(op.reference.__module__), "__file__", None)
    return Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else ""

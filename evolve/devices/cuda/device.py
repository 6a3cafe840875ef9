"""The GPU as a Device."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from cupy.cuda import runtime
from cupy_backends.cuda.api.driver import CUDADriverError

from archive.binding import Bound
from archive.records import Conditions, DeviceInfo, Outcome, Sanitized
from evolve.devices import state
from evolve.devices.cuda import clean, profiler, sanitizer
from evolve.devices.cuda.compiler import compile_cubin
from evolve.devices.cuda.conditions import conditions
from evolve.devices.cuda.profiler import Ncu
from evolve.devices.cuda.program import CudaProgram
from evolve.devices.cuda.rates import copy_gb_s, matrix_tflops
from evolve.devices.cuda.watch import Watch
from evolve.devices.device import Counted, Profiler, Program, RejectedError, Sanitizer

LEAST_HEAD_START_CYCLES = 100_000  # with the flush some 0.11 ms in which the host enqueues the call
MOST_CYCLES = 40_000_000  # 20 ms
LONGER, SHORTER = 2, 0.98
GRAPH_REPLAYS = 7
RESOURCE_ERRORS = ("OUT_OF_RESOURCES", "COOPERATIVE_LAUNCH_TOO_LARGE")


class CudaDevice:
    """One NVIDIA GPU. Launches go to PyTorch's current stream, tensors are PyTorch's.

    `known` is what another process has found out about this GPU, so that its rates need not be measured again;
    `cubins` a folder in which other processes leave what they have compiled.
    """

    torch_device = "cuda"

    def __init__(self, known: DeviceInfo | None = None, cubins: Path | None = None) -> None:
        torch.zeros(1, device="cuda")  # makes the primary context that CuPy shares
        clean.bound_limits()
        self._known, self._cubins = known, cubins
        self._head_start = _HeadStart()
        self._free_memory = clean.FreeMemory()
        self._watched: WeakKeyDictionary[CudaProgram, _Watched] = WeakKeyDictionary()

    @cached_property
    def info(self) -> DeviceInfo:
        properties = torch.cuda.get_device_properties(0)
        attributes = runtime.getDeviceProperties(0)
        suffix = "a" if properties.major >= 9 else ""
        facts = DeviceInfo(
            kind="cuda",
            name=properties.name,
            arch=f"sm_{properties.major}{properties.minor}{suffix}",
            sms=properties.multi_processor_count,
            shared_bytes=int(attributes["sharedMemPerBlockOptin"]),
            l2_bytes=int(attributes["l2CacheSize"]),
            driver=str(runtime.driverGetVersion()),
            torch=torch.__version__,
        )
        known = self._known
        if known and known.key == facts.key:
            return replace(facts, copy_gb_s=known.copy_gb_s, tflops=known.tflops)
        measured = replace(facts, copy_gb_s=copy_gb_s(), tflops=matrix_tflops())
        torch.cuda.empty_cache()  # gigabytes that would have to be overwritten before every run
        return measured

    @property
    def conditions(self) -> Conditions | None:
        return conditions(runtime.deviceGetPCIBusId(torch.cuda.current_device()))

    @property
    def sanitizer(self) -> Sanitizer | None:
        return self._sanitize if sanitizer.command() else None

    @property
    def profiler(self) -> Profiler | None:
        return self._profile if self._ncu else None

    @cached_property
    def _ncu(self) -> Ncu | None:
        tool = profiler.command()
        return Ncu(tool) if tool else None

    @cached_property
    def _cleaner(self) -> clean.Cleaner:
        return clean.Cleaner(self.info.arch, self.info.sms, self.info.shared_bytes)

    def compile(self, bound: Bound) -> Program:
        cubin = compile_cubin(bound, self.info.arch, self._cubins)
        try:
            program = CudaProgram(bound, cubin, self.info.sms)
            if cubin.variables:
                self._watched[program] = _Watched(Watch(program.module, cubin.variables, self.info.arch))
        except CUDADriverError as error:
            raise RejectedError(Outcome.LAUNCH_ERROR, f"the GPU refused the compiled kernel: {error}") from error
        return program

    def run(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
        self._free_memory.erase()
        self._cleaner.poison_shared()
        try:
            program.launch(tensors)
        except CUDADriverError as error:
            _wait(torch.cuda.synchronize)  # it may be the fault of an earlier launch, told late
            outcome = Outcome.ILLEGAL if any(name in str(error) for name in RESOURCE_ERRORS) else Outcome.LAUNCH_ERROR
            raise RejectedError(outcome, f"a launch failed: {error}") from error
        _wait(torch.cuda.synchronize)
        self._check_unchanged()

    def time(self, call: Callable[[], object]) -> float:
        """GPU time of one call. The L2 is filled with clean lines, and the host gets ahead of the GPU."""
        clean.reset_persisting_lines()
        self._cleaner.poison_shared_and_flush()
        elapsed_us = self._head_start.timed(call)
        self._check_unchanged()
        return elapsed_us

    def graph_time(self, calls: Sequence[Callable[[], object]]) -> float | None:
        """The median of several replays of one graph."""
        graph = _captured(calls)
        if graph is None:
            return None
        replays = [
            self._head_start.timed(graph.replay) for _ in range(1 + GRAPH_REPLAYS)
        ]  # the first one also loads the graph
        self._check_unchanged()
        return statistics.median(replays[1:]) / len(calls)

    def _check_unchanged(self) -> None:
        for program, watched in self._watched.items():
            if names := watched.changed_by(program):
                raise state.changed(names)

    def _sanitize(
        self, bound: Bound, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, int], seconds: float
    ) -> tuple[Sanitized, ...]:
        cubin = compile_cubin(bound, self.info.arch, self._cubins)
        return sanitizer.sanitize(bound, cubin, inputs, outputs, seconds)

    def _profile(
        self, bound: Bound, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, int], seconds: float
    ) -> Counted:
        assert self._ncu  # noqa: S101 - or nobody was given this method
        cubin = compile_cubin(bound, self.info.arch, self._cubins)
        return self._ncu.count(bound, cubin, inputs, outputs, seconds)


class _Watched:
    """The variables of one program, and up to which of its calls they were looked at."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._calls = watch, 0

    def changed_by(self, program: CudaProgram) -> list[str]:
        if self._calls == program.calls:
            return []
        self._calls = program.calls
        return self._watch.changed()


class _HeadStart:
    """Keeps the GPU busy while the host enqueues what is timed; for as long as the host was seen to need."""

    def __init__(self) -> None:
        self._cycles = float(LEAST_HEAD_START_CYCLES)

    def timed(self, call: Callable[[], object]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(self._cycles))  # noqa: SLF001 - public in all but name; PyTorch's own tests time with it
        start.record()
        call()
        end.record()
        # If the GPU is at it already, it may have waited for the host: a busy machine, or a call of many launches.
        late = _wait(start.query)
        self._cycles = min(max(self._cycles * (LONGER if late else SHORTER), LEAST_HEAD_START_CYCLES), MOST_CYCLES)
        _wait(end.synchronize)
        milliseconds: float = start.elapsed_time(end)
        return milliseconds * 1000


def _captured(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph | None:
    """The calls as one graph, or None where one of them does what a graph cannot hold."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for call in calls:
                    call()
            finally:
                graph.capture_end()
    except (RuntimeError, CUDADriverError):
        return None
    return graph


def _wait(synchronize: Callable[[], object]) -> object:
    try:
        return synchronize()
    except RuntimeError as error:
        raise RejectedError(Outcome.CRASHED, str(error).splitlines()[0]) from error

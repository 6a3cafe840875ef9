"""The CUDA device: compiles, runs and times kernels on one NVIDIA GPU."""

import ctypes
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from cupy.cuda import runtime
from cupy_backends.cuda.api.driver import CUDADriverError

from archive.kernel import Bound
from archive.records import Conditions, DeviceInfo, Outcome, Sanitized
from evolve.devices import state
from evolve.devices.cuda import POLICY, memory, profiler, rates, replay, sanitizer
from evolve.devices.cuda.compiler import compile_cubin
from evolve.devices.cuda.error_passes import CudaErrorPasses
from evolve.devices.cuda.memory import VariableWatch
from evolve.devices.cuda.profiler import Ncu
from evolve.devices.cuda.program import CudaProgram
from evolve.devices.device import Counted, Program, RejectedError, SeparateRun, Tools

LEAST_HEAD_START_CYCLES = 100_000  # together with the flush, this gives the host 0.11 ms to enqueue the call
MOST_CYCLES = 40_000_000  # about 20 ms
LONGER, SHORTER = 2, 0.98
GRAPH_REPLAYS = 7
RESOURCE_ERRORS = ("OUT_OF_RESOURCES", "COOPERATIVE_LAUNCH_TOO_LARGE")
SUCCESS = 0
SM_CLOCK, MEMORY_CLOCK, GPU_TEMPERATURE = 1, 2, 0
# Reasons for low clocks. An idle GPU and clocks set by a user are left out: they are not faults.
THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "clocks kept in step with other GPUs",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class CudaDevice:
    """One NVIDIA GPU, with PyTorch's tensors and current stream.

    `known` is this GPU's info from another process, so that its rates need not be measured again. `cubins` is the
    folder to which other processes write compiled kernels.
    """

    torch_device = POLICY.torch_device

    def __init__(self, known: DeviceInfo | None = None, cubins: Path | None = None) -> None:
        torch.zeros(1, device="cuda")  # creates the primary context, which CuPy shares
        memory.bound_limits()
        self._known, self._cubins = known, cubins
        self._head_start = _HeadStart()
        self._free_memory = memory.FreeMemory()
        self._variables: WeakKeyDictionary[CudaProgram, _ProgramVariables] = WeakKeyDictionary()

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
            return rates.kept(facts, known)
        measured = rates.measured(facts)
        torch.cuda.empty_cache()  # free memory is overwritten only if it has changed: it may be gigabytes
        return measured

    @cached_property
    def tools(self) -> Tools:
        return Tools(
            card=f"gpu-{torch.cuda.get_device_properties(0).uuid}",
            memory_bytes=torch.cuda.get_device_properties(0).total_memory,
            free_bytes=lambda: torch.cuda.mem_get_info()[0],
            conditions=_conditions_here,
            call_as_timed=self._call_as_timed,
            graph_time=self._graph_time,
            capture=_replay_of,
            sanitizer=self._sanitize if sanitizer.command() else None,
            profiler=self._profile if self._ncu else None,
            errors=CudaErrorPasses(self.info.arch, self.info.sms),
        )

    @cached_property
    def _ncu(self) -> Ncu | None:
        tool = profiler.command()
        return Ncu(tool) if tool else None

    @cached_property
    def _cleaner(self) -> memory.Cleaner:
        return memory.Cleaner(self.info.arch, self.info.sms, self.info.shared_bytes)

    def compile(self, bound: Bound) -> Program:
        cubin = compile_cubin(bound, self.info.arch, self._cubins)
        try:
            program = CudaProgram(bound, cubin, self.info.sms)
            if cubin.variables:
                self._variables[program] = _ProgramVariables(
                    VariableWatch(program.module, cubin.variables, self.info.arch)
                )
        except CUDADriverError as error:
            raise RejectedError(Outcome.LAUNCH_ERROR, f"the GPU refused the compiled kernel: {error}") from error
        return program

    def run(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
        self._free_memory.erase()
        self._cleaner.poison_shared()
        try:
            program.launch(tensors)
        except CUDADriverError as error:
            _wait(torch.cuda.synchronize)  # raises if the error is a late report of an earlier launch
            outcome = Outcome.ILLEGAL if any(name in str(error) for name in RESOURCE_ERRORS) else Outcome.LAUNCH_ERROR
            raise RejectedError(outcome, f"a launch failed: {error}") from error
        _wait(torch.cuda.synchronize)
        self._check_unchanged()

    def time(self, call: Callable[[], object]) -> float:
        """Return the GPU time of one call.

        Before the call, the L2 is filled with clean lines, and the host enqueues the call ahead.
        """
        self._clean()
        elapsed_us = self._head_start.timed(call)
        self._check_unchanged()
        return elapsed_us

    def _call_as_timed(self, call: Callable[[], object]) -> None:
        """Make one call with the GPU in the state in which `time` calls it.

        The host does not enqueue the call ahead, because only a timing needs that.
        """
        self._clean()
        call()
        _wait(torch.cuda.synchronize)
        self._check_unchanged()

    def _clean(self) -> None:
        memory.reset_persisting_lines()
        self._cleaner.poison_shared_and_flush()

    def _graph_time(self, calls: Sequence[Callable[[], object]]) -> float | None:
        """Return the time per call: the median of several replays of one graph of all calls."""
        graph = _captured(calls)
        if graph is None:
            return None
        replays = [
            self._head_start.timed(graph.replay) for _ in range(1 + GRAPH_REPLAYS)
        ]  # the first replay also loads the graph
        self._check_unchanged()
        return statistics.median(replays[1:]) / len(calls)

    def _check_unchanged(self) -> None:
        for program, variables in self._variables.items():
            if names := variables.changed_by(program):
                raise state.changed(names)

    def _sanitize(self, runs: Sequence[SeparateRun], seconds: float) -> list[tuple[Sanitized, ...]]:
        packed = [
            replay.packed(
                run.bound, compile_cubin(run.bound, self.info.arch, self._cubins), run.inputs, run.outputs,
                sanitizer.PACKED_BYTES,
            )
            for run in runs
        ]  # fmt: skip
        return sanitizer.sanitize(packed, seconds)

    def _profile(
        self, bound: Bound, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, int], seconds: float
    ) -> Counted:
        assert self._ncu  # noqa: S101 - `tools` offers this method only with ncu
        cubin = compile_cubin(bound, self.info.arch, self._cubins)
        return self._ncu.count(bound, cubin, inputs, outputs, seconds)


def _conditions_here() -> Conditions | None:
    return conditions(runtime.deviceGetPCIBusId(torch.cuda.current_device()))


class _ProgramVariables:
    """Variables of one program, with the number of calls after which they were last compared."""

    def __init__(self, watch: VariableWatch) -> None:
        self._watch, self._calls = watch, 0

    def changed_by(self, program: CudaProgram) -> list[str]:
        if self._calls == program.calls:
            return []
        self._calls = program.calls
        return self._watch.changed()


class _HeadStart:
    """Work that keeps the GPU busy while the host enqueues the timed call.

    Its length adapts to the time that the host needs.
    """

    def __init__(self) -> None:
        self._cycles = float(LEAST_HEAD_START_CYCLES)

    def timed(self, call: Callable[[], object]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(self._cycles))  # noqa: SLF001 - PyTorch's own tests time with it
        start.record()
        call()
        end.record()
        # If the GPU has already started, it may have waited for a busy host or a call with many launches.
        late = _wait(start.query)
        self._cycles = min(max(self._cycles * (LONGER if late else SHORTER), LEAST_HEAD_START_CYCLES), MOST_CYCLES)
        _wait(end.synchronize)
        milliseconds: float = start.elapsed_time(end)
        return milliseconds * 1000


def _replay_of(call: Callable[[], object]) -> Callable[[], object] | None:
    graph = _captured([call])
    return graph.replay if graph else None


def _captured(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph | None:
    """Return the calls as one graph, or None if one of them cannot be captured."""
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


def conditions(pci_bus_id: str) -> Conditions | None:
    """Return clocks, temperature, power and throttling, or None if NVML does not report all of them."""
    library = _library()
    if library is None:
        return None
    try:
        device = ctypes.c_void_p()
        _ask(library, "nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.encode(), ctypes.byref(device))
        ask = partial(_number, library, device)
        return Conditions(
            sm_mhz=ask("nvmlDeviceGetClockInfo", SM_CLOCK),
            memory_mhz=ask("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            temperature_c=ask("nvmlDeviceGetTemperature", GPU_TEMPERATURE),
            power_w=round(ask("nvmlDeviceGetPowerUsage") / 1000),
            throttled=throttled(ask("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)),
        )
    except _NvmlError:
        return None


def throttled(reasons: int) -> str:
    """Return the names of the driver's throttle reasons, separated by commas."""
    return ", ".join(word for bit, word in THROTTLES.items() if reasons & bit)


class _NvmlError(Exception):
    """Raised when NVML lacks a function or returned an error."""


def _number(
    library: ctypes.CDLL, device: ctypes.c_void_p, name: str, *choice: int, kind: Callable[[], Any] = ctypes.c_uint
) -> int:
    value = kind()
    _ask(library, name, device, *map(ctypes.c_int, choice), ctypes.byref(value))
    return int(value.value)


def _ask(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        status = getattr(library, name)(*arguments)
    except AttributeError as error:
        raise _NvmlError from error
    if status != SUCCESS:
        raise _NvmlError


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        _ask(library, "nvmlInit_v2")
    except (OSError, _NvmlError):
        return None
    return library

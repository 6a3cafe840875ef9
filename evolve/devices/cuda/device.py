"""The GPU as a Device."""

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from cupy.cuda import runtime
from cupy_backends.cuda.api.driver import CUDADriverError

from archive.binding import Bound
from archive.records import DeviceInfo, Outcome
from evolve.devices.cuda.compiler import compile_cubin
from evolve.devices.cuda.program import CudaProgram
from evolve.devices.cuda.rates import copy_gb_s, matrix_tflops
from evolve.devices.device import Program, RejectedError

FLUSH_BYTES = 2**28  # several times the L2 of any GPU so far
HEAD_START_CYCLES = 250_000  # about 0.13 ms in which the host enqueues the call while the GPU is still busy
RESOURCE_ERRORS = ("OUT_OF_RESOURCES", "COOPERATIVE_LAUNCH_TOO_LARGE")


class CudaDevice:
    """One NVIDIA GPU. Launches go to PyTorch's current stream, tensors are PyTorch's."""

    torch_device = "cuda"

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")  # makes the primary context that CuPy shares
        self._flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    @cached_property
    def info(self) -> DeviceInfo:
        properties = torch.cuda.get_device_properties(0)
        attributes = runtime.getDeviceProperties(0)
        suffix = "a" if properties.major >= 9 else ""
        return DeviceInfo(
            kind="cuda",
            name=properties.name,
            arch=f"sm_{properties.major}{properties.minor}{suffix}",
            sms=properties.multi_processor_count,
            shared_bytes=int(attributes["sharedMemPerBlockOptin"]),
            l2_bytes=int(attributes["l2CacheSize"]),
            driver=str(runtime.driverGetVersion()),
            torch=torch.__version__,
            copy_gb_s=copy_gb_s(),
            tflops=matrix_tflops(),
        )

    def compile(self, bound: Bound) -> Program:
        cubin = compile_cubin(bound, self.info.arch)
        try:
            return CudaProgram(bound, cubin, self.info.sms)
        except CUDADriverError as error:
            raise RejectedError(Outcome.LAUNCH_ERROR, f"the GPU refused the compiled kernel: {error}") from error

    def run(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
        try:
            program.launch(tensors)
        except CUDADriverError as error:
            outcome = Outcome.ILLEGAL if any(name in str(error) for name in RESOURCE_ERRORS) else Outcome.LAUNCH_ERROR
            raise RejectedError(outcome, f"a launch failed: {error}") from error
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise RejectedError(Outcome.CRASHED, str(error).splitlines()[0]) from error

    def time(self, call: Callable[[], object]) -> float:
        """GPU time of one call. The L2 is filled with clean lines, and the host gets ahead of the GPU."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flush.sum()
        torch.cuda._sleep(HEAD_START_CYCLES)  # noqa: SLF001 - public in all but name; PyTorch's own tests time with it
        start.record()
        call()
        end.record()
        try:
            end.synchronize()
        except RuntimeError as error:
            raise RejectedError(Outcome.CRASHED, str(error).splitlines()[0]) from error
        milliseconds: float = start.elapsed_time(end)
        return milliseconds * 1000

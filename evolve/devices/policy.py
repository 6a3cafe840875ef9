"""What differs between devices for the parts that evaluate kernels, search for them and report on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from archive.records import Outcome

EAGER, COMPILE, AUTOTUNE = EVERY_BASELINE = "eager", "compile", "autotune"

# "compile" holds for each workload, "run" for the candidate alone; torch.compile makes "baseline" slow.
PHASE_SECONDS: Mapping[str, float] = {
    "compile": 20.0,
    "run": 5.0,
    "check": 60.0,
    "baseline": 300.0,
    "time": 60.0,
    "sanitize": 120.0,
    "profile": 120.0,
}


@dataclass(frozen=True)
class Policy:
    """Facts about one kind of device. The defaults claim nothing, so they also serve kinds that are not installed."""

    needs: tuple[str, ...] = ()  # findings of `evolve doctor` without which the device cannot run
    torch_device: str = "cpu"  # where PyTorch holds the tensors that kernels run on

    # Only GPU times are held against the speed of light, and exported.
    times_are_gpu_times: bool = False
    times: str = "non-GPU times"  # their name in reports
    baselines: tuple[str, ...] = (EAGER,)  # of PyTorch, in the order in which they are tried

    phase_seconds: Mapping[str, float] = field(default_factory=lambda: PHASE_SECONDS)  # deadlines
    held_out_bytes: int = 2**18  # the largest shape that is drawn to check a kernel
    held_out_threads: int | None = None  # that it may start, if no declared workload starts more; None for no limit

    most_workers: int = 1  # processes that hold the device
    most_compilers: int = 0  # processes that compile ahead for them, without the device
    # Limit on a worker's memory. CUDA reserves too much address space for one.
    worker_bytes: int | None = None
    kernels_are_native_code: bool = False  # which can overwrite its worker's memory, so workers are confined more
    replaced_after: tuple[Outcome, ...] = (Outcome.CRASHED, Outcome.LAUNCH_ERROR)  # outcomes that cost the worker

    no_profiler: str = "this device has no profiler"  # the reason why nothing was counted
    no_sanitizer: str = "this device has no sanitizer"

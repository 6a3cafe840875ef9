"""Policies of devices: facts that evaluation, search and reports need about each kind of device."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from archive.records import Outcome

EAGER, COMPILE, AUTOTUNE = EVERY_BASELINE = "eager", "compile", "autotune"

# "compile" applies to each workload, "run" to the candidate only; torch.compile makes "prepare" and "baseline" slow.
PHASE_SECONDS: Mapping[str, float] = {
    "compile": 20.0,
    "run": 5.0,
    "check": 60.0,
    "prepare": 300.0,
    "baseline": 300.0,
    "time": 60.0,
    "sanitize": 240.0,
    "profile": 120.0,
}


@dataclass(frozen=True)
class Policy:
    """Facts about one kind of device. The defaults are cautious, and are used for kinds that are not installed."""

    needs: tuple[str, ...] = ()  # findings of `evolve doctor` that the device requires
    torch_device: str = "cpu"  # PyTorch's name of the device that holds the kernels' tensors

    # Only GPU times are compared with the speed of light and exported.
    times_are_gpu_times: bool = False
    times: str = "non-GPU times"  # name of the times in reports
    baselines: tuple[str, ...] = (EAGER,)  # PyTorch's modes, in the order in which they are tried

    phase_seconds: Mapping[str, float] = field(default_factory=lambda: PHASE_SECONDS)  # deadlines
    held_out_bytes: int = 2**18  # of the largest shape that is drawn to check a kernel
    stretched_bytes: int = 2**21  # of the largest shape in which one dim exceeds those that the op lists
    stretched_flops: int = 2**21  # of such a shape
    stretched_steps: int | None = None  # rows of such a shape times threads of a block; None: no limit
    held_out_threads: int | None = None  # of a held-out shape, unless a declared workload has more; None: no limit
    # Shapes with dims of 1 to 4 or equal ones in an evaluation that confirms nothing; None: all, as in one that does.
    edge_shapes: int | None = None
    beyond_elements: int | None = None  # a champion is checked on a tensor of more; None: on none

    most_workers: int = 1  # processes that hold the device, or one of its cards
    card_variable: str = ""  # environment variable that limits a process to one card; empty if there is only one
    most_compilers: int = 0  # processes that compile ahead for them and do not hold the device
    most_preparers: int = 0  # processes that compile baselines ahead; they hold the device, but run nothing on it
    # Limit on a worker's memory. None for CUDA, which reserves too much address space for a limit.
    worker_bytes: int | None = None
    kernels_are_native_code: bool = False  # can overwrite their worker's memory, so workers are confined more strictly
    replaced_after: tuple[Outcome, ...] = (Outcome.CRASHED, Outcome.LAUNCH_ERROR)  # these end the worker's use

    no_profiler: str = "this device has no profiler"  # reason why there are no counters
    no_sanitizer: str = "this device has no sanitizer"

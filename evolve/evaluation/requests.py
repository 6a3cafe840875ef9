"""What may be asked of an evaluator besides a verdict on a kernel, and its answers. Imports no torch."""

from dataclasses import dataclass

from archive.records import Profile, Standard


@dataclass(frozen=True)
class TimingRequest:
    """Time what PyTorch offers at one workload of an op."""

    op: str  # what the catalog loads: a name, or the absolute path of a file
    workload: str
    again: bool = False  # time it although the times are already known
    eager_alone: bool = False  # without torch.compile, which has ended a worker there


@dataclass(frozen=True)
class TimingResult:
    """PyTorch's times, or why there are none; `tainted` where the process that took them must not be used again."""

    standard: Standard | None
    fault: str = ""
    tainted: bool = False


@dataclass(frozen=True)
class ProfileRequest:
    """Count what a kernel does at one workload with the device's profiler."""

    kernel: str  # its text
    op: str
    workload: str


@dataclass(frozen=True)
class ProfileResult:
    """What the profiler counted, or why nothing was; `lasting` where no other kernel would fare better."""

    profile: Profile | None
    fault: str = ""
    lasting: bool = False

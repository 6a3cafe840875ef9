"""Requests to an evaluator other than to evaluate a kernel, and their results. This module does not import torch."""

from dataclasses import dataclass

from archive.records import Profile, Standard


@dataclass(frozen=True)
class TimingRequest:
    """Request to time PyTorch at one workload of an op."""

    op: str  # as the catalog loads it: a name, or the absolute path of a file
    workload: str
    again: bool = False  # even if the times are already known
    eager_alone: bool = False  # without torch.compile, because it has crashed a worker there
    given_up: str = ""  # a baseline that took too long to compile at another workload of the op


@dataclass(frozen=True)
class TimingResult:
    """PyTorch's times, or the reason why they are missing; `tainted` if the process must not be used again."""

    standard: Standard | None
    fault: str = ""
    tainted: bool = False
    hint: str = ""  # what the user can do if the fault is in the op


@dataclass(frozen=True)
class PreparationRequest:
    """Request to compile a baseline ahead at one workload of an op, so that the later timing takes less time."""

    op: str
    workload: str
    baseline: str


@dataclass(frozen=True)
class Prepared:
    """Report that a preparation has ended. The later timing of the baseline shows whether it helped."""

    too_long: bool = False  # whether the compilation used all the time that it may take


@dataclass(frozen=True)
class ProfileRequest:
    """Request to profile a kernel at one workload."""

    kernel: str  # the kernel's text
    op: str
    workload: str


@dataclass(frozen=True)
class ProfileResult:
    """The profiler's counters, or the reason why they are missing; `lasting` if other kernels would fail too."""

    profile: Profile | None
    fault: str = ""
    lasting: bool = False


Request = TimingRequest | ProfileRequest | PreparationRequest
Answer = TimingResult | ProfileResult

"""What an engine, its fork_server and its workers say to each other: one JSON object a line."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import get_args

from archive import plain
from archive.records import DeviceInfo, Evaluation, Profile, Standard, Traits


class Role(StrEnum):
    """What a worker is for."""

    COMPILER = "compiler"  # compiles ahead, without a device
    EVALUATOR = "evaluator"  # holds a device and gives verdicts


@dataclass(frozen=True)
class Fork:
    """To the fork_server, with one end of the worker's channel: start a worker."""

    number: int
    role: Role
    folder: str  # its own: working folder, temporary files and standard error
    cubins: str  # where compilers leave what evaluators load
    memory_bytes: int | None  # that it may take; CUDA reserves addresses by the terabyte and cannot be bounded so
    device: DeviceInfo | None  # as an earlier worker found it, so that nothing is measured again


@dataclass(frozen=True)
class Kill:
    """To the fork_server: end a worker with its whole process group."""

    number: int


@dataclass(frozen=True)
class Forked:
    """From the fork_server: the worker has begun to live."""

    number: int
    pid: int


@dataclass(frozen=True)
class Exited:
    """From the fork_server: the worker is no more. A negative status is a signal's."""

    number: int
    status: int


@dataclass(frozen=True)
class Assignment:
    """To a worker: a job."""

    kernel: str
    op: str
    bars: tuple[tuple[str, float], ...]
    confirm: bool
    shapes_seed: int  # compiler and evaluator draw the same held-out shapes from it
    device: DeviceInfo | None  # what a compiler compiles for


@dataclass(frozen=True)
class ProfileRequest:
    """To an evaluator: have the profiler count what a kernel does at one workload."""

    kernel: str
    op: str
    workload: str


@dataclass(frozen=True)
class TimingRequest:
    """To an evaluator: time what PyTorch offers at one workload."""

    op: str
    workload: str
    again: bool = False  # although it is known from earlier
    eager_alone: bool = False  # torch.compile has ended a worker there


@dataclass(frozen=True)
class Ready:
    """The worker waits for jobs; an evaluator holds this device."""

    device: DeviceInfo | None


@dataclass(frozen=True)
class Phase:
    """The worker begins a phase of the job in hand, which has a deadline of its own."""

    name: str


@dataclass(frozen=True)
class Precompiled:
    """The kernel of the job in hand compiles for all its workloads, to this."""

    traits: Traits | None


@dataclass(frozen=True)
class Done:
    """The verdict on the job in hand. `leaving` says that the worker is not fit for another."""

    evaluation: Evaluation
    leaving: bool = False


@dataclass(frozen=True)
class ProfileResult:
    """What was counted, or why nothing was; `lasting` where no other kernel would fare better on this device."""

    profile: Profile | None
    fault: str = ""
    lasting: bool = False


@dataclass(frozen=True)
class TimingResult:
    """What PyTorch takes, or why nobody can say. `leaving` says that it cost the worker, or might have spoilt it."""

    standard: Standard | None
    fault: str = ""
    leaving: bool = False


@dataclass(frozen=True)
class Failed:
    """A fault of ours or of the user's; an unforeseen one may come of memory that an emulated kernel spoilt."""

    message: str
    hint: str = ""
    unforeseen: bool = False


Message = (
    Fork | Kill | Forked | Exited | Assignment | ProfileRequest | TimingRequest | Ready | Phase | Precompiled | Done
    | ProfileResult | TimingResult | Failed
)  # fmt: skip
KINDS = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    fields = json.loads(line)
    kind: type[Message] = KINDS[fields.pop("type")]
    return plain.record(kind, fields)

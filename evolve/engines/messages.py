"""Messages between an engine, its fork server and its workers: one JSON object per line of a socket."""

import contextlib
import json
import socket
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import get_args

from archive import plain
from archive.records import DeviceInfo, Evaluation, Traits
from evolve.evaluation.requests import (
    PreparationRequest,
    Prepared,
    ProfileRequest,
    ProfileResult,
    TimingRequest,
    TimingResult,
)

WAITING = "waiting"  # the phase in which a job waits for other jobs
RIGHT = "right: "  # first words of the phase of a kernel that was checked and timed and whose baselines are being timed
BYTES_PER_READ, MOST_READS = 2**16, 64


class Role(StrEnum):
    """Purpose of a worker."""

    COMPILER = "compiler"  # compiles ahead of the evaluators and holds no device
    EVALUATOR = "evaluator"  # holds a device and evaluates kernels
    PREPARER = "preparer"  # compiles baselines ahead for a device on which it runs nothing


@dataclass(frozen=True)
class Fork:
    """Request to the fork server to start a worker. It comes with one end of the worker's channel."""

    number: int
    role: Role
    folder: str  # the worker's own folder: its working folder, with its temporary files and its standard error
    cubins: str  # folder to which compilers write files that evaluators load
    memory_bytes: int | None  # limit on the worker's memory; None on CUDA, which reserves terabytes of addresses
    device: DeviceInfo | None  # the device as an earlier worker measured it, so that nothing is measured twice
    # the only card of the device that the worker may use, such as one GPU of several; empty for the first
    card: str = ""


@dataclass(frozen=True)
class Kill:
    """Request to the fork server to kill a worker with its whole process group."""

    number: int


@dataclass(frozen=True)
class Forked:
    """Report of the fork server that a worker's process exists."""

    number: int
    pid: int


@dataclass(frozen=True)
class Exited:
    """Report of the fork server that a worker's process has ended. A negative status is minus a signal's number."""

    number: int
    status: int


@dataclass(frozen=True)
class Assignment:
    """Job for a worker."""

    kernel: str
    op: str
    bars: tuple[tuple[str, float], ...]
    confirm: bool
    shapes_seed: int  # compiler and evaluator use it to draw the same held-out shapes
    device: DeviceInfo | None  # the device to compile for
    setting: bool = False  # a setting of knobs of a kernel that has passed
    traits: Traits | None = None  # set once a compiler has compiled the kernel
    helps: bool = False  # another compiler is compiling this kernel: compile what is left, and give no verdict


@dataclass(frozen=True)
class Expected:
    """Notice to a worker that its first job will need this op: it loads the op while it waits."""

    op: str


@dataclass(frozen=True)
class Ready:
    """Report of a worker that it waits for jobs. `device` is the device that an evaluator holds."""

    device: DeviceInfo | None


@dataclass(frozen=True)
class Phase:
    """Report of a worker that the current job enters a phase. Each phase has its own deadline."""

    name: str


@dataclass(frozen=True)
class Precompiled:
    """Report of a compiler that the current job's kernel compiles for all its workloads and has these traits."""

    traits: Traits | None


@dataclass(frozen=True)
class Contends:
    """Report of an evaluator that the current job's setting of knobs may be fast, and must be evaluated in full."""


@dataclass(frozen=True)
class Lacking:
    """Report of an evaluator that baselines at these workloads of the current job's op have not been timed yet."""

    workloads: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """Evaluation of a worker's current job; `tainted` if the worker must not be used again."""

    evaluation: Evaluation
    tainted: bool = False
    lacking: tuple[str, ...] = ()  # workloads at which it was compared only with eager PyTorch


@dataclass(frozen=True)
class Failed:
    """Error in a worker or the fork server that is not the kernel's fault.

    If it is `unforeseen`, the cause may be memory that an emulated kernel has overwritten.
    """

    message: str
    hint: str = ""
    unforeseen: bool = False


Message = (
    Fork | Kill | Forked | Exited | Assignment | Expected | ProfileRequest | TimingRequest | PreparationRequest | Ready
    | Phase | Precompiled | Contends | Lacking | Done | ProfileResult | TimingResult | Prepared | Failed
)  # fmt: skip
KINDS = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    fields = json.loads(line)
    kind: type[Message] = KINDS[fields.pop("type")]
    return plain.record(kind, fields)


class Channel:
    """One end of a socket that carries messages. Its methods never block."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.end.setblocking(False)
        self.closed_at: float | None = None  # time at which the other end was found to be closed
        self.unsent = b""
        self._partial_line = b""

    def send(self, message: Message) -> None:
        self.unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Send as much of the unsent messages as the socket accepts."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.end.send(self.unsent) :]
        except BlockingIOError:
            return
        except OSError:  # the other end is closed; `receive` or the fork server reports it
            self.unsent = b""

    def receive(self) -> list[bytes]:
        """Return the complete lines that have arrived."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            for _ in range(MOST_READS):  # a process that never stops writing must not block the engine
                try:
                    part = self.end.recv(BYTES_PER_READ)
                except ConnectionError:
                    part = b""
                if not part:
                    self.closed_at = time.monotonic()
                    break
                data += part
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        return lines

"""What an engine, its nursery and its workers say to each other: one JSON object a line."""

import json
import types
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import repeat
from typing import Any, Union, get_args, get_origin, get_type_hints

from archive.records import DeviceInfo, Evaluation


class Role(StrEnum):
    """What a worker is for."""

    COMPILER = "compiler"  # compiles ahead, without a device
    EVALUATOR = "evaluator"  # holds a device and gives verdicts


@dataclass(frozen=True)
class Fork:
    """To the nursery, with one end of the worker's channel: start a worker."""

    number: int
    role: Role
    folder: str  # its own: working folder, temporary files and standard error
    cubins: str  # where compilers leave what evaluators load
    memory_bytes: int | None  # that it may take; CUDA reserves addresses by the terabyte and cannot be bounded so
    device: DeviceInfo | None  # as an earlier worker found it, so that nothing is measured again


@dataclass(frozen=True)
class Kill:
    """To the nursery: end a worker with its whole process group."""

    number: int


@dataclass(frozen=True)
class Forked:
    """From the nursery: the worker has begun to live."""

    number: int
    pid: int


@dataclass(frozen=True)
class Exited:
    """From the nursery: the worker is no more. A negative status is a signal's."""

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
class Ready:
    """The worker waits for jobs; an evaluator holds this device."""

    device: DeviceInfo | None


@dataclass(frozen=True)
class Phase:
    """The worker begins a phase of the job in hand, which has a deadline of its own."""

    name: str


@dataclass(frozen=True)
class Precompiled:
    """The kernel of the job in hand compiles for all its workloads."""


@dataclass(frozen=True)
class Done:
    """The verdict on the job in hand. `leaving` says that the worker is not fit for another."""

    evaluation: Evaluation
    leaving: bool = False


@dataclass(frozen=True)
class Failed:
    """A fault of ours or of the user's, not of the kernel."""

    message: str
    hint: str = ""


Message = Fork | Kill | Forked | Exited | Assignment | Ready | Phase | Precompiled | Done | Failed
KINDS = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    fields = json.loads(line)
    message: Message = _restored(KINDS[fields.pop("type")], fields)
    return message


def _restored(wanted: Any, plain: Any) -> Any:
    """JSON's lists, strings and objects as the types that a field is declared with."""
    if isinstance(wanted, type) and is_dataclass(wanted):
        hints = _hints(wanted)
        return wanted(**{name: _restored(hints[name], value) for name, value in plain.items()})
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin is tuple:
        kinds = repeat(parts[0]) if parts[-1] is ... else iter(parts)
        return tuple(_restored(kind, value) for kind, value in zip(kinds, plain, strict=False))
    if origin in (types.UnionType, Union):
        return None if plain is None else _restored(parts[0], plain)
    return wanted(plain) if isinstance(wanted, type) and issubclass(wanted, StrEnum) else plain


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)

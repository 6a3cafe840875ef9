"""A compiled kernel with its buffers as files in a folder, for a process that runs it without PyTorch."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from archive.binding import BoundLaunch, Pointer, Pointers, Value

CUBIN, PLAN, DONE = "kernel.cubin", "plan.json", "done"


@dataclass(frozen=True)
class Buffer:
    """A tensor or workspace: its contents, or that it is zeroed; a kernel's output begins as nothing at all."""

    name: str
    nbytes: int
    zero: bool = False
    contents: bytes | None = None


@dataclass(frozen=True)
class Step:
    """A launch, and what its entry takes as compiled."""

    launch: BoundLaunch
    parameter_bytes: tuple[int, ...]
    static_shared: int


@dataclass(frozen=True)
class Parcel:
    image: bytes
    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    device: int = 0


def write(parcel: Parcel, folder: Path) -> None:
    (folder / CUBIN).write_bytes(parcel.image)
    for index, buffer in enumerate(parcel.buffers):
        if buffer.contents is not None:
            _contents(folder, index).write_bytes(buffer.contents)
    plan = {
        "steps": [_plain(step) for step in parcel.steps],
        "buffers": [asdict(replace(buffer, contents=None)) for buffer in parcel.buffers],
        "device": parcel.device,
    }
    (folder / PLAN).write_text(json.dumps(plan))


def read(folder: Path) -> Parcel:
    plan = json.loads((folder / PLAN).read_text())
    return Parcel(
        image=(folder / CUBIN).read_bytes(),
        steps=tuple(_step(step) for step in plan["steps"]),
        buffers=tuple(_buffers(plan["buffers"], folder)),
        device=plan["device"],
    )


def _buffers(fields: list[dict[str, Any]], folder: Path) -> Iterator[Buffer]:
    for index, buffer in enumerate(fields):
        file = _contents(folder, index)
        yield replace(Buffer(**buffer), contents=file.read_bytes() if file.exists() else None)


def _contents(folder: Path, index: int) -> Path:
    return folder / f"buffer{index}.bin"


def _plain(step: Step) -> dict[str, Any]:
    args = [_plain_value(value) for value in step.launch.args]
    return {**asdict(step), "launch": {**asdict(step.launch), "args": args}}


def _plain_value(value: Value) -> Any:
    match value:
        case Pointer(name=name):
            return name
        case Pointers(names=names):
            return list(names)
    return value


def _step(fields: dict[str, Any]) -> Step:
    launch = fields["launch"]
    bound = BoundLaunch(
        index=launch["index"],
        entry=launch["entry"],
        grid=tuple(launch["grid"]),
        block=tuple(launch["block"]),
        shared=launch["shared"],
        args=tuple(_value(value) for value in launch["args"]),
        cooperative=launch["cooperative"],
    )
    return Step(bound, tuple(fields["parameter_bytes"]), fields["static_shared"])


def _value(plain: Any) -> Value:
    match plain:
        case str():
            return Pointer(plain)
        case list():
            return Pointers(tuple(plain))
    number: int | float = plain
    return number

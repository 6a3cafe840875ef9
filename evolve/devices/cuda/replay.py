"""Replay of runs of a kernel in a separate process, without PyTorch, under one of NVIDIA's command line tools.

That process runs this module as its main program.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archive.kernel import Bound, BoundLaunch, BoundMap, Pointer, Pointers, Value
from evolve.devices.cuda.compiler import Cubin
from evolve.devices.turns import shared

if TYPE_CHECKING:
    import torch

CUBIN, PLAN, DONE = "kernel.cubin", "plan.json", "done"
WAITS, POLL_SECONDS = "waits", 0.1
RUN = "run"  # prefix of the names of folders that hold one of several runs
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Buffer:
    """A tensor or workspace, with its contents or whether it is zeroed. Outputs have neither.

    Contents that are smaller than the tensor are repeated.
    """

    name: str
    nbytes: int
    zero: bool = False
    contents: bytes | None = None


@dataclass(frozen=True)
class ReplayLaunch:
    """A launch, with the sizes of its compiled entry's parameters and shared memory."""

    launch: BoundLaunch
    parameter_bytes: tuple[int, ...]
    static_shared: int


@dataclass(frozen=True)
class PackedRun:
    """Everything that one run needs. `write` saves it in a folder, `read` loads it."""

    image: bytes
    steps: tuple[ReplayLaunch, ...]
    buffers: tuple[Buffer, ...]
    device: int = 0


def tool(name: str, wheels: Sequence[str], elsewhere: Iterable[Path] = ()) -> Path | None:
    """Find a tool on the PATH, in an installed toolkit, in these folders of NVIDIA's wheels, or in `elsewhere`."""
    candidates = (*_candidates(name, wheels), *elsewhere)
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def _candidates(name: str, wheels: Sequence[str]) -> Iterator[Path]:
    if found := shutil.which(name):
        yield Path(found)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "bin" / name
    yield Path("/usr/local/cuda/bin") / name
    for key in ("purelib", "platlib"):
        for wheel in wheels:
            yield Path(sysconfig.get_path(key)) / "nvidia" / wheel / "bin" / name
            yield Path(sysconfig.get_path(key)) / "nvidia" / wheel / name / name


def packed(
    bound: Bound, cubin: Cubin, inputs: "Mapping[str, torch.Tensor]", outputs: Mapping[str, int],
    most_bytes: int | None = None,
) -> PackedRun:  # fmt: skip
    """Pack a run together with the values of its inputs; `outputs` are sizes in bytes.

    If an input has more than `most_bytes`, only its first part is packed, and is repeated in the replay.
    """
    import torch

    buffers = [Buffer(name, tensor.nbytes, contents=_bytes(tensor, most_bytes)) for name, tensor in inputs.items()]
    buffers += [Buffer(name, nbytes) for name, nbytes in outputs.items()]
    buffers += [Buffer(workspace.name, workspace.nbytes, workspace.zero) for workspace in bound.workspace]
    static = {entry.entry: entry.shared_bytes for entry in cubin.resources}
    steps = [
        ReplayLaunch(launch, cubin.entries[launch.entry].parameter_bytes, static.get(launch.entry, 0))
        for launch in bound.launches
    ]
    device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    return PackedRun(cubin.image, tuple(steps), tuple(buffers), device)


def _bytes(tensor: "torch.Tensor", most_bytes: int | None) -> bytes:
    import torch

    front = tensor.detach().reshape(-1)[: most_bytes and max(1, most_bytes // tensor.element_size())]
    return bytes(front.cpu().contiguous().view(torch.uint8).numpy().data)


def started(
    command: Sequence[str], folder: Path, mark: str, seconds: float, *, turns: str = "",
    variables: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":  # fmt: skip
    """Start the tool on a process that replays the folder's run, or all of its runs, and then creates the file `mark`.

    The process ends after `seconds`. With the folder of `turns`, each of its runs waits for a shared turn, which does
    not count. The output of the tool and the process goes to `mark`.out. Both stay in this process's group and end with
    it.
    """
    process = [sys.executable, "-m", "evolve.devices.cuda.replay", str(folder), mark, str(ceil(seconds)), turns]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with printed(folder, mark).open("wb") as output:
        return subprocess.Popen(
            [*command, *process],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            env={**os.environ, "PYTHONPATH": path, **(variables or {})},
        )  # fmt: skip


def printed(folder: Path, mark: str) -> Path:
    return folder / f"{mark}.out"


def ended(process: "subprocess.Popen[bytes]", folder: Path, mark: str, seconds: float) -> bool:
    """Return whether a started process ends within `seconds`, without the time for which it waits for a turn."""
    while seconds > 0:
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
            return True
        if not _waits(folder, mark).exists():
            seconds -= time.monotonic() - began
    return False


def _waits(folder: Path, mark: str) -> Path:
    """Return the path of a file that exists while the process waits for a turn."""
    return folder / f"{mark}.{WAITS}"


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all its descendants. A tool on the PATH is often a script that starts the actual tool."""
    if process.poll() is None:
        for pid in (process.pid, *_descendants(process.pid)):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, thread.read_text().split())
    return [*children, *(below for child in children for below in _descendants(child))]


def write(packed_run: PackedRun, folder: Path) -> None:
    (folder / CUBIN).write_bytes(packed_run.image)
    for index, buffer in enumerate(packed_run.buffers):
        if buffer.contents is not None:
            _contents(folder, index).write_bytes(buffer.contents)
    plan = {
        "steps": [_plain(step) for step in packed_run.steps],
        "buffers": [asdict(replace(buffer, contents=None)) for buffer in packed_run.buffers],
        "device": packed_run.device,
    }
    (folder / PLAN).write_text(json.dumps(plan))


def write_all(packed_runs: Sequence[PackedRun], folder: Path) -> None:
    for index, packed_run in enumerate(packed_runs):
        own = folder / f"{RUN}{index}"
        own.mkdir()
        write(packed_run, own)


def read(folder: Path) -> PackedRun:
    plan = json.loads((folder / PLAN).read_text())
    return PackedRun(
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


def _plain(step: ReplayLaunch) -> dict[str, Any]:
    args = [_plain_value(value) for value in step.launch.args]
    return {**asdict(step), "launch": {**asdict(step.launch), "args": args}}


def _plain_value(value: Value) -> Any:
    match value:
        case Pointer(name=name):
            return name
        case Pointers(names=names):
            return list(names)
        case BoundMap():
            return asdict(value)
    return value


def _step(fields: dict[str, Any]) -> ReplayLaunch:
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
    return ReplayLaunch(bound, tuple(fields["parameter_bytes"]), fields["static_shared"])


def _value(plain: Any) -> Value:
    match plain:
        case str():
            return Pointer(plain)
        case list():
            return Pointers(tuple(plain))
        case dict():
            return BoundMap(**{**plain, "shape": tuple(plain["shape"]), "box": tuple(plain["box"])})
    number: int | float = plain
    return number


def main() -> None:
    folder, mark, seconds, turns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    import_module("evolve.devices.cuda.program")  # imported before the clock starts, because that takes seconds
    signal.alarm(seconds)  # ends this process even if the tool is killed
    for own in sorted(folder.glob(f"{RUN}*")) or [folder]:
        run(read(own), turn(turns, _waits(folder, mark)))
    (folder / mark).touch()


@contextlib.contextmanager
def turn(turns: str, waits: Path) -> Iterator[None]:
    """Hold a shared turn in the body. Until it begins, the file `waits` exists, and the clock of this process stops."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    waits.touch()
    with shared(turns):
        waits.unlink()
        signal.setitimer(signal.ITIMER_REAL, left)
        yield


def run(packed_run: PackedRun, turn: contextlib.AbstractContextManager[None]) -> None:
    """Run the launches in a turn.

    Every buffer is a separate allocation, so that the tool notices accesses directly outside it.
    """
    from cupy.cuda import runtime

    from evolve.devices.cuda.program import loaded, prepared

    runtime.setDevice(packed_run.device)
    addresses = {buffer.name: _placed(buffer) for buffer in packed_run.buffers}
    module = loaded(packed_run.image)
    launches = [prepared(module, step.launch, step.parameter_bytes, step.static_shared) for step in packed_run.steps]
    with turn:
        for launch in launches:
            launch.enqueue(addresses.__getitem__, 0)
        runtime.deviceSynchronize()
    for address in addresses.values():
        runtime.free(address)


def _placed(buffer: Buffer) -> int:
    from cupy.cuda import runtime

    address: int = runtime.malloc(max(1, buffer.nbytes))
    if buffer.contents:
        length = len(buffer.contents)
        for at in range(0, buffer.nbytes, length):
            part = min(length, buffer.nbytes - at)
            runtime.memcpy(address + at, _address(buffer.contents), part, runtime.memcpyHostToDevice)
    elif buffer.zero and buffer.nbytes:
        runtime.memset(address, 0, buffer.nbytes)
    return address


def _address(contents: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(contents), ctypes.c_void_p).value or 0


if __name__ == "__main__":
    main()

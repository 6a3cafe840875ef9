"""One run of a kernel by a process of its own, without PyTorch, under one of NVIDIA's command line tools."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path

import torch

from archive.binding import Bound
from evolve.devices.cuda.compiler import Cubin
from evolve.devices.cuda.parcel import Buffer, Parcel, Step

ROOT = Path(__file__).parents[3]


def tool(name: str, wheels: Sequence[str], elsewhere: Iterable[Path] = ()) -> Path | None:
    """Where a tool is: on the PATH, in an installed toolkit, in NVIDIA's wheels (by their folders), or elsewhere."""
    candidates = (*_candidates(name, wheels), *elsewhere)
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def packed(bound: Bound, cubin: Cubin, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, int]) -> Parcel:
    """Inputs hold their values and zeroed workspaces zeros; nothing else holds anything. `outputs` are bytes."""
    buffers = [Buffer(name, tensor.nbytes, contents=_bytes(tensor)) for name, tensor in inputs.items()]
    buffers += [Buffer(name, nbytes) for name, nbytes in outputs.items()]
    buffers += [Buffer(workspace.name, workspace.nbytes, workspace.zero) for workspace in bound.workspace]
    static = {entry.entry: entry.shared_bytes for entry in cubin.resources}
    steps = [
        Step(launch, cubin.entries[launch.entry].parameter_bytes, static.get(launch.entry, 0))
        for launch in bound.launches
    ]
    device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    return Parcel(cubin.image, tuple(steps), tuple(buffers), device)


def started(
    command: Sequence[str], folder: Path, mark: str, seconds: float, own: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """The tool over a process that runs the folder's parcel, touches `mark` in the end and lives no longer than this.

    What either prints is in `mark`.out. They stay in our process group: whoever ends that ends them.
    """
    process = [sys.executable, "-m", "evolve.devices.cuda.replayed", str(folder), mark, str(ceil(seconds))]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with printed(folder, mark).open("wb") as said:
        return subprocess.Popen(
            [*command, *process],
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, cwd=folder,
            env={**os.environ, "PYTHONPATH": path, **(own or {})},
        )  # fmt: skip


def printed(folder: Path, mark: str) -> Path:
    return folder / f"{mark}.out"


def end(process: "subprocess.Popen[bytes]") -> None:
    """With all that it started: what is on the PATH is often a script round the tool."""
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


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


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

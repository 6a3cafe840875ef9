"""What an exported package knows about its kernels; `manifest.json` mirrors these types, key by key."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from archive import kernel as genome
from archive import plain
from archive.kernel import Kernel
from archive.records import Duel, Measurement, Sanitized

FORMAT = 2
FILE = "manifest.json"


class BrokenPackageError(RuntimeError):
    """A file of the package is missing, or is not the one that was exported."""


@dataclass(frozen=True)
class Measured:
    """The time of one kernel on one workload of one GPU."""

    device: str
    arch: str
    dtype: str
    dims: dict[str, int]
    parameters: dict[str, int | float]
    times: Measurement
    workspace_bytes: int = 0
    deterministic: bool | None = None
    duel: Duel | None = None  # with the best that PyTorch offers, by a fresh process

    @property
    def wins(self) -> bool:
        """Even the low end of the duel's interval is above what timing the kernel against itself gives."""
        return self.duel is not None and self.duel.won

    @property
    def speedup(self) -> float:
        """Over the best that PyTorch offers."""
        return self.duel.speedup if self.duel else self.times.speedup


@dataclass(frozen=True)
class Tested:
    """What a kernel of the package stood on one GPU before it was exported."""

    device: str
    outputs_judged: int
    error: float | None  # root mean square, as a multiple of PyTorch's own: the worst of all outputs judged
    share_of_allowed: float | None  # the worst element's error, where 1 is the most that is right
    held_out: tuple[str, ...]  # shapes drawn at random when it was confirmed
    sanitized: tuple[Sanitized, ...]  # what compute-sanitizer said; empty where it was absent


@dataclass(frozen=True)
class Shipped:
    """A kernel of the package and everything that was measured of it."""

    id: str
    file: str  # within the package, with forward slashes
    sha256: str
    note: str
    when: str
    dtypes: tuple[str, ...]
    measured: tuple[Measured, ...]
    tested: tuple[Tested, ...] = ()

    def load(self, folder: Path) -> Kernel:
        """The kernel, if its file is still the one that was measured."""
        path = folder / self.file
        if not path.is_file():
            raise BrokenPackageError(f"{path} is missing; install the package again")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise BrokenPackageError(f"{path} was changed after it was measured; install the package again")
        return genome.parse(content.decode())


@dataclass(frozen=True)
class ExportedEntry:
    """One op of the package. Where PyTorch was the fastest, the best kernel's time stands in `pytorch_wins`."""

    module: str
    inputs: tuple[str, ...]  # as in "x: rows cols"
    outputs: tuple[str, ...]
    parameters: dict[str, int | float | None]  # defaults; None where there is none
    kernels: tuple[Shipped, ...]
    pytorch_wins: tuple[Measured, ...]

    def table(self) -> Iterator[tuple[Shipped | None, Measured]]:
        """Everything measured, with the kernel that reached it: None where PyTorch was the fastest."""
        for kernel in self.kernels:
            for measured in kernel.measured:
                yield kernel, measured
        for measured in self.pytorch_wins:
            yield None, measured


def text(entries: dict[str, ExportedEntry]) -> str:
    ops = {name: asdict(entry) for name, entry in entries.items()}
    return json.dumps({"format": FORMAT, "ops": ops}, indent=1) + "\n"


def read(folder: Path) -> dict[str, ExportedEntry]:
    manifest = json.loads((folder / FILE).read_text(encoding="utf-8"))
    if manifest["format"] != FORMAT:
        raise BrokenPackageError(f"{folder / FILE} has format {manifest['format']}, this runtime reads {FORMAT}")
    return {name: plain.record(ExportedEntry, fields) for name, fields in manifest["ops"].items()}

"""What an exported package knows about its kernels; `manifest.json` mirrors these types, key by key."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archive import kernel as genome
from archive.kernel import Kernel
from archive.records import Measurement

FORMAT = 1
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

    @property
    def wins(self) -> bool:
        """Even the slow end of the kernel's interval beats the better of eager and torch.compile."""
        return self.times.high_us < self.times.baseline_us


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
class Entry:
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


def text(entries: dict[str, Entry]) -> str:
    ops = {name: asdict(entry) for name, entry in entries.items()}
    return json.dumps({"format": FORMAT, "ops": ops}, indent=1) + "\n"


def read(folder: Path) -> dict[str, Entry]:
    manifest = json.loads((folder / FILE).read_text(encoding="utf-8"))
    if manifest["format"] != FORMAT:
        raise BrokenPackageError(f"{folder / FILE} has format {manifest['format']}, this runtime reads {FORMAT}")
    return {name: _entry(fields) for name, fields in manifest["ops"].items()}


def _entry(fields: dict[str, Any]) -> Entry:
    kernels = tuple(
        Shipped(**{**kernel, "dtypes": tuple(kernel["dtypes"]), "measured": tuple(map(_measured, kernel["measured"]))})
        for kernel in fields["kernels"]
    )
    return Entry(
        module=fields["module"],
        inputs=tuple(fields["inputs"]),
        outputs=tuple(fields["outputs"]),
        parameters=fields["parameters"],
        kernels=kernels,
        pytorch_wins=tuple(map(_measured, fields["pytorch_wins"])),
    )


def _measured(fields: dict[str, Any]) -> Measured:
    return Measured(**{**fields, "times": Measurement(**fields["times"])})

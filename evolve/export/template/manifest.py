"""Manifest of an exported package: types for its kernels and measurements. `manifest.json` has the same keys."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archive import kernel as genome
from archive import plain
from archive.kernel import Kernel
from archive.records import Duel, Envelope, Measurement, Sanitized

FORMAT = 3
FILE = "manifest.json"
EAGER = "eager"  # name of the baseline in a duel
NOISE_WITHOUT_DUEL = 0.1  # the least gain that counts, several times the noise of duels


class BrokenPackageError(RuntimeError):
    """Raised when a file of the package is missing or was changed."""


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
    duel: Duel | None = None  # a paired timing against the fastest PyTorch baseline, in a fresh process
    # whether another machine with such a GPU measured this, and not the one that wrote the package
    elsewhere: bool = False

    @property
    def wins(self) -> bool:
        """Whether the low end of the speedup's interval is above the noise of timing the kernel against itself."""
        return self.duel is not None and self.duel.won

    @property
    def wins_eager(self) -> bool:
        """Whether the kernel beats eager PyTorch, even if torch.compile is as fast."""
        if self.wins:
            return True
        if self.duel and self.duel.baseline == EAGER:
            return False
        # A confirmation has no duel for a kernel that is slower than the fastest PyTorch baseline, such as
        # torch.compile.
        noise = self.duel.noise if self.duel else NOISE_WITHOUT_DUEL
        return self.times.high_us * (1 + noise) < self.times.eager_us

    def beats_pytorch(self, *, compiled: bool) -> bool:
        """Return whether the kernel beats the alternative, which is the compiler's code or eager PyTorch."""
        return self.wins if compiled else self.wins_eager

    @property
    def speedup_over_eager(self) -> float:
        if self.duel and self.duel.baseline == EAGER:
            return self.duel.speedup
        return self.times.eager_us / self.times.median_us

    @property
    def speedup(self) -> float:
        """The speedup over the fastest PyTorch baseline."""
        return self.duel.speedup if self.duel else self.times.speedup


@dataclass(frozen=True)
class Tested:
    """The tests that a kernel passed on one GPU before the export."""

    device: str
    outputs_judged: int
    error: float | None  # the largest root mean square error of all outputs, as a multiple of PyTorch's own
    share_of_allowed: float | None  # the largest error of an element, as a share of the allowed error
    held_out: tuple[str, ...]  # random shapes of the confirmation
    sanitized: tuple[Sanitized, ...]  # results of compute-sanitizer; empty if it is not installed
    envelope: Envelope | None = None  # the largest sizes that were checked; None if an older version did not record it
    copy_gb_s: float = 0.0  # bandwidth of copies on it, both directions together; 0 if it is unknown


@dataclass(frozen=True)
class ShippedCubin:
    """A compiled kernel of the package, for one architecture and one set of specialised values."""

    arch: str
    key: str  # digest of the architecture and the source
    file: str
    sha256: str


@dataclass(frozen=True)
class Shipped:
    """A kernel of the package with its measurements and tests."""

    id: str
    file: str  # path in the package, with forward slashes
    sha256: str
    note: str
    when: str
    dtypes: tuple[str, ...]
    measured: tuple[Measured, ...]
    tested: tuple[Tested, ...] = ()
    cubins: tuple[ShippedCubin, ...] = ()

    def load(self, folder: Path) -> Kernel:
        """Return the kernel. Raise a BrokenPackageError unless its file is the one that was exported."""
        path = folder / self.file
        if not path.is_file():
            raise BrokenPackageError(f"{path} is missing; install the package again")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise BrokenPackageError(f"{path} was changed after it was measured; install the package again")
        return genome.parse(content.decode())


@dataclass(frozen=True)
class ExportedEntry:
    """One op of the package. `pytorch_wins` holds the fastest kernel's time where PyTorch is faster."""

    module: str
    inputs: tuple[str, ...]  # in the form "x: rows cols"
    outputs: tuple[str, ...]
    parameters: dict[str, int | float | None]  # default values; None for a parameter without a default
    kernels: tuple[Shipped, ...]
    pytorch_wins: tuple[Measured, ...]

    def table(self) -> Iterator[tuple[Shipped | None, Measured]]:
        """Yield every measurement with its kernel, or with None where PyTorch is faster."""
        for kernel in self.kernels:
            for measured in kernel.measured:
                yield kernel, measured
        for measured in self.pytorch_wins:
            yield None, measured


def text(entries: dict[str, ExportedEntry]) -> str:
    """Return the text of `manifest.json`."""
    ops = {name: asdict(entry) for name, entry in entries.items()}
    return json.dumps({"format": FORMAT, "ops": ops}, indent=1) + "\n"


class Entries(Mapping[str, ExportedEntry]):
    """The entries of a manifest by op.

    Each entry is read on first access, because reading all of them takes tenths of a second.
    """

    def __init__(self, ops: dict[str, dict[str, Any]]) -> None:
        self._ops = ops

    def __getitem__(self, name: str) -> ExportedEntry:
        entry: ExportedEntry = plain.record(ExportedEntry, self._ops[name])
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    @property
    def modules(self) -> dict[str, str]:
        """The file of each op."""
        return {name: fields["module"] for name, fields in self._ops.items()}

    @property
    def cubins(self) -> dict[str, ShippedCubin]:
        """All cubins of the package by key."""
        kernels = (kernel for fields in self._ops.values() for kernel in fields["kernels"])
        return {one["key"]: ShippedCubin(**one) for kernel in kernels for one in kernel["cubins"]}


def entries(content: str, folder: Path) -> Entries:
    """Return the entries in the text of a manifest in this folder."""
    manifest = json.loads(content)
    if manifest["format"] != FORMAT:
        raise BrokenPackageError(f"{folder / FILE} has format {manifest['format']}, this runtime reads {FORMAT}")
    return Entries(manifest["ops"])


def read(folder: Path) -> dict[str, ExportedEntry]:
    """Return the entries in the manifest of the package in this folder, by op."""
    return dict(entries((folder / FILE).read_text(encoding="utf-8"), folder))

"""Compiled kernels: those in a package, those in the cache on disk, and new ones."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from evolve.export.template.cached import keep, kept
from evolve.export.template.manifest import BrokenPackageError, ShippedCubin
from evolve.export.template.nvrtc import nvrtc


def key(source: str, arch: str) -> str:
    """Return the name under which a package stores the cubin of a source."""
    return hashlib.sha256(f"{arch}\n{source}".encode()).hexdigest()


@dataclass(frozen=True)
class Cubins:
    """The compiled kernels of the package in a folder."""

    folder: Path = Path()
    shipped: Mapping[str, ShippedCubin] = field(default_factory=dict)  # key: the name that `key` returns

    def images(self, source: str, arch: str) -> Iterator[bytes]:
        """Yield cubins to load, best first. If the driver refuses one, the caller tries the next one.

        Raise a BrokenPackageError if a file of the package was changed, a CompileError if the source is refused, and a
        MissingError if it must be compiled but there is no compiler.
        """
        if known := self.shipped.get(key(source, arch)):
            yield self._read(known)
        yield compiled(source, arch)

    def _read(self, known: ShippedCubin) -> bytes:
        path = self.folder / known.file
        try:
            image = path.read_bytes()
        except OSError as error:
            raise BrokenPackageError(f"{path} is missing; install the package again") from error
        if hashlib.sha256(image).hexdigest() != known.sha256:
            raise BrokenPackageError(f"{path} was changed after it was compiled; install the package again")
        return image


def compiled(source: str, arch: str) -> bytes:
    """Return the cubin of a source from the cache; if there is none, compile it and add it to the cache."""
    found = remembered(source, arch)
    if found is None:
        found = nvrtc().compiled(source, arch)
        keep(_name(source, arch), found)
    return found


def remembered(source: str, arch: str) -> bytes | None:
    """Return the cubin of a source from the cache; None if it is not there."""
    return kept(_name(source, arch))


def _name(source: str, arch: str) -> str:
    version = torch.version.cuda or ""  # PyTorch's version determines NVRTC's, which takes time to query
    return f"{key(source, f'{version} {arch}')}.cubin"

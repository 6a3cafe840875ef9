"""Compiled kernels: those that a package brings, those in a cache on disk, and new ones.

The cache may be used by many processes at once. An entry begins with the digest of the rest, appears in one step, and
is made again if it was damaged. It can be deleted at any time.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from evolve.export.template.manifest import BrokenPackageError, ShippedCubin
from evolve.export.template.nvrtc import nvrtc

VARIABLE = "EVOLVE_CUBINS"  # an environment variable with the cache's folder
DIGEST_BYTES = 32


def key(source: str, arch: str) -> str:
    """Return the name under which a package has the cubin of a source."""
    return hashlib.sha256(f"{arch}\n{source}".encode()).hexdigest()


def cache_folder() -> Path:
    """Return the folder of the cache, which may not exist yet."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    root = os.environ.get("XDG_CACHE_HOME", "")  # the specification ignores relative paths
    return (Path(root) if root.startswith("/") else Path.home() / ".cache") / "evolve-primitives" / "cubins"


@dataclass(frozen=True)
class Cubins:
    """The compiled kernels of the package in a folder."""

    folder: Path = Path()
    shipped: Mapping[str, ShippedCubin] = field(default_factory=dict)  # by key

    def images(self, source: str, arch: str) -> Iterator[bytes]:
        """Yield what to load, best first: a later one if the driver does not take the one before.

        Raise a BrokenPackageError if a file of the package was changed, a CompileError if the source is refused and a
        MissingError if it must be compiled, and nothing can.
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
    """Return the cubin of a source from the cache, into which a new one is put."""
    version = torch.version.cuda or ""  # NVRTC's own version takes time to ask for, and comes with PyTorch's
    file = cache_folder() / f"{key(source, f'{version} {arch}')}.cubin"
    found = _kept(file)
    if found is None:
        found = nvrtc().compiled(source, arch)
        _keep(file, found)
    return found


def _kept(file: Path) -> bytes | None:
    """Return an entry of the cache; None if there is none or it was damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, image = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return image if hashlib.sha256(image).digest() == digest else None


def _keep(file: Path, image: bytes) -> None:
    """Write an entry in one step. Without space or permission, the next process compiles again."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as part:
                part.write(hashlib.sha256(image).digest() + image)
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

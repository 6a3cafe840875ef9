"""The cache on disk: compiled kernels and measurements of this machine.

Many processes may use the cache at the same time. An entry begins with a digest of its name and content, and is written
in one step. A damaged entry, or an entry of another name, is created again. The cache can be deleted at any time.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

VARIABLE = "EVOLVE_CUBINS"  # an environment variable with the cache's folder
DIGEST_BYTES = 32


def cache_folder() -> Path:
    """Return the folder of the cache, which may not exist yet."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    root = os.environ.get("XDG_CACHE_HOME", "")  # the specification ignores relative paths
    return (Path(root) if root.startswith("/") else Path.home() / ".cache") / "evolve-primitives" / "cubins"


def kept(name: str) -> bytes | None:
    """Return an entry of the cache; None if there is none or it was damaged."""
    try:
        content = (cache_folder() / name).read_bytes()
    except OSError:
        return None
    digest, entry = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return entry if _digest(name, entry) == digest else None


def keep(name: str, entry: bytes) -> None:
    """Write an entry in one step. If space or permission is missing, the entry is created again by the next process."""
    with contextlib.suppress(OSError):
        file = cache_folder() / name
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, part_name = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as part:
                part.write(_digest(name, entry) + entry)
            Path(part_name).replace(file)
        except BaseException:
            Path(part_name).unlink(missing_ok=True)
            raise


def _digest(name: str, entry: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + entry).digest()

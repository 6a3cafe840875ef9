"""Listing of the catalog: the declarations of each op, cached on disk so that listing ops need not import PyTorch."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reference_ops.op import Op

PACKAGE = Path(__file__).parent
WITHOUT_OPS = ("tasks",)  # sub-packages that define no ops


@dataclass(frozen=True)
class Listed:
    """An op as declared in its file, without its functions."""

    name: str
    family: str
    file: str  # path relative to this package; empty for an op outside the catalog
    dtypes: tuple[str, ...]
    gpu: tuple[str, ...]  # keys of its workloads
    emulated: tuple[str, ...]
    backward: tuple[str, ...]
    note: str

    def workloads(self, device_kind: str) -> tuple[str, ...]:
        return self.emulated if device_kind == "emulated" else self.gpu


def listed(op: Op, family: str, file: str = "") -> Listed:
    gpu, emulated = (tuple(workload.key for workload in workloads) for workloads in (op.gpu, op.emulated))
    return Listed(op.name, family, file, op.dtypes, gpu, emulated, op.backward, op.note)


def user_cache_dir() -> Path:
    """Return the user's cache folder for this project, which may not exist yet."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if given.startswith("/") else Path.home() / ".cache"  # the specification ignores relative paths
    return root / "evolve"


def read_listing(package: Path = PACKAGE) -> tuple[Listed, ...] | None:
    """Return the cached listing of the op files as they are now, or None if there is none."""
    try:
        rows: list[dict[str, Any]] = json.loads(_cache_file(package).read_text(encoding="utf-8"))
        return tuple(Listed(**{name: _tuple_of(value) for name, value in row.items()}) for row in rows)
    except (OSError, ValueError, TypeError, AttributeError):  # absent or incomplete
        return None


def _tuple_of(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def write_listing(ops: Sequence[Listed], package: Path = PACKAGE) -> None:
    """Cache a listing. If the folder cannot be written, the next process imports the ops again."""
    file = _cache_file(package)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps([asdict(op) for op in ops]), encoding="utf-8")
        part.replace(file)


@cache
def families() -> Mapping[str, str]:
    """Return the family of each op by its name, from the cached listing, or else from the names of the files."""
    by_file = {name: path.parent.name for name, path in op_files().items()}
    backward = {f"{name}_backward": family for name, family in by_file.items()}
    return {**backward, **by_file, **{op.name: op.family for op in read_listing() or ()}}


@cache
def op_files(package: Path = PACKAGE) -> Mapping[str, Path]:
    """Return the files that define ops, by name without suffix."""
    found = sorted(path for path in package.glob("*/*.py") if path.parent.name not in WITHOUT_OPS)
    return {path.stem: path for path in found if not path.stem.startswith("_")}


def _cache_file(package: Path) -> Path:
    """Return the cache file, whose name is a hash of the contents of every file that an op may depend on."""
    digest = hashlib.sha256()
    for path in _sources(package):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return user_cache_dir() / "catalog" / f"{digest.hexdigest()[:24]}.json"


def _sources(package: Path) -> Iterable[Path]:
    found = (*package.glob("*.py"), *package.glob("*/*.py"))
    return sorted(path for path in found if path.parent.name not in WITHOUT_OPS)

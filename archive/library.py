"""Library of the kernels that ship with the package, as readable files, with their measurements on GPUs."""

import hashlib
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

from archive.kernel import Kernel, parse
from archive.plan import PlanError

KERNEL, MEASURED = ".cu", ".json"
PLAIN = "simple.cu"  # the first kernel of each op: correct, short, and not fast


def folder() -> Traversable:
    """Return the folder of the shipped kernels, with one folder for each op."""
    return resources.files("archive") / "kernels"


def shipped(op_name: str) -> list[Kernel]:
    """Return the kernels in `kernels/<op_name>/`, sorted by file name; none if there is no such folder."""
    return [_read(name, text) for name, text in texts(op_name).items()]


def plain(op_name: str) -> list[Kernel]:
    """Return the op's first kernel, or an empty list if it has none."""
    return [_read(name, text) for name, text in texts(op_name).items() if name == PLAIN]


def texts(op_name: str, suffix: str = KERNEL, root: Traversable | None = None) -> dict[str, str]:
    """Return the texts of an op's kernels, or of its measurements, by file name in order; `root` is another folder."""
    own = (root or folder()) / op_name
    if not own.is_dir():
        return {}
    files = sorted((file for file in own.iterdir() if file.name.endswith(suffix)), key=lambda file: file.name)
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def op_names() -> list[str]:
    """Return the names of the ops that have shipped kernels."""
    return sorted(each.name for each in folder().iterdir() if each.is_dir())


def digest() -> str:
    """Return a hash of all shipped kernels and measurements."""
    found, root = hashlib.sha256(), folder()
    for op_name in op_names():
        for suffix in (KERNEL, MEASURED):
            for name, text in texts(op_name, suffix, root).items():
                found.update(f"{op_name}/{name}\n{len(text)}\n{text}".encode())
    return found.hexdigest()


@lru_cache(maxsize=1024)
def _read(name: str, text: str) -> Kernel:
    try:
        return parse(text)
    except PlanError as error:
        raise PlanError(f"{name}: {error}", error.line) from error

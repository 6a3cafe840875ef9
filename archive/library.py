"""Library of the kernels that ship with the package, as readable files."""

from importlib import resources

from archive.kernel import Kernel, parse
from archive.plan import PlanError


def shipped(op_name: str) -> list[Kernel]:
    """Return the kernels in `kernels/<op_name>/`, sorted by file name; none if there is no such folder."""
    folder = resources.files("archive") / "kernels" / op_name
    if not folder.is_dir():
        return []
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".cu")), key=lambda file: file.name)
    return [_read(file.name, file.read_text(encoding="utf-8")) for file in files]


def op_names() -> list[str]:
    """Return the names of the ops that have shipped kernels."""
    return sorted(folder.name for folder in (resources.files("archive") / "kernels").iterdir() if folder.is_dir())


def _read(name: str, text: str) -> Kernel:
    try:
        return parse(text)
    except PlanError as error:
        raise PlanError(f"{name}: {error}", error.line) from error

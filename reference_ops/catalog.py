"""Finds ops: a file in a family's sub-package is an op by being there, and a user's file by its path."""

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from reference_ops.op import Op

PACKAGE = Path(__file__).parent
ENDING = 'It must end with a module-level `op = Op(name=..., reference=..., inputs=tensors(x="n"), ...)`.'


class CatalogError(Exception):
    """An op that cannot be found or loaded: what happened, and what to do next."""


def names() -> list[str]:
    """Every op of the catalog. Imports none of them."""
    return sorted(_files())


def load(name_or_path: str) -> Op:
    """An op by its name in the catalog, or from a Python file of the user's."""
    path = locate(name_or_path)
    module = _imported(path)
    op = getattr(module, "op", None)
    if not isinstance(op, Op):
        found = f"its `op` is of type {type(op).__name__}" if hasattr(module, "op") else "it defines no `op`"
        raise CatalogError(f"{path} is not an op: {found}. {ENDING}")
    return op


def locate(name_or_path: str) -> Path:
    """The file that defines an op."""
    if _is_path(name_or_path):
        path = Path(name_or_path).expanduser()
        if not path.is_file():
            raise CatalogError(f"There is no file {path}. Give the path of a Python file, or one of: {_listed()}.")
        return path.resolve()
    files = _files()
    if name_or_path not in files:
        close = difflib.get_close_matches(name_or_path, files, n=3)
        meant = f"Did you mean {' or '.join(close)}?" if close else f"There are: {_listed()}."
        raise CatalogError(f"There is no op `{name_or_path}`. {meant} A path of a Python file works too.")
    return files[name_or_path]


def source(op: Op | str) -> str:
    """The text of the file that defines an op, as it is shown to a model."""
    return locate(op if isinstance(op, str) else op.name).read_text(encoding="utf-8")


def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(PACKAGE.glob("*/*.py")) if not path.stem.startswith("_")}


def _is_path(text: str) -> bool:
    return text.endswith(".py") or "/" in text or "\\" in text


def _listed() -> str:
    return ", ".join(names())


def _imported(path: Path) -> ModuleType:
    try:
        if path.is_relative_to(PACKAGE):
            family, name = path.relative_to(PACKAGE).with_suffix("").parts
            return importlib.import_module(f"reference_ops.{family}.{name}")
        return _imported_file(path)
    except Exception as error:  # whatever a user's file may raise
        line = _line_in(path, error)
        raise CatalogError(f"{path}{line} cannot be imported: {type(error).__name__}: {error}") from error


def _imported_file(path: Path) -> ModuleType:
    name = f"user_op_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that dataclasses and pickles made in the file find their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _line_in(path: Path, error: Exception) -> str:
    """Where in the user's file it went wrong, if there at all."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}," if error.lineno else ""
    lines, traceback = [], error.__traceback__
    while traceback:
        if traceback.tb_frame.f_code.co_filename == str(path):
            lines.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    return f", line {lines[-1]}," if lines else ""

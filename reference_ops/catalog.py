"""Catalog of ops: finds the ops in the files of the family sub-packages, and loads those in a user's files."""

import difflib
import functools
import importlib
from pathlib import Path
from types import ModuleType

from reference_ops.listing import PACKAGE, Listed, listed, op_files, read_listing, write_listing
from reference_ops.op import Op, ops_of
from reference_ops.without_torch import without_torch

ENDING = 'It must end with a module-level `op = Op(name=..., reference=..., inputs=tensors(x="n"), ...)`.'
ANOTHER_NAME = "Give your op another name: `Op(name=...)`, `@evolve.op(..., name=...)`, or rename the task."

_own: dict[str, str] = {}  # locators of the user's ops that this process has loaded; key: name of the op


class CatalogError(Exception):
    """Raised when an op cannot be found or loaded. The message says why, and what to do."""


def is_path(locator: str) -> bool:
    """Return whether a locator names a file or a module's function, rather than an op of the catalog."""
    return any(part in locator for part in (".py", ".json", "/", "\\", ":"))


@functools.cache
def listing() -> tuple[Listed, ...]:
    """Return every op of the catalog, sorted by name.

    All op files are imported only if no listing of them is cached.
    """
    found = read_listing()
    if found is None:
        try:
            with without_torch():
                found = _listed_ops()
        except CatalogError:  # a file needs PyTorch, or is broken
            found = _listed_ops()
        write_listing(found)
    return found


def _listed_ops() -> tuple[Listed, ...]:
    every = [
        listed(op, file.parent.name, str(file.relative_to(PACKAGE)))
        for file in op_files().values()
        for op in ops_of(_imported(file))
    ]
    return tuple(sorted(every, key=lambda op: op.name))


def use_cached_listing() -> None:
    """Load the listing now if it is cached, for processes that will not be able to read files later."""
    if read_listing() is not None:
        listing()


def names() -> list[str]:
    """Return the names of all ops of the catalog."""
    return [op.name for op in listing()]


def load(locator: str) -> Op:
    """Load an op by its name in the catalog, or from a user's file: `file.py` or `file.py:name`.

    A file may also be a task in a foreign format or hold a plain function. Loading a file runs its code.
    """
    path, name = _place(locator)
    if path.is_relative_to(PACKAGE):
        return _defined(path, name)
    op = _task(path, name) or _defined(path, name)
    if op.name in names():  # the archive identifies an op by its name
        raise CatalogError(f"{path} defines an op `{op.name}`, but the catalog already has one. {ANOTHER_NAME}")
    _own[op.name] = locator
    return op


def loaded_as(op: Op) -> str:
    """Return the locator that loads this op on a command line."""
    return _own.get(op.name, op.name)


def locate(locator: str) -> Path:
    """Return the file that defines an op."""
    return _place(locator)[0]


def check(locator: str) -> None:
    """Raise an error if there is no such op or file. No op is imported if a listing of the catalog is cached."""
    if is_path(locator) or locator not in {op.name for op in read_listing() or ()}:
        locate(locator)


def lasting(locator: str) -> str:
    """Return a locator that finds the same op from any working directory."""
    if not is_path(locator):
        return locator
    path, name = _place(locator)
    return f"{path}:{name}" if name else str(path)


def family(locator: str) -> str:
    """Return the name of the sub-package or folder that contains an op's file."""
    return locate(locator).parent.name


def _defined(path: Path, name: str) -> Op:
    """Return the op that a file defines itself; `name` selects one of several."""
    module = _imported(path)
    found = ops_of(module)
    if not found:
        held = f"its `op` is of type {type(module.op).__name__}" if hasattr(module, "op") else "it defines no `op`"
        raise CatalogError(f"{path} is not an op: {held}. {ENDING}")
    if not name and len(found) > 1:
        raise CatalogError(f"{path} defines several ops. Say which: {', '.join(f'{path}:{op.name}' for op in found)}.")
    for op in found:
        if name in ("", op.name):
            return op
    raise CatalogError(f"{path} defines no op `{name}`. It has: {', '.join(op.name for op in found)}.")


def _place(locator: str) -> tuple[Path, str]:
    """Return the file that defines an op, and the op's name if the file may define several."""
    if is_path(locator):
        return _place_of_file(locator)
    # Most files are named after their op and also define its backward, so these are found without a listing.
    file = op_files().get(locator.partition("_backward")[0])
    if file and locator in {op.name for op in ops_of(_imported(file))}:
        return file, locator
    found = next((op for op in listing() if op.name == locator), None)
    if found is None:
        close = difflib.get_close_matches(locator, names(), n=3)
        meant = f"Did you mean {' or '.join(close)}?" if close else f"Give {_any_name()}."
        raise CatalogError(f"there is no op `{locator}`. {meant} A path of a Python file works too.")
    return PACKAGE / found.file, locator


def _place_of_file(locator: str) -> tuple[Path, str]:
    where, at, example = locator.partition("@")
    if ":" in where and ".py" not in where:  # module:function, perhaps with a file of examples
        locator = f"{_file_of(where)}{at}{example}"
    text, _, name = locator.partition(".py:")
    path = Path(f"{text}.py" if name else locator).expanduser()
    if not path.exists():
        raise CatalogError(f"there is no file {path}. Give the path of a Python file, or {_any_name()}.")
    function, _, example = name.partition("@")
    return path.resolve(), f"{function}@{Path(example).expanduser().resolve()}" if example else name


def _file_of(function: str) -> str:
    from reference_ops.tasks.function import file_of
    from reference_ops.tasks.source import TaskError

    try:
        return file_of(function)
    except TaskError as error:
        raise CatalogError(f"{function} is not an op: {error}. Give module:function, or file.py:function.") from error


def _task(path: Path, name: str) -> Op | None:
    """Return the op of a foreign task or a function; None if the file defines ops itself."""
    from reference_ops.tasks.loading import load_task
    from reference_ops.tasks.source import TaskError

    try:
        return load_task(path, name)
    except TaskError as error:
        raise CatalogError(f"{path} cannot be an op: {error}.") from error
    except (Exception, SystemExit) as error:  # a task may raise any exception
        line = _line_in(path, error)
        raise CatalogError(f"{path}{line} cannot be an op: {_raised(error)}") from error


def _any_name() -> str:
    return f"the name of an op ({len(names())} of them: `evolve ops`)"


def _imported(path: Path) -> ModuleType:
    try:
        if path.is_relative_to(PACKAGE):
            family, name = path.relative_to(PACKAGE).with_suffix("").parts
            return importlib.import_module(f"reference_ops.{family}.{name}")
        return _imported_file(path)
    except (Exception, SystemExit) as error:  # a user's file may raise any exception
        line = _line_in(path, error)
        raise CatalogError(f"{path}{line} cannot be imported: {_raised(error)}") from error


def _imported_file(path: Path) -> ModuleType:
    """Run a file from its text, because cached bytecode may be stale if the file changed within a second."""
    from reference_ops.tasks.source import run_text

    if path.suffix != ".py":
        raise ImportError("it is not a Python file")
    return run_text(path.read_bytes(), f"user_op_{path.stem}", path)


def _raised(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ends the program (sys.exit({'' if error.code is None else error.code}))"
    return f"{type(error).__name__}: {error}"


def _line_in(path: Path, error: BaseException) -> str:
    """Return the line of the user's file at which the error occurred, if it occurred in that file."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}," if error.lineno else ""
    lines, traceback = [], error.__traceback__
    while traceback:
        if traceback.tb_frame.f_code.co_filename == str(path):
            lines.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    return f", line {lines[-1]}," if lines else ""

"""Loader of tasks, which detects the format of a file and returns the op that it holds."""

import ast
import functools
from collections.abc import Callable
from pathlib import Path

from reference_ops.op import Op
from reference_ops.tasks.excerpt import is_mark
from reference_ops.tasks.light_imports import light_imports
from reference_ops.tasks.source import ROBUST_KBENCH_FILES, TaskError, config_of


def load_task(path: Path, name: str = "") -> Op | None:
    """Return the op of a foreign task or of a function, or None for a file that defines ops itself.

    A task file is code. Loading it runs it with the rights of the user.
    """
    if path.is_dir():
        path /= ROBUST_KBENCH_FILES[0]
        if not path.is_file():
            raise TaskError(f"the folder contains no {path.name}: it is not a robust-kbench task")
    return _loaded(path, name, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=512)
def _loaded(path: Path, name: str, _changed: int) -> Op | None:
    """Load a file only once per process and modification time, because workers request it with every kernel."""
    load = _loader(path, name)
    if load is None:
        return None
    with light_imports():
        return load()


def _loader(path: Path, name: str) -> Callable[[], Op] | None:
    """Return the function that loads this file. Importing the function imports torch."""
    if path.suffix == ".json":
        from reference_ops.tasks import flashinfer_bench

        return functools.partial(flashinfer_bench.load, path)
    if path.name in ROBUST_KBENCH_FILES and config_of(path).is_file():
        from reference_ops.tasks import robust_kbench

        return functools.partial(robust_kbench.load, path)
    tree = _tree(path)
    if tree and _is_problem(tree):
        from reference_ops.tasks import kernelbench

        return functools.partial(kernelbench.load, path)
    if tree and not _defines_ops(tree) and (name or _is_decorated(tree)):
        from reference_ops.tasks import function

        return functools.partial(function.load, path, *name.partition("@")[::2])
    return None


def _tree(path: Path) -> ast.Module | None:
    """Return the syntax tree, or None if the file is not Python: importing it reports the error."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    except (SyntaxError, ValueError):
        return None


def _is_problem(tree: ast.Module) -> bool:
    defined = {part.name for part in tree.body if isinstance(part, ast.ClassDef | ast.FunctionDef)}
    return {"Model", "get_inputs"} <= defined


def _defines_ops(tree: ast.Module) -> bool:
    assigned = [part for part in tree.body if isinstance(part, ast.Assign | ast.AnnAssign)]
    return any(
        isinstance(target, ast.Name) and target.id in {"op", "ops"}
        for one in assigned
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
    )


def _is_decorated(tree: ast.Module) -> bool:
    """Return whether a function is decorated with `@evolve.op(...)` or `@op(...)`."""
    functions = (part for part in tree.body if isinstance(part, ast.FunctionDef))
    return any(is_mark(decorator) for function in functions for decorator in function.decorator_list)

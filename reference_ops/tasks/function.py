"""Functions of a user's program as ops, with dims inferred from example inputs."""

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from reference_ops.op import Op
from reference_ops.tasks.assembling import Sizes, assembled
from reference_ops.tasks.calling import module_of
from reference_ops.tasks.resizing import resized
from reference_ops.tasks.source import TaskError, identifier, read
from reference_ops.tasks.standalone import TaskOrigin
from reference_ops.tasks.tracing import Case, traced

MARK = "evolve_op"  # attribute set by the decorator, with the function's examples and its name as an op
Example = Callable[[], Any]


def load(path: Path, name: str, example: str) -> Op:
    """Return a function as an op.

    Dims that vary among the examples are symbolic, and dims that vary together share a name. If all examples have the
    same shapes, every dim is symbolic that can change.
    """
    module = imported(path)
    function = _function(module, name, path)
    marked = getattr(function, MARK, {})
    examples = _examples(Path(example)) if example else list(marked.get("examples", ()))
    if not examples:
        raise TaskError(
            f"`{function.__name__}` has no example inputs. Name a file of them (`--example inputs.py`, or "
            f"`...:{function.__name__}@inputs.py`), or decorate it with `@evolve.op(lambda: (torch.randn(8, 4096),))`"
        )
    found = [traced(_case(function, one)) for one in examples]
    known = resized(found)
    sizes = Sizes(known.examples, known.small.emulated, known.small.awkward, known.small.varied, known.at)
    first = (inspect.getdoc(function) or "").split("\n")[0]
    note = first or f"The function {function.__name__} of {path.name}."
    named = identifier(marked.get("name") or function.__name__, set())
    written = next(key for key, value in vars(module).items() if value is function)
    text = path.read_text(encoding="utf-8")
    origin = TaskOrigin(function, module.__name__, path.name, text, (written,), (f"_calling.module_of({written})",))
    op = assembled(named, sizes, note, origin)
    return replace(op, note=f"{op.note} {_freedom(op)}")


def _freedom(op: Op) -> str:
    """Return a sentence about the sizes that a kernel must not rely on."""
    free = [name for name, _ in op.gpu[0].dims]
    if not free:
        return "All its sizes are fixed."
    return f"Sizes that vary: {', '.join(free)}. Those given as numbers are fixed."


def file_of(locator: str) -> str:
    """Replace the module in `package.module:function` with its file, without running it; keep other locators."""
    module, _, function = locator.partition(":")
    if not function or not all(part.isidentifier() for part in module.split(".")):
        return locator
    here = str(Path.cwd())
    sys.path.insert(0, here)  # before all others, also if it is among them: each may have a module of this name
    try:
        spec = _found(module)
    except (ImportError, ValueError, KeyError):
        spec = None
    finally:
        sys.path.remove(here)
    if not (spec and spec.origin):
        raise TaskError(f"there is no module `{module}`, neither in {here} nor installed")
    return f"{spec.origin}:{function}"


def _found(module: str) -> ModuleSpec | None:
    """Find a module. `importlib.util.find_spec` would run the packages that contain it, or return a loaded namesake."""
    first, *parts = module.split(".")
    importlib.invalidate_caches()  # the file may have been written a moment ago
    specs = (finder.find_spec(first, None) for finder in sys.meta_path)
    spec, name = next((spec for spec in specs if spec), None), first
    for part in parts:
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations) if spec else None
    return spec


def imported(path: Path) -> ModuleType:
    """Import a file as part of its package, so that its own imports work; each process imports it once."""
    root, names = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.append(str(root))
    name = ".".join(names)
    known = sys.modules.get(name)
    if known and Path(known.__file__ or "").resolve() == path:
        return known
    if len(names) > 1:
        return importlib.import_module(name)
    return read(path).run()


def _function(module: ModuleType, name: str, path: Path) -> Callable[..., Any]:
    if name:
        found = getattr(module, name, None)
        if not callable(found):
            raise TaskError(f"it defines no function `{name}`")
        return found  # type: ignore[no-any-return]
    marked = [value for value in vars(module).values() if hasattr(value, MARK)]
    if len(marked) != 1:
        names = ", ".join(f"{path}:{one.__name__}" for one in marked)
        raise TaskError(f"it marks several functions as ops; say which: {names}" if marked else "it defines no op")
    return marked[0]  # type: ignore[no-any-return]


def _case(function: Callable[..., Any], example: Example) -> Case:
    def inputs() -> Sequence[Any]:
        given = example()
        if isinstance(given, dict):
            bound = inspect.signature(function).bind(**given)
            bound.apply_defaults()
            return bound.args
        return given if isinstance(given, tuple | list) else (given,)

    return Case(partial(module_of, function), inputs)


def _examples(path: Path) -> list[Example]:
    """Return a file's `examples`, each of which is a function or the inputs themselves, or its `get_inputs`."""
    module = read(path).run()
    listed = getattr(module, "examples", None)
    if listed is None and hasattr(module, "get_inputs"):
        listed = [module.get_inputs]
    if not isinstance(listed, tuple | list) or not listed:
        raise TaskError(f"{path} defines neither `examples`, a list, nor `get_inputs`, a function")
    return [one if callable(one) else _always(one) for one in listed]


def _always(value: object) -> Example:
    return lambda: value

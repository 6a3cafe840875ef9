"""Functions of a user's program as ops. Dims are inferred from example inputs, and by trying other sizes.

Sizes of the inputs that can change, alone or together, become dims. A function is traced at small and awkward sizes.
"""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from reference_ops.op import Op
from reference_ops.tasks.assembling import Sizes, assembled
from reference_ops.tasks.calling import OnDevice, module_of, seeded
from reference_ops.tasks.smaller import At, Smaller, alike, fits, smaller, tracer
from reference_ops.tasks.source import TaskError, identifier, read
from reference_ops.tasks.standalone import TaskOrigin
from reference_ops.tasks.tracing import Case, Traced, traced

MARK = "evolve_op"  # attribute set by the decorator, with the function's examples and its name as an op
Example = Callable[[], Any]
MOST_STEPS = 20_000  # largest number of operations traced while looking for sizes that change together
Place = tuple[str, int]  # an input and its axis, or a whole number among the arguments and -1


def load(path: Path, name: str, example: str) -> Op:
    """Return a function as an op.

    Dims that vary among the examples are symbolic, and dims that vary together share a name. If all examples have the
    same shapes, every dim that can change is symbolic.
    """
    module = imported(path)
    function = _function(module, name, path)
    marked = getattr(function, MARK, {})
    examples = _examples(Path(example)) if example else list(marked.get("examples", ()))
    if not examples:
        raise TaskError(
            f"`{function.__name__}` has no example inputs. Name a file with examples (`--example inputs.py`, or "
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
    # the folder comes before all others, even if it is among them: each may have a module of this name
    sys.path.insert(0, here)
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
    """Find a module.

    `importlib.util.find_spec` would run the packages that contain it, or return a loaded module of the same name.
    """
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


@dataclass(frozen=True)
class Resized:
    """The examples with their sizes by name, and the function at smaller and awkward sizes."""

    examples: list[Traced]
    small: Smaller
    at: At | None = None  # traces the function at any sizes that it accepts


def resized(examples: Sequence[Traced]) -> Resized:
    """Find other sizes of a function.

    With examples of several shapes, only the sizes that differ between them change.
    """
    own = examples[0]
    names = _varied(examples) if len({_shapes(one) for one in examples}) > 1 else _changeable(own)
    known = [replace(one, case=_at(one, names, _sizes(one, names))) for one in examples]
    if not names:
        return Resized(known, Smaller(tuple(one for one in known if fits(one)), (), ()))
    found = smaller(lambda changed: _checked(_at(own, names, changed)), own, _sizes(own, names))
    small = [one for one in known if fits(one)] or [*found.emulated]
    if len({_shapes(one) for one in examples}) == 1:
        kinds = list({tuple(fact.dtype for fact in one.inputs.values()): one for one in examples}.values())
        again = (traced(_at(kind, names, dict(one.case.sizes))) for one in found.emulated for kind in kinds)
        small = list({(_shapes(one), _dtypes(one)): one for one in (*small, *again)}.values())

    at = tracer(lambda changed: _at(own, names, {**_sizes(own, names), **changed}), own)
    return Resized(known, Smaller(tuple(small), found.awkward, found.varied), at)


def _shapes(found: Traced) -> tuple[tuple[int, ...], ...]:
    return tuple(fact.shape for fact in found.inputs.values())


def _dtypes(found: Traced) -> tuple[torch.dtype, ...]:
    return tuple(fact.dtype for fact in found.inputs.values())


def _places(found: Traced) -> dict[Place, int]:
    """Return the sizes of all inputs, and the whole numbers that equal one of them, such as a number of columns."""
    axes = {
        (name, axis): size
        for name, fact in found.inputs.items()
        if name not in found.drawn_inside
        for axis, size in enumerate(fact.shape)
        if size > 1
    }
    numbers = {(name, -1): value for name, value in found.constants.items() if type(value) is int}
    return axes | {place: value for place, value in numbers.items() if value in axes.values()}


def _varied(examples: Sequence[Traced]) -> dict[Place, str]:
    """Return a name for each size that differs between the examples. Sizes that differ in the same way share a name."""
    each = [_places(one) for one in examples]
    shared = [place for place in each[0] if all(place in places for places in each)]
    seen = {place: tuple(places[place] for places in each) for place in shared}
    return _named({place: values for place, values in seen.items() if len(set(values)) > 1})


def _changeable(own: Traced) -> dict[Place, str]:
    """Return a name for each size that can change. Sizes that can change only together share a name."""
    places, left = _places(own), MOST_STEPS
    alone = dict(zip(places, map(str, range(len(places))), strict=True))

    def changes(*together: Place) -> bool:
        nonlocal left
        size = places[together[0]]
        for other in (size + 1, 2 * size):
            if left > 0:
                with contextlib.suppress(Exception):  # at invalid sizes a function may raise any exception
                    found = traced(_at(own, alone, {alone[place]: other for place in together}))
                    left -= found.steps
                    if alike(found, own):
                        return True
        return False

    classes: dict[Place, tuple[Place, ...]]
    classes = {place: (place,) for place in places if place[1] >= 0 and changes(place)}
    for one, other in combinations(places, 2):
        if not {one, other} & classes.keys() and places[one] == places[other] and changes(one, other):
            classes |= {one: (one, other), other: (one, other)}
    for size in set(places.values()):
        rest = tuple(place for place in places if place not in classes and places[place] == size)
        if len(rest) > 2 and changes(*rest):
            classes |= dict.fromkeys(rest, rest)
    return _named({place: classes[place] for place in places if place in classes})


def _named(classes: Mapping[Place, object]) -> dict[Place, str]:
    """Return the name of each place, which is the name of the first place in its class."""
    first: dict[object, str] = {}
    for (name, axis), kind in classes.items():
        first.setdefault(kind, name if axis < 0 else f"{name}_{axis}")
    return {place: first[kind] for place, kind in classes.items()}


def _sizes(found: Traced, names: Mapping[Place, str]) -> dict[str, int]:
    places = _places(found)
    return {name: places[place] for place, name in reversed([*names.items()])}


def _at(found: Traced, names: Mapping[Place, str], sizes: Mapping[str, int]) -> Case:
    """Return the example with these sizes, by name, instead of its own."""

    def inputs() -> list[Any]:
        given = zip(found.arguments, found.case.inputs(), strict=False)
        return [_changed(name, value) for (name, _), value in given]

    def _changed(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return sizes.get(names.get((name, -1), ""), value)
        shape = [sizes.get(names.get((name, axis), ""), size) for axis, size in enumerate(value.shape)]
        return _resized(value, shape, found.inputs[name].drawn)

    return Case(found.case.model, inputs, tuple(sizes.items()))


def _resized(value: torch.Tensor, shape: list[int], drawn: str) -> torch.Tensor:
    """Draw a tensor as the example does, or else cut off or repeat the example's tensor."""
    if shape == [*value.shape]:
        return value
    if drawn and value.is_floating_point():
        return (torch.rand if drawn == "rand" else torch.randn)(shape, dtype=value.dtype)
    for axis, size in enumerate(shape):
        value = value.index_select(axis, torch.arange(size, device=value.device) % value.shape[axis])
    return value


def _checked(case: Case) -> Case:
    """Compute a small case. An index may be too large for a smaller table, which shapes do not show."""
    found = traced(case)
    if fits(found) and not found.drawn_inside:
        with torch.no_grad(), OnDevice("cpu"), seeded("cpu"):
            found.call([value for value in case.inputs() if isinstance(value, torch.Tensor)], {})
    return case

"""Task files as text: reads and runs them, names their definitions, and finds the sizes in them."""

import ast
import copy
import re
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from reference_ops.op import RESERVED

ROBUST_KBENCH_FILES = "func_forward.py", "func_backward.py"


class TaskError(Exception):
    """Raised when a task cannot become an op. The message says why."""


Shapes = Mapping[str, tuple[int, ...]]  # the dims of each tensor
Sizes = Mapping[str, int]  # returns the task's own name for a size


def identifier(text: str, taken: set[str]) -> str:
    """Return an unreserved C identifier that is close to the text and not in `taken`, and add it to `taken`."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII) or "_"
    name = f"_{name}" if name[0].isdigit() else name
    while name in RESERVED or name in taken:
        base, _, number = name.rpartition("_")
        name = f"{base}_{int(number) + 1}" if number.isdigit() and base else f"{name}_2"
    taken.add(name)
    return name


def named_dims(
    examples: Sequence[Shapes], sizes: Sequence[Sizes], taken: set[str]
) -> tuple[dict[str, tuple[str, ...]], list[dict[str, int]]]:
    """Return the dims of every tensor, and the value of each symbolic dim in each example.

    A dim that never varies is a literal. Dims that vary together share a name, which is the name of the task's size
    that varies with them, if there is one.
    """
    size_names: dict[tuple[int, ...], str] = {}
    for name in sizes[0] if sizes else ():
        size_names.setdefault(tuple(size[name] for size in sizes), name)
    names: dict[tuple[int, ...], str] = {}
    dims: dict[str, tuple[str, ...]] = {}
    for tensor, shape in examples[0].items():
        named = []
        for axis in range(len(shape)):
            seen = tuple(example[tensor][axis] for example in examples)
            if len(set(seen)) == 1:
                named.append(str(seen[0]))
                continue
            if seen not in names:
                requested = size_names.get(seen, f"{tensor}_{axis}")
                names[seen] = identifier(requested.lower(), taken)
            named.append(names[seen])
        dims[tensor] = tuple(named)
    values = [{name: seen[index] for seen, name in names.items()} for index in range(len(examples))]
    return dims, values


@dataclass(frozen=True)
class Source:
    """A file's syntax tree, read once, so that later changes of the file have no effect."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def module_name(self) -> str:
        """A name that differs for files of the same name in different folders."""
        return f"user_task_{self.path.stem}_{zlib.crc32(bytes(self.path)):x}"

    def sizes(self) -> dict[str, int]:
        """Return the integer literals of top-level assignments, by name, from which other sizes may be computed."""
        return {label: _integer(place.node) for label, place in _places(self.tree)}

    def run(self, sizes: Mapping[str, int] | None = None) -> ModuleType:
        """Run the file as a module, with these sizes in place of its own."""
        tree = copy.deepcopy(self.tree) if sizes else self.tree
        for label, place in list(_places(tree)) if sizes else ():
            if sizes and label in sizes:
                place.put(ast.copy_location(ast.Constant(sizes[label]), place.node))
        return _run(compile(tree, str(self.path), "exec"), self.module_name, self.path, keep=not sizes)


def read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path, text, ast.parse(text, str(path)))


def run_text(text: str | bytes, name: str, path: Path) -> ModuleType:
    """Run Python code as a module: a whole file, or code inside another kind of file."""
    return _run(compile(text, str(path), "exec"), name, path, keep=True)


def _run(code: object, name: str, path: Path, *, keep: bool) -> ModuleType:
    # without this, each run and call would repeat a task's warnings
    warnings.filterwarnings("ignore", module=r"torch\.nn")
    module = ModuleType(name)
    module.__file__ = str(path)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        exec(code, module.__dict__)  # type: ignore[arg-type]  # noqa: S102 - a task is code that the user runs
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            if before is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = before
    return module


@dataclass(frozen=True)
class _NumberPlace:
    """Position of a number: the value of an assignment, or an element of its tuple."""

    holder: ast.Assign | ast.Tuple | ast.List
    index: int

    @property
    def node(self) -> ast.expr:
        return self.holder.value if isinstance(self.holder, ast.Assign) else self.holder.elts[self.index]

    def put(self, node: ast.expr) -> None:
        if isinstance(self.holder, ast.Assign):
            self.holder.value = node
        else:
            self.holder.elts[self.index] = node


def _places(tree: ast.Module) -> Iterator[tuple[str, _NumberPlace]]:
    for statement in tree.body:
        if not isinstance(statement, ast.Assign):
            continue
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Name) and _is_integer(value):
            yield target.id, _NumberPlace(statement, 0)
        elif isinstance(value, ast.Tuple | ast.List):
            several = isinstance(target, ast.Tuple) and len(target.elts) == len(value.elts)
            for index, element in enumerate(value.elts):
                held = target.elts[index] if several and isinstance(target, ast.Tuple) else target
                if isinstance(held, ast.Name) and _is_integer(element):
                    yield held.id if several else f"{held.id}_{index}", _NumberPlace(value, index)


def _is_integer(node: ast.expr) -> bool:
    """Return whether an expression consists of numbers and is a positive integer, as in `8192 * 2`."""
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if not all(isinstance(part, allowed) for part in ast.walk(node)):
        return False
    try:
        value = _value(node)
    except (ArithmeticError, TypeError, ValueError):
        return False
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _integer(node: ast.expr) -> int:
    value = _value(node)
    assert isinstance(value, int)  # noqa: S101 - `_places` yields integers only
    return value


def _value(node: ast.expr) -> object:
    code = compile(ast.fix_missing_locations(ast.Expression(copy.deepcopy(node))), "a size", "eval")
    return eval(code, {"__builtins__": {}})  # noqa: S307 - numbers and operators alone


def config_of(path: Path) -> Path:
    """Return the file with the sizes of a robust-kbench task."""
    return path.with_name(path.name.replace("func", "config", 1)).with_suffix(".json")

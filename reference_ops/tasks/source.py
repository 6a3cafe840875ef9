"""A task's file, run as a module, and run again with other numbers for the sizes at its top level."""

import ast
import copy
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Source:
    """A file's text, read once: what is loaded does not change while it is used."""

    path: Path
    tree: ast.Module

    @property
    def module_name(self) -> str:
        """Two files of the same name are two modules."""
        return f"user_task_{self.path.stem}_{zlib.crc32(bytes(self.path)):x}"

    def sizes(self) -> dict[str, int]:
        """Every integer that a top-level assignment spells out, by its name; those made from others follow them."""
        return {label: _integer(place.node) for label, place in _places(self.tree)}

    def run(self, sizes: Mapping[str, int] | None = None) -> ModuleType:
        """The file as a module, with these sizes in place of its own."""
        tree = copy.deepcopy(self.tree) if sizes else self.tree
        for label, place in list(_places(tree)) if sizes else ():
            if sizes and label in sizes:
                place.put(ast.copy_location(ast.Constant(sizes[label]), place.node))
        return _run(compile(tree, str(self.path), "exec"), self.module_name, self.path, keep=not sizes)


def read(path: Path) -> Source:
    return Source(path, ast.parse(path.read_text(encoding="utf-8"), str(path)))


def run_text(text: str | bytes, name: str, path: Path) -> ModuleType:
    """Python code as a module: a whole file's, or what lies within another kind of file."""
    return _run(compile(text, str(path), "exec"), name, path, keep=True)


def _run(code: object, name: str, path: Path, *, keep: bool) -> ModuleType:
    warnings.filterwarnings("ignore", module=r"torch\.nn")  # of a task's own modules, and again at every call
    module = ModuleType(name)
    module.__file__ = str(path)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses made in the file look for it
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
    """Where a number stands: an assignment's value, or an element of the tuple that it is."""

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
    """Whether it is made of numbers alone and comes to an integer, as in `8192 * 2`."""
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
    assert isinstance(value, int)  # noqa: S101 - only integers are places
    return value


def _value(node: ast.expr) -> object:
    code = compile(ast.fix_missing_locations(ast.Expression(copy.deepcopy(node))), "a size", "eval")
    return eval(code, {"__builtins__": {}})  # noqa: S307 - numbers and operators alone

"""Excerpt of a Python file: the statements that define some names, and all others in the file on which they depend."""

import ast
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reference_ops.tasks.source import TaskError

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class _Statement:
    """A statement at the top level of a file, with the names that it binds, uses and changes in place."""

    node: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]
    changes: frozenset[str]


def excerpt(text: str, names: Sequence[str]) -> str:
    """Return the excerpt in the file's own text, without the decorator `@evolve.op(...)` of these names.

    A statement that changes an object of the excerpt in place, such as `TABLE[0] = 1`, belongs to it. Statements below
    `if __name__ == "__main__"` do not.
    """
    tree, dropped = ast.parse(text), set[int]()
    for node in tree.body:
        if isinstance(node, Definition) and node.name in names:
            marks = [decorator for decorator in node.decorator_list if is_mark(decorator)]
            node.decorator_list = [decorator for decorator in node.decorator_list if decorator not in marks]
            dropped.update(line for mark in marks for line in range(mark.lineno, (mark.end_lineno or mark.lineno) + 1))
    chosen, wanted = _closure([_statement(node) for node in tree.body if not _is_main(node)], frozenset(names))
    if missing := [name for name in names if name not in {bound for one in chosen for bound in one.binds}]:
        raise TaskError(f"its file defines no `{missing[0]}` at the top level")
    lines = text.splitlines()
    text, before = "", None
    for node in (one.node for one in chosen):
        apart = isinstance(node, Definition) or isinstance(before, Definition)
        after_imports = isinstance(before, Import) and not isinstance(node, Import)
        text += "\n\n" * (apart and before is not None) or "\n" * after_imports
        text += _written(node, lines, dropped, wanted)
        before = node
    return text


def is_mark(decorator: ast.expr) -> bool:
    """Return whether a decorator is `@evolve.op(...)` or `@op(...)`."""
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func).split(".")[-1] == "op"


def _closure(statements: Sequence[_Statement], names: frozenset[str]) -> tuple[list[_Statement], frozenset[str]]:
    """Return the statements on which these names depend, in the order of the file, and all names that they use."""
    wanted, before = names, -1
    chosen: list[_Statement] = []
    while len(chosen) != before:
        before = len(chosen)
        own = {name for one in chosen if not isinstance(one.node, Import) for name in one.binds}
        chosen = [one for one in statements if one.binds & wanted or one.changes & own or _binds_unknown(one.node)]
        wanted = wanted.union(*(one.uses for one in chosen))
    return chosen, wanted


def _statement(node: ast.stmt) -> _Statement:
    table = symtable.symtable("" if _binds_unknown(node) else ast.unparse(node), "a statement", "exec")
    binds = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    changes = {root for part in _outside_functions(node) for root in _changed_in_place(part)}
    return _Statement(node, frozenset(binds), frozenset(_used(table)), frozenset(changes))


def _used(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the global names that a statement reads, also inside its functions and classes."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() if table.get_type() == "module" else symbol.is_global():
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _used(inner)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, Definition | ast.Lambda):
        for part in ast.iter_child_nodes(node):
            yield from _outside_functions(part)


def _changed_in_place(node: ast.AST) -> Iterator[str]:
    """Yield the names of objects of which an assignment or a call of a method may change a part."""
    places: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        places = node.targets
    elif isinstance(node, ast.AugAssign):
        places = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        places = [node.value.func]
    for place in places:
        root: ast.expr = place
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if root is not place and isinstance(root, ast.Name):
            yield root.id


def _binds_unknown(node: ast.stmt) -> bool:
    """Return whether a statement is `from ... import *` or `from __future__ import ...`."""
    return isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*")


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in {
        part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)
    }


def _written(node: ast.stmt, lines: Sequence[str], dropped: set[int], wanted: frozenset[str]) -> str:
    """Return a statement with the comments above it. An import keeps only the names in use."""
    if isinstance(node, Import) and not _binds_unknown(node):
        node.names = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in wanted]
        return f"{ast.unparse(node)}\n"
    decorators = node.decorator_list if isinstance(node, Definition) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    while first > 1 and lines[first - 2].startswith("#"):
        first -= 1
    kept = [lines[number - 1] for number in range(first, (node.end_lineno or node.lineno) + 1) if number not in dropped]
    return "\n".join(kept) + "\n"

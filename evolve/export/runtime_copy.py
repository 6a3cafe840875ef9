"""Runtime of an exported package: copies of the modules that it needs, with relative imports.

The imports determine which modules are copied, so nothing is implemented twice.
"""

import ast
import sys
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNTIME = "_runtime"
# Place of each of our packages in the exported package; longer prefixes come first.
HOMES = {
    "evolve.export.template": RUNTIME,
    "evolve": RUNTIME,
    "archive": f"{RUNTIME}.archive",
    "reference_ops": f"{RUNTIME}.reference_ops",
}
ROOTS = ("evolve", "archive", "reference_ops")
NAMES = ("layers", "loading", "optimizers", "redirecting", "selftest")
ENTRIES = tuple(f"evolve.export.template.{name}" for name in NAMES)
DOCSTRING = '"""Copied from evolve-kernels, which generated this package. Make changes there."""\n'


class NotPortableError(Exception):
    """Raised when an op or a file cannot work in an exported package; the message says why."""


def files(modules: set[str]) -> dict[str, str]:
    """Return the runtime's files by path in the package: the entries, these modules and everything they import."""
    copied: dict[str, str] = {}
    waiting, seen = [*ENTRIES, *sorted(modules)], set[str]()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        place = home(module)
        text, imported = ported(_path(module).read_text(encoding="utf-8"), place)
        copied[f"{place.replace('.', '/')}.py"] = text
        waiting += sorted(imported)
    packages = {str(parent) for path in copied for parent in Path(path).parents if parent != Path()}
    return {**{f"{package}/__init__.py": DOCSTRING for package in sorted(packages)}, **copied}


def home(module: str) -> str:
    """Return the name that one of our modules has in the exported package."""
    for prefix, place in HOMES.items():
        if module == prefix or module.startswith(f"{prefix}."):
            return place + module[len(prefix) :]
    raise ValueError(f"{module} is not a module of evolve, archive or reference_ops")


@lru_cache(maxsize=256)
def ported(source: str, place: str) -> tuple[str, frozenset[str]]:
    """Return a module's text with imports adapted to its place in the package, and our modules that it imports."""
    lines = source.split("\n")
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module and _ours(node.module):
            imported |= _imported(node.module, [alias.name for alias in node.names])
            line = node.lineno - 1
            before, after = lines[line][: node.col_offset], lines[line][node.col_offset :]
            written = f"from {node.module} import"
            if not after.startswith(written):
                raise NotPortableError(f"line {node.lineno}: write `{written} ...` with single spaces")
            lines[line] = f"{before}from {_relative(home(node.module), place)} import{after[len(written) :]}"
        elif isinstance(node, ast.Import) and (names := [a.name for a in node.names if _ours(a.name)]):
            raise NotPortableError(f"line {node.lineno}: write `from ... import` instead of `import {names[0]}`")
    return "\n".join(lines), frozenset(imported)


def check_foreign_imports(source: str) -> None:
    """Raise a NotPortableError unless a file imports only torch, the standard library and our modules."""
    allowed = {*ROOTS, "torch", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." if node.level else node.module or ""]
        else:
            continue
        for name in names:
            if name.partition(".")[0] not in allowed:
                found = "a file beside it" if name == "." else f"`{name}`"
                raise NotPortableError(
                    f"line {node.lineno}: it imports {found}; an exported op may depend only on torch"
                )


def _ours(module: str) -> bool:
    return module.partition(".")[0] in ROOTS


def _path(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _imported(module: str, names: list[str]) -> set[str]:
    """Return the modules of an import: the module itself, or the named modules, as in `from archive import kernel`."""
    if _path(module).is_file():
        return {module}
    modules = {f"{module}.{name}" for name in names}
    for name in modules:
        if not _path(name).is_file():
            raise NotPortableError(f"it imports `{name}`, which is not a module")
    return modules


def _relative(target: str, place: str) -> str:
    """Return the relative name of a module, seen from the module at `place`, such as `..archive.kernel`."""
    there, here = target.split("."), place.split(".")[:-1]
    shared = 0
    while shared < min(len(there), len(here)) and there[shared] == here[shared]:
        shared += 1
    return "." * (len(here) - shared + 1) + ".".join(there[shared:])

"""A kernel's launch plan, and its reader, which reports malformed TOML with a message and its line.

The plan is data: it names the launches and their sizes, and contains no code that could run.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Expression = int | str
Argument = int | str | tuple[str, ...]
Path = tuple[str | int, ...]

DTYPES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_KNOB_VALUES, MAX_LAUNCHES, MAX_HEADER, MAX_DEPTH = 64, 64, 20_000, 8
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
KNOB = re.compile(r"[A-Z][A-Z0-9_]*\Z")
# names that expressions reserve
RESERVED = frozenset({"min", "max", "ceil_div", "itemsize", "sms", "and", "or", "not"})


class PlanError(ValueError):
    """Raised when a plan is malformed. The message says what is wrong, and on which line of the kernel's text."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class PlaceError(ValueError):
    """Raised for a fault at one place in a plan. It becomes a PlanError when its line is known."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Workspace:
    """Scratch memory that the launches of one call share; `zero` clears it before each call."""

    name: str
    shape: tuple[Expression, ...]
    dtype: str
    zero: bool = False


@dataclass(frozen=True)
class TensorMap:
    """A descriptor by which the copy engine (TMA) moves tiles of a tensor; the last size and box are the innermost."""

    name: str
    tensor: str
    shape: tuple[Expression, ...]
    box: tuple[Expression, ...]
    swizzle: int = 0


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `overlap` and `library`, a step of a vendor's library, are reserved: not supported yet."""

    entry: str
    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    args: tuple[Argument, ...]
    shared: Expression = 0
    cooperative: bool = False
    overlap: bool = False
    library: str = ""


@dataclass(frozen=True)
class Plan:
    op: str
    launches: tuple[Launch, ...]
    note: str = ""
    when: str = ""
    dtypes: tuple[str, ...] = ()
    specialize: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    knobs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    let: tuple[tuple[str, Expression], ...] = ()
    workspace: tuple[Workspace, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()

    @property
    def settings(self) -> dict[str, int]:
        """The current value of each knob, which is the first in its list."""
        return {name: values[0] for name, values in self.knobs}

    @property
    def reserved(self) -> str:
        """A feature of this plan that is part of the grammar but not supported yet; empty if there is none."""
        for launch in self.launches:
            if launch.library:
                return f'library steps (library = "{launch.library}")'
            if launch.overlap:
                return "overlapping launches (overlap = true)"
        return ""


def read_table(header: str, first_line: int) -> dict[str, Any]:
    """Return the tables of a plan's TOML, which starts at `first_line` of the kernel's text."""
    if len(header) > MAX_HEADER:
        raise PlanError(f"the plan has {len(header)} characters, but at most {MAX_HEADER} are allowed", first_line)
    try:
        table = tomllib.loads(header)
        _check_values(table, ())
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        at = first_line + (int(line.group(1)) - 1 if line else header.count("\n"))
        raise PlanError(f"the plan is not valid TOML: {error}", at) from error
    except RecursionError as error:
        raise PlanError("the plan is nested too deeply", first_line) from error
    except PlaceError as error:
        raise PlanError(str(error), first_line + line_of(header, error.path)) from error
    except ValueError as error:  # Python does not parse integers of thousands of digits
        digits = re.search(r"[0-9_]{1000,}", header)
        at = first_line + (header.count("\n", 0, digits.start()) if digits else 0)
        raise PlanError("the plan has an integer that does not fit in 64 bits", at) from error
    return table


def read(table: dict[str, Any], header: str, first_line: int) -> Plan:
    """Return the plan in the tables that `read_table` returned for this header."""
    try:
        return _plan(_Table(table, ()))
    except PlaceError as error:
        raise PlanError(str(error), first_line + line_of(header, error.path)) from error


def _check_values(value: object, path: Path) -> None:
    """Raise for values that Python can hold but not print, before an error message includes them."""
    match value:
        case dict() | list() if len(path) >= MAX_DEPTH:
            raise PlaceError("the plan is nested too deeply", _to_key(path))
        case dict():
            for key, inner in value.items():
                _check_values(inner, (*path, key))
        case list():
            for index, inner in enumerate(value):
                _check_values(inner, (*path, index))
        case int() if not INT64_MIN <= value <= INT64_MAX:
            raise PlaceError("the plan has an integer that does not fit in 64 bits", _to_key(path))


def _to_key(path: Path) -> Path:
    """Return the path of the key whose list holds a value, because lines are known only for keys."""
    return path if not path or isinstance(path[-1], str) else _to_key(path[:-1])


def line_of(header: str, path: Path) -> int:
    """Return the line offset of a place in a TOML header, or else the offset of the nearest enclosing key or table."""
    best, best_depth = 0, 0
    here: Path
    table: Path = ()
    counts: dict[str, int] = {}
    for number, line in enumerate(header.split("\n")):
        if match := re.match(r"\s*\[\[\s*([\w.]+)\s*\]\]", line):
            name = match.group(1)
            counts[name] = counts.get(name, -1) + 1
            table = (name, counts[name])
            here = table
        elif match := re.match(r"\s*\[\s*([\w.]+)\s*\]", line):
            table = tuple(match.group(1).split("."))
            here = table
        elif match := re.match(r"\s*\"?([\w.]+)\"?\s*=", line):
            here = (*table, *match.group(1).split("."))
        else:
            continue
        if path[: len(here)] == here and len(here) > best_depth:
            best, best_depth = number, len(here)
    return best


class _Table:
    """A TOML table. Each key is read once, with a check of its type; `done` rejects the remaining keys."""

    def __init__(self, entries: dict[str, Any], path: Path) -> None:
        self.entries = dict(entries)
        self.path = path

    def fault(self, key: str, message: str) -> PlaceError:
        return PlaceError(message, (*self.path, key))

    def has(self, key: str) -> bool:
        return key in self.entries

    def take(self, key: str, kind: type, default: Any = None) -> Any:
        if key not in self.entries:
            if default is None:
                raise self.fault(key, f"`{key}` is missing{_within(self.path)}")
            return default
        value = self.entries.pop(key)
        if type(value) is not kind:
            raise self.fault(key, f"`{key}` must be {_a(kind)}, not {json.dumps(value, default=str)[:60]}")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        values = self.take(key, list, [])
        if not all(isinstance(value, str) for value in values):
            raise self.fault(key, f"`{key}` must be a list of strings")
        return tuple(values)

    def expression(self, key: str, default: Expression | None = None) -> Expression:
        if key not in self.entries and default is not None:
            return default
        if key not in self.entries:
            raise self.fault(key, f"`{key}` is missing{_within(self.path)}")
        return self._expression(self.entries.pop(key), key)

    def expressions(self, key: str, most: int) -> tuple[Expression, ...]:
        values = self.take(key, list)
        if not 1 <= len(values) <= most:
            raise self.fault(key, f"`{key}` must list 1 to {most} integers, not {len(values)}")
        return tuple(self._expression(value, key) for value in values)

    def _expression(self, value: object, key: str) -> Expression:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise self.fault(key, f"`{key}` must contain integers or expressions in quotes, not {value!r}")
        return value

    def tables(self, key: str) -> Iterator["_Table"]:
        """Yield the named sub-tables of a section such as `[workspace]`, in order."""
        for name, entries in self.take(key, dict, {}).items():
            if not isinstance(entries, dict):
                raise PlaceError(f"`{name}` must be a table such as {{ shape = [1] }}", (*self.path, key, name))
            yield _Table(entries, (*self.path, key, name))

    def done(self, allowed: str) -> None:
        for key in self.entries:
            raise self.fault(key, f"unknown key `{key}`{_within(self.path)} (allowed: {allowed})")


def _within(path: Path) -> str:
    return f" in {path[0]} {path[1]}" if len(path) > 1 else f" in [{path[0]}]" if path else ""


def _a(kind: type) -> str:
    return {str: "a string", bool: "true or false", list: "a list", dict: "a table", int: "an integer"}[kind]


def _plan(table: _Table) -> Plan:
    launches = table.take("launch", list)
    if not 1 <= len(launches) <= MAX_LAUNCHES:
        raise PlaceError(f"a plan has 1 to {MAX_LAUNCHES} [[launch]] tables, not {len(launches)}", ("launch",))
    plan = Plan(
        op=table.take("op", str),
        note=table.take("note", str, ""),
        when=table.take("when", str, ""),
        dtypes=table.strings("dtypes"),
        specialize=table.strings("specialize"),
        require=table.strings("require"),
        knobs=tuple(_knob(name, values) for name, values in table.take("knobs", dict, {}).items()),
        let=_lets(table),
        workspace=tuple(_workspace(entry) for entry in table.tables("workspace")),
        tensor_maps=tuple(_tensor_map(entry) for entry in table.tables("tensor_maps")),
        launches=tuple(_launch(_Table(entries, ("launch", index))) for index, entries in enumerate(launches)),
    )
    table.done("op note when dtypes specialize require knobs let workspace tensor_maps launch")
    _named_once(plan)
    return plan


def _knob(name: str, values: object) -> tuple[str, tuple[int, ...]]:
    path = ("knobs", name)
    if not KNOB.match(name):
        hint = " (a top-level key must come before [knobs])" if name in Plan.__dataclass_fields__ else ""
        raise PlaceError(f"a knob's name is UPPERCASE, `{name}` is not{hint}", path)
    if not isinstance(values, list) or not values or not all(type(value) is int for value in values):
        raise PlaceError(f"knob {name} must list one or more integers, the default first", path)
    if len(set(values)) != len(values) or len(values) > MAX_KNOB_VALUES:
        raise PlaceError(f"knob {name} must list at most {MAX_KNOB_VALUES} different integers", path)
    if not all(-(2**31) <= value < 2**31 for value in values):
        raise PlaceError(f"knob {name} has a value that does not fit in 32 bits", path)
    # The default stays first, and the other values are sorted, so that each setting has one canonical text.
    return name, (values[0], *sorted(values[1:]))


def _lets(table: _Table) -> tuple[tuple[str, Expression], ...]:
    lets = _Table(table.take("let", dict, {}), ("let",))
    return tuple((name, lets.expression(name)) for name in list(lets.entries))


def _workspace(table: _Table) -> Workspace:
    name = str(table.path[-1])
    workspace = Workspace(
        name=name,
        shape=table.expressions("shape", 8),
        dtype=table.take("dtype", str),
        zero=table.take("zero", bool, False),
    )
    table.done("shape dtype zero")
    return workspace


def _tensor_map(table: _Table) -> TensorMap:
    tensor_map = TensorMap(
        name=str(table.path[-1]),
        tensor=table.take("tensor", str),
        shape=table.expressions("shape", 5),
        box=table.expressions("box", 5),
        swizzle=table.take("swizzle", int, 0),
    )
    table.done("tensor shape box swizzle")
    return tensor_map


def _launch(table: _Table) -> Launch:
    grid: tuple[Expression, ...] = ()
    block: tuple[Expression, ...] = ()
    if table.has("library"):
        library, entry = table.take("library", str), ""
        if table.has("entry"):
            raise table.fault("entry", "a launch has an `entry` or a `library`, not both")
    else:
        library, entry = "", table.take("entry", str)
        grid, block = table.expressions("grid", 3), table.expressions("block", 3)
        if not IDENTIFIER.match(entry):
            raise table.fault("entry", f"`{entry}` is not the name of a C function")
    launch = Launch(
        entry=entry,
        library=library,
        grid=grid,
        block=block,
        args=tuple(_argument(value, table) for value in table.take("args", list)),
        shared=table.expression("shared", 0),
        cooperative=table.take("cooperative", bool, False),
        overlap=table.take("overlap", bool, False),
    )
    table.done("entry grid block shared args cooperative overlap library")
    return launch


def _argument(value: object, table: _Table) -> Argument:
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return tuple(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise table.fault(
            "args", f"`args` must contain names, integers, expressions or lists of tensors, not {value!r}"
        )
    return value


def _named_once(plan: Plan) -> None:
    """Raise unless each name that a plan defines is a C identifier and is defined only once."""
    seen: set[str] = set()
    named: list[Path] = [("knobs", name) for name, _ in plan.knobs]
    named += [("let", name) for name, _ in plan.let]
    named += [("workspace", workspace.name) for workspace in plan.workspace]
    named += [("tensor_maps", tensor_map.name) for tensor_map in plan.tensor_maps]
    for section, name in named:
        if not IDENTIFIER.match(str(name)) or name in RESERVED:
            raise PlaceError(f"`{name}` cannot be a name here: use an unreserved C identifier", (section, name))
        if name in seen:
            raise PlaceError(f"`{name}` is defined twice", (section, name))
        seen.add(str(name))

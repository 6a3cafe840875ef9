"""Reader of plans in TOML, which reports a malformed one with a message and its line."""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from archive import expressions
from archive.characters import described, hidden
from archive.plan import Argument, Expression, Launch, Path, PlaceError, Plan, PlanError, TensorMap, Workspace

MAX_KNOB_VALUES, MAX_LAUNCHES, MAX_HEADER, MAX_DEPTH = 64, 64, 20_000, 8
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
KNOB = re.compile(r"[A-Z][A-Z0-9_]*\Z")


def read(header: str, first_line: int, *, archived: bool = False) -> Plan:
    """Return the plan in a TOML header, which starts at `first_line` of the kernel's text.

    `archived` allows characters that new kernels must not have, but that may be in older archives.
    """
    if len(header) > MAX_HEADER:
        raise PlanError(f"the plan has {len(header)} characters; {MAX_HEADER} are allowed", first_line)
    try:
        table = tomllib.loads(header)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        at = first_line + (int(line.group(1)) - 1 if line else header.count("\n"))
        raise PlanError(f"the plan is not valid TOML: {error}", at) from error
    except RecursionError as error:
        raise PlanError("the plan is nested too deeply", first_line) from error
    except ValueError as error:  # Python does not parse integers of thousands of digits
        digits = re.search(r"[0-9_]{1000,}", header)
        at = first_line + (header.count("\n", 0, digits.start()) if digits else 0)
        raise PlanError("the plan has an integer that does not fit in 64 bits", at) from error
    try:
        _check_values(table, ())
        if not archived:
            _check_visible(table, ())
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
        case int() if not expressions.INT64_MIN <= value <= expressions.INT64_MAX:
            raise PlaceError("the plan has an integer that does not fit in 64 bits", _to_key(path))


def _check_visible(value: object, path: Path) -> None:
    """Raise for hidden characters in TOML escapes, which a check of the raw text cannot see."""
    match value:
        case dict():
            for key, inner in value.items():
                _check_visible(key, path)
                _check_visible(inner, (*path, key))
        case list():
            for inner in value:
                _check_visible(inner, path)
        case str() if found := hidden(value):
            raise PlaceError(f"the plan has an escape for {described(found)}", path)


def _to_key(path: Path) -> Path:
    """Return the path of the key whose list holds a value, because lines are known only for keys."""
    return path if not path or isinstance(path[-1], str) else _to_key(path[:-1])


def line_of(header: str, path: Path) -> int:
    """Return the line offset of a place in a TOML header, or else that of the nearest enclosing key or table."""
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
    """A TOML table whose keys are taken once each, with a check of their types; `done` rejects leftover keys."""

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
            raise self.fault(key, f"`{key}` must hold integers or expressions in quotes, not {value!r}")
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
        hint = " (a top-level key must stand above [knobs])" if name in Plan.__dataclass_fields__ else ""
        raise PlaceError(f"a knob's name is UPPERCASE, `{name}` is not{hint}", path)
    if not isinstance(values, list) or not values or not all(type(value) is int for value in values):
        raise PlaceError(f"knob {name} must list one or more integers, the default first", path)
    if len(set(values)) != len(values) or len(values) > MAX_KNOB_VALUES:
        raise PlaceError(f"knob {name} must list at most {MAX_KNOB_VALUES} different integers", path)
    if not all(-(2**31) <= value < 2**31 for value in values):
        raise PlaceError(f"knob {name} has a value that does not fit in 32 bits", path)
    # The default stays first and the rest is sorted, so that a setting has one canonical text however it was reached.
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
        raise table.fault("args", f"`args` holds names, integers, expressions or lists of tensors, not {value!r}")
    return value


def _named_once(plan: Plan) -> None:
    """Raise unless each name that a plan defines is a C identifier and is defined only once."""
    seen: set[str] = set()
    named: list[Path] = [("knobs", name) for name, _ in plan.knobs]
    named += [("let", name) for name, _ in plan.let]
    named += [("workspace", workspace.name) for workspace in plan.workspace]
    named += [("tensor_maps", tensor_map.name) for tensor_map in plan.tensor_maps]
    for section, name in named:
        if not IDENTIFIER.match(str(name)) or name in expressions.RESERVED:
            raise PlaceError(f"`{name}` cannot be a name here: use an unreserved C identifier", (section, name))
        if name in seen:
            raise PlaceError(f"`{name}` is defined twice", (section, name))
        seen.add(str(name))

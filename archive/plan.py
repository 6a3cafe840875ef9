"""A kernel's launch plan and its canonical printed form.

The plan is data: it says what is launched and with which sizes, and contains no code that could run.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

Expression = int | str
Argument = int | str | tuple[str, ...]
Path = tuple[str | int, ...]

DTYPES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


class PlanError(ValueError):
    """A plan is malformed. The message says what is wrong, and on which line of the kernel's text."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class PlaceError(ValueError):
    """A fault at one place in a plan, which becomes a PlanError once its line is known."""

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
        """A feature of this plan that the grammar has but that is not supported yet; empty if there is none."""
        for launch in self.launches:
            if launch.library:
                return f'library steps (library = "{launch.library}")'
            if launch.overlap:
                return "overlapping launches (overlap = true)"
        return ""


def print_plan(plan: Plan) -> str:
    """Return the canonical TOML of a plan: fixed order, defaults left out."""
    lines = [f"op = {_toml(plan.op)}"]
    optional = ("note", "when", "dtypes", "specialize", "require")
    lines += [f"{key} = {_toml(value)}" for key in optional if (value := getattr(plan, key))]
    if plan.knobs:
        lines += ["", "[knobs]", *(f"{name} = {_toml(values)}" for name, values in plan.knobs)]
    if plan.let:
        lines += ["", "[let]", *(f"{name} = {_toml(value)}" for name, value in plan.let)]
    if plan.workspace:
        lines += ["", "[workspace]"]
        for workspace in plan.workspace:
            zero = ", zero = true" if workspace.zero else ""
            lines.append(
                f"{workspace.name} = {{ shape = {_toml(workspace.shape)}, dtype = {_toml(workspace.dtype)}{zero} }}"
            )
    if plan.tensor_maps:
        lines += ["", "[tensor_maps]"]
        for tmap in plan.tensor_maps:
            lines.append(
                f"{tmap.name} = {{ tensor = {_toml(tmap.tensor)}, shape = {_toml(tmap.shape)}, "
                f"box = {_toml(tmap.box)}, swizzle = {tmap.swizzle} }}"
            )
    for launch in plan.launches:
        lines += ["", "[[launch]]", *_launch_lines(launch)]
    return "\n".join(lines) + "\n"


def _launch_lines(launch: Launch) -> Iterator[str]:
    if launch.library:
        yield f"library = {_toml(launch.library)}"
    else:
        yield f"entry = {_toml(launch.entry)}"
        yield f"grid = {_toml(launch.grid)}"
        yield f"block = {_toml(launch.block)}"
    if launch.shared != 0:
        yield f"shared = {_toml(launch.shared)}"
    yield f"args = {_toml(launch.args)}"
    if launch.cooperative:
        yield "cooperative = true"
    if launch.overlap:
        yield "overlap = true"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str):
        # TOML's basic strings are JSON strings, except that DEL must be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)

"""Kernel: device code with its launch plan in one canonical text, identified by the hash of that text."""

import hashlib
import json
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from archive import expressions, plan_reader
from archive.characters import described, hidden
from archive.expressions import ExpressionError, Scope
from archive.plan import (
    DTYPES,
    Launch,
    Path,
    PlaceError,
    Plan,
    PlanError,
    Signature,
    TensorMap,
    Workspace,
    print_plan,
)
from archive.plan_reader import IDENTIFIER

OPEN, CLOSE = "/*---", "---*/"
MAX_CHARACTERS = 200_000
SWIZZLES = (0, 32, 64, 128)  # bytes
ID_CHARACTERS = 16
# The op, the note and the knobs in a canonical text, one line per knob.
OP = re.compile(r'\A/\*---\nop = ("[^\n]*")\n')
NOTE = re.compile(r'\A/\*---\nop = "[^\n]*"\nnote = ("[^\n]*")\n')
KNOBS = re.compile(r"\n\[knobs\]\n((?:[A-Z][A-Z0-9_]* = \[[-0-9, ]+\]\n)+)")
# Comments and string literals, which the outline of a source leaves out, like names and whitespace.
COMMENT = re.compile(rb'//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
LEFT_OUT = (
    b"\\_" + string.whitespace.encode() + (string.ascii_letters + string.digits).encode() + bytes(range(128, 256))
)


@dataclass(frozen=True)
class Kernel:
    """Device code with its plan in one canonical text. Build one with `parse`. The plan is read on first use."""

    text: str

    @cached_property
    def id(self) -> str:
        return _hashed(self.text)

    @cached_property
    def op(self) -> str:
        found = OP.search(self.text)
        return json.loads(found.group(1)) if found else self.plan.op

    @cached_property
    def plan(self) -> Plan:
        return self._parts[0]

    @cached_property
    def source(self) -> str:
        """The device code, without the plan."""
        return self._parts[1]

    @cached_property
    def note(self) -> str:
        """The idea, read from the text without parsing the plan."""
        found = NOTE.search(self.text)
        try:
            return json.loads(found.group(1)) if found else self.plan.note
        except ValueError:  # TOML that is no JSON, which canonical texts do not have
            return self.plan.note

    def has_code_of(self, other: "Kernel") -> bool:
        """Return whether the device code is that of another kernel, told from the texts without parsing the plans."""
        return self.text.partition(CLOSE)[2] == other.text.partition(CLOSE)[2]

    @cached_property
    def settings(self) -> Mapping[str, int]:
        """The current value of each knob, read from the text without parsing the plan."""
        return {name: values[0] for name, values in self._knobs.items()}

    @cached_property
    def family(self) -> str:
        """An id that all knob settings of a kernel share."""
        found = self._knob_lines
        if found is None:
            return self.id
        lines = "".join(f"{name} = [{', '.join(map(str, sorted(values)))}]\n" for name, values in self._knobs.items())
        return _hashed(f"{self.text[: found.start(1)]}{lines}{self.text[found.end(1) :]}")

    @cached_property
    def outline(self) -> str:
        """A hash of the device code's punctuation. Kernels that differ only in names, comments and spacing share it."""
        source = self.text.partition(CLOSE)[2].encode()
        return hashlib.sha256(COMMENT.sub(b"", source).translate(None, LEFT_OUT)).hexdigest()[:ID_CHARACTERS]

    def with_knobs(self, settings: Mapping[str, int]) -> "Kernel":
        """Return the same kernel with other knob values; the current value comes first in each knob's list."""
        knobs = tuple(
            (name, (settings[name], *sorted(set(values) - {settings[name]}))) if name in settings else (name, values)
            for name, values in self.plan.knobs
        )
        return self.with_plan(replace(self.plan, knobs=knobs))

    def with_plan(self, plan: Plan) -> "Kernel":
        """Return the same device code with another plan."""
        return _assembled(plan, self.source)

    def fault(self, error: PlaceError) -> PlanError:
        """Return this fault as a PlanError that names its line in the canonical text."""
        header = print_plan(self.plan)
        line = 2 + plan_reader.line_of(header, error.path)
        written = self.text.split("\n")[line - 1].strip()
        return PlanError(f"{error} | {written}", line)

    @cached_property
    def _parts(self) -> tuple[Plan, str]:
        """The plan and the source, read without the checks that only new kernels must pass."""
        try:
            return _read(self.text, archived=True)
        except PlanError as error:
            raise PlanError(f"kernel {self.id} of the archive cannot be read: {error}", error.line) from error

    @cached_property
    def _knob_lines(self) -> re.Match[str] | None:
        return KNOBS.search(self.text, 0, self.text.find(CLOSE))

    @cached_property
    def _knobs(self) -> dict[str, list[int]]:
        lines = self._knob_lines.group(1).splitlines() if self._knob_lines else []
        return {name: json.loads(values) for name, _, values in (line.partition(" = ") for line in lines)}


def parse(text: str) -> Kernel:
    """Read a kernel's text, or raise a PlanError that names the faulty line."""
    text = text.replace("\r\n", "\n")
    if found := hidden(text):
        raise PlanError(f"the text has {described(found)}", text.count("\n", 0, found.start()) + 1)
    return _assembled(*_read(text, archived=False))


def parse_for(text: str, signature: Signature) -> Kernel:
    """Read a kernel's text and check its plan against the op it is for."""
    kernel = parse(text)
    check(kernel, signature)
    return kernel


def check(kernel: Kernel, signature: Signature) -> None:
    """Raise a PlanError unless the plan is valid for the op."""
    try:
        check_plan(kernel.plan, signature)
    except PlaceError as error:
        raise kernel.fault(error) from error


def check_plan(plan: Plan, signature: Signature) -> None:
    """Raise a PlaceError unless every name and expression is valid for this op, whatever its sizes."""
    if plan.op != signature.op:
        raise PlaceError(f"this kernel is for the op `{plan.op}`, not `{signature.op}`", ("op",))
    for dtype in plan.dtypes:
        if dtype not in signature.dtypes:
            raise PlaceError(f"`{dtype}` is not one of the op's dtypes ({', '.join(signature.dtypes)})", ("dtypes",))
    itemsizes = dict.fromkeys(signature.tensors, 4)
    scope = Scope(dict.fromkeys((*signature.dims, *signature.integers), 1), itemsizes)
    _checked(("when",), _check_conditions, (plan.when,) if plan.when else (), scope)

    scope = Scope({**scope.integers, **dict.fromkeys(plan.settings, 1), "sms": 1}, itemsizes)
    for name, expression in plan.let:
        _checked(("let", name), expressions.check_integer, expression, scope)
        scope = scope.with_integer(name, 1)
    _check_fresh(plan, {*signature.tensors, *signature.dims, *signature.integers, *signature.floats})
    _checked(("require",), _check_conditions, plan.require, scope)
    for name in plan.specialize:
        if name not in scope.integers or name in plan.settings:
            raise PlaceError(f"`{name}` cannot be specialised: it is not a dim, parameter or let", ("specialize",))
    for workspace in plan.workspace:
        _check_workspace(workspace, signature, scope)
    for tensor_map in plan.tensor_maps:
        _check_tensor_map(tensor_map, {*signature.tensors, *(w.name for w in plan.workspace)}, scope)
    for index, launch in enumerate(plan.launches):
        _check_launch(launch, index, plan, signature, scope)


# Keywords of C++, which cannot be names in the device code.
KEYWORDS = frozenset(
    """
    alignas alignof and asm auto bitand bitor bool break case catch char class compl const constexpr continue decltype
    default delete do double else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not nullptr operator or private protected public register return short signed sizeof static
    struct switch template this throw true try typedef typename union unsigned using virtual void volatile while xor
    """.split()  # noqa: SIM905 - a list of 70 strings reads worse
)


def _check_fresh(plan: Plan, taken: set[str]) -> None:
    made = [("knobs", name) for name in plan.settings] + [("let", name) for name, _ in plan.let]
    made += [("workspace", workspace.name) for workspace in plan.workspace]
    made += [("tensor_maps", tensor_map.name) for tensor_map in plan.tensor_maps]
    for section, name in made:
        if name in KEYWORDS:
            raise PlaceError(f"`{name}` is a keyword of C++: choose another name", (section, name))
        if name in taken:
            raise PlaceError(f"`{name}` is already a name of the op `{plan.op}`: choose another name", (section, name))


def _check_conditions(conditions: tuple[str, ...], scope: Scope) -> None:
    for condition in conditions:
        expressions.check_boolean(condition, scope)


def _checked(path: Path, check: Callable[..., None], *arguments: object) -> None:
    try:
        check(*arguments)
    except ExpressionError as error:
        raise PlaceError(str(error), path) from error


def _check_workspace(workspace: Workspace, signature: Signature, scope: Scope) -> None:
    path: Path = ("workspace", workspace.name)
    for expression in workspace.shape:
        _checked(path, expressions.check_integer, expression, scope)
    if workspace.dtype not in DTYPES and workspace.dtype not in signature.tensors:
        raise PlaceError(f"`{workspace.dtype}` is neither a dtype ({', '.join(DTYPES)}) nor a tensor of the op", path)


def _check_tensor_map(tensor_map: TensorMap, tensors: set[str], scope: Scope) -> None:
    path: Path = ("tensor_maps", tensor_map.name)
    if tensor_map.tensor not in tensors:
        known = ", ".join(sorted(tensors))
        raise PlaceError(f"`{tensor_map.tensor}` is not a tensor or workspace (known: {known})", path)
    for expression in (*tensor_map.shape, *tensor_map.box):
        _checked(path, expressions.check_integer, expression, scope)
    if len(tensor_map.shape) != len(tensor_map.box):
        message = f"`shape` has {len(tensor_map.shape)} sizes and `box` {len(tensor_map.box)}: give one for each dim"
        raise PlaceError(message, path)
    if tensor_map.swizzle not in SWIZZLES:
        raise PlaceError(f"a swizzle of {tensor_map.swizzle} bytes; there are {', '.join(map(str, SWIZZLES))}", path)


def _check_launch(launch: Launch, index: int, plan: Plan, signature: Signature, scope: Scope) -> None:
    sizes = [("grid", e) for e in launch.grid] + [("block", e) for e in launch.block] + [("shared", launch.shared)]
    for key, expression in sizes:
        _checked(("launch", index, key), expressions.check_integer, expression, scope)
    path: Path = ("launch", index, "args")
    pointers = {*signature.tensors, *(w.name for w in plan.workspace)}
    maps = {tensor_map.name for tensor_map in plan.tensor_maps}
    for argument in launch.args:
        if isinstance(argument, tuple):
            for name in argument:
                if name not in pointers:
                    known = ", ".join(sorted(pointers))
                    raise PlaceError(f"`{name}` is not a tensor or workspace (known: {known})", path)
        elif argument not in pointers and argument not in maps and argument not in signature.floats:
            if isinstance(argument, str) and IDENTIFIER.match(argument) and argument not in scope.integers:
                known = ", ".join(sorted({*pointers, *maps, *scope.integers, *signature.floats}))
                raise PlaceError(f"unknown argument `{argument}` (known: {known})", path)
            _checked(path, expressions.check_integer, argument, scope)


def _check_conditionals(plan: Plan, lines: list[str], first_line: int) -> None:
    """Raise for `#if` on anything but knobs: a specialised value is not a macro, so `#if` would silently read 0."""
    defined = set(re.findall(r"^\s*#\s*define\s+(\w+)", "\n".join(lines), flags=re.MULTILINE))
    allowed = {*plan.settings, *defined, "defined"}
    for number, line in enumerate(lines):
        match = re.match(r"\s*#\s*(?:if|elif)\b(.*)", line)
        names = re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*|/\*.*?\*/", "", match.group(1))) if match else []
        for name in names:
            if name not in allowed and not name.startswith("_"):
                raise PlanError(
                    f"#if on `{name}`, which is not a knob: specialised values are constexpr, so use `if constexpr`",
                    first_line + number,
                )


def _read(text: str, *, archived: bool) -> tuple[Plan, str]:
    """Return the plan and the source. `archived` allows characters that new kernels must not have."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > MAX_CHARACTERS:
        raise PlanError(f"a kernel may have at most {MAX_CHARACTERS} characters, this one has {len(text)}", 1)
    before, opened, rest = text.partition(OPEN)
    if not opened or before.strip():
        line = next((line.strip() for line in before.split("\n") if line.strip()), "")
        found = f"; `{line[:60]}` stands before it: remove what is not part of the kernel" if opened else ""
        raise PlanError(f"a kernel begins with its plan in a comment: {OPEN} ... {CLOSE}{found}", 1)
    header, closed, source = rest.partition(CLOSE)
    first_line = before.count("\n") + 1
    if not closed:
        raise PlanError(f"the plan's comment is never closed with {CLOSE}", first_line)
    plan = plan_reader.read(header, first_line, archived=archived)
    if "*/" in print_plan(plan):
        raise PlanError("the plan may not contain */", first_line)
    lines = [line.rstrip() for line in source.split("\n")]
    source = "\n".join(lines).strip("\n") + "\n"
    if not source.strip():
        raise PlanError("there is no device code after the plan", first_line + header.count("\n"))
    if not archived:
        _check_conditionals(plan, lines, first_line + header.count("\n"))
    return plan, source


def _assembled(plan: Plan, source: str) -> Kernel:
    kernel = Kernel(f"{OPEN}\n{print_plan(plan)}{CLOSE}\n{source}")
    kernel.__dict__["_parts"] = plan, source  # where `cached_property` keeps it
    return kernel


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARACTERS]

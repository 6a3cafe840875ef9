"""Kernel: device code with its launch plan in one canonical text, identified by the hash of that text.

It is proposed (`Proposal`), and bound to one workload to be launched (`Bound`).
"""

import hashlib
import json
import math
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from archive.characters import described, hidden
from archive.plan import DTYPES, Launch, Path, PlaceError, Plan, PlanError, line_of, read, read_table
from archive.records import SHIPPED, content_id
from archive.runs import Cost, Question

OPEN, CLOSE = "/*---", "---*/"
MAX_CHARACTERS = 200_000
ID_CHARACTERS = 16
# The op, the note and the knobs in a canonical text, one line per knob.
OP = re.compile(r'\A/\*---\nop = ("[^\n]*")\n')
NOTE = re.compile(r'\A/\*---\nop = "[^\n]*"\nnote = ("[^\n]*")\n')
KNOBS = re.compile(r"\n\[knobs\]\n((?:[A-Z][A-Z0-9_]* = \[[-0-9, ]+\]\n)+)")
# Comments and string literals, which are not part of a source's outline, like names and whitespace.
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
        except ValueError:  # the TOML is not JSON, which does not occur in canonical texts
            return self.plan.note

    def has_code_of(self, other: "Kernel") -> bool:
        """Return whether the device code equals that of another kernel, without parsing the plans."""
        return self.text.partition(CLOSE)[2] == other.text.partition(CLOSE)[2]

    @cached_property
    def settings(self) -> Mapping[str, int]:
        """The current value of each knob, read from the text without parsing the plan."""
        return {name: values[0] for name, values in self._knobs.items()}

    @cached_property
    def family(self) -> str:
        """An id that is the same for all knob settings of a kernel."""
        found = self._knob_lines
        if found is None:
            return self.id
        lines = "".join(f"{name} = [{', '.join(map(str, sorted(values)))}]\n" for name, values in self._knobs.items())
        return _hashed(f"{self.text[: found.start(1)]}{lines}{self.text[found.end(1) :]}")

    @cached_property
    def outline(self) -> str:
        """A hash of the device code's punctuation. It does not depend on names, comments and spacing."""
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
        line = 2 + line_of(header, error.path)
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


@dataclass(frozen=True)
class Proposal:
    """A proposed kernel, or a reply without a valid kernel and the reason (`failure`)."""

    op: str
    operator: str  # operator that made it: seed, knobs, crossover, draft, improve, repair, tell
    proposer: str  # its origin: offline, tell, or the model's name
    kernel: Kernel | None
    parents: tuple[str, ...] = ()
    run: str = ""
    reply: str = ""  # the model's reply, stored even if it has no kernel
    failure: str = ""
    cost: Cost = field(default=Cost())
    created: float = 0.0
    call: str = ""  # distinguishes equal answers to several calls, because each call was paid for
    # Stored with a new proposal, but read back only as an AskedQuestion, because it is long and rarely needed.
    question: Question | None = field(default=None, compare=False, repr=False)

    @property
    def kernel_id(self) -> str:
        return self.kernel.id if self.kernel else ""

    @property
    def shipped(self) -> bool:
        """Whether its kernel ships with the package."""
        return SHIPPED in (self.proposer, self.run)

    @property
    def answered(self) -> bool:
        """Whether there was a reply. A request that got none costs nothing."""
        return bool(self.kernel or self.reply or self.cost.tokens)

    @cached_property
    def id(self) -> str:
        """A hash without the time and the cost, so that a proposal that is archived twice is one record."""
        said = [self.kernel_id, list(self.parents), self.run, self.reply, self.failure]
        return content_id([self.op, self.operator, self.proposer, *said, *([self.call] if self.call else [])])


@dataclass(frozen=True)
class Pointer:
    """An argument that is the address of a tensor or of a workspace."""

    name: str


@dataclass(frozen=True)
class Pointers:
    """An argument that is a `List<T, N>` of addresses, passed by value."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class BoundMap:
    """An argument that is a tensor map of 128 bytes, passed by value. Sizes are in elements, the innermost last."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def strides(self) -> tuple[int, ...]:
        """Distances in bytes between neighbouring indices, in all dims but the innermost."""
        return tuple(math.prod(self.shape[dim + 1 :]) * DTYPES[self.dtype] for dim in range(len(self.shape) - 1))

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


Value = Pointer | Pointers | BoundMap | int | float


@dataclass(frozen=True)
class BoundWorkspace:
    name: str
    dtype: str
    elements: int
    zero: bool

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPES[self.dtype]


@dataclass(frozen=True)
class BoundLaunch:
    index: int
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: tuple[Value, ...]
    cooperative: bool


@dataclass(frozen=True)
class Bound:
    """Everything a device needs to compile and launch a kernel at one point."""

    kernel: Kernel
    constants: tuple[tuple[str, int], ...]  # values that are compiled in as constexpr
    types: tuple[tuple[str, str], ...]  # dtypes of tensors and workspaces, as in `using x_t = ...`
    workspace: tuple[BoundWorkspace, ...]
    launches: tuple[BoundLaunch, ...]


def parse(text: str) -> Kernel:
    """Read a kernel's text, or raise a PlanError that names the faulty line."""
    text = text.replace("\r\n", "\n")
    if found := hidden(text):
        raise PlanError(f"the text has {described(found)}", text.count("\n", 0, found.start()) + 1)
    return _assembled(*_read(text, archived=False))


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


def _check_visible(table: Mapping[str, object], header: str, first_line: int) -> None:
    """Raise for hidden characters in TOML escapes, which a check of the raw text does not find."""
    for text, path in _strings(table, ()):
        if found := hidden(text):
            raise PlanError(f"the plan has an escape for {described(found)}", first_line + line_of(header, path))


def _strings(value: object, path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the keys and the strings of a TOML table, each with the path of the table or key that holds it."""
    match value:
        case dict():
            for key, inner in value.items():
                yield key, path
                yield from _strings(inner, (*path, key))
        case list():
            for inner in value:
                yield from _strings(inner, path)
        case str():
            yield value, path


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
        found = f"; `{line[:60]}` comes before it: remove text that is not part of the kernel" if opened else ""
        raise PlanError(f"a kernel begins with its plan in a comment: {OPEN} ... {CLOSE}{found}", 1)
    header, closed, source = rest.partition(CLOSE)
    first_line = before.count("\n") + 1
    if not closed:
        raise PlanError(f"the plan's comment is never closed with {CLOSE}", first_line)
    table = read_table(header, first_line)
    if not archived:
        _check_visible(table, header, first_line)
    plan = read(table, header, first_line)
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
    kernel.__dict__["_parts"] = plan, source  # the place where `cached_property` stores the value
    return kernel


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARACTERS]

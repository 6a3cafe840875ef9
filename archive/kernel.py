"""A Kernel is one genome: CUDA C++ device code plus the launch plan declared in its first comment.

    /*---
    op = "softmax"
    [[launch]]
    ...
    ---*/
    extern "C" __global__ void ...

Its id is the hash of its canonical text, so that the same kernel has the same id wherever it comes from.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from functools import cached_property

from archive import plan_check, plan_reader
from archive.characters import described, hidden
from archive.plan import PlaceError, Plan, PlanError, Signature, print_plan

OPEN, CLOSE = "/*---", "---*/"
MAX_CHARACTERS = 200_000
ID_CHARACTERS = 16


@dataclass(frozen=True)
class Kernel:
    """Device code and its plan; build one with `parse`."""

    plan: Plan
    source: str

    @cached_property
    def text(self) -> str:
        """The canonical text, which parses to this same kernel."""
        return f"{OPEN}\n{print_plan(self.plan)}{CLOSE}\n{self.source}"

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:ID_CHARACTERS]

    @property
    def op(self) -> str:
        return self.plan.op

    @cached_property
    def family(self) -> str:
        """The id that all settings of the same knobs share."""
        knobs = tuple((name, tuple(sorted(values))) for name, values in self.plan.knobs)
        return replace(self, plan=replace(self.plan, knobs=knobs)).id

    def with_knobs(self, settings: dict[str, int]) -> "Kernel":
        """The same kernel with other knob values in force; the value in force stands first in its list."""
        knobs = tuple(
            (name, (settings[name], *sorted(set(values) - {settings[name]}))) if name in settings else (name, values)
            for name, values in self.plan.knobs
        )
        return replace(self, plan=replace(self.plan, knobs=knobs))

    def fault(self, error: PlaceError) -> PlanError:
        """The same fault with the line of the canonical text where it stands."""
        header = print_plan(self.plan)
        line = 2 + plan_reader.line_of(header, error.path)
        written = self.text.split("\n")[line - 1].strip()
        return PlanError(f"{error} | {written}", line)


def parse(text: str) -> Kernel:
    """Read a kernel's text, or raise a PlanError with the line that is wrong."""
    text = text.replace("\r\n", "\n")
    if found := hidden(text):
        raise PlanError(f"the text has {described(found)}", text.count("\n", 0, found.start()) + 1)
    return _read(text, archived=False)


def archived(text: str) -> Kernel:
    """As `parse`, for a text that was parsed before: an archive of earlier days may hold what is refused now."""
    return _read(text, archived=True)


def _read(text: str, *, archived: bool) -> Kernel:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > MAX_CHARACTERS:
        raise PlanError(f"a kernel may have {MAX_CHARACTERS} characters, this one has {len(text)}", 1)
    before, opened, rest = text.partition(OPEN)
    if not opened or before.strip():
        line = next((line.strip() for line in before.split("\n") if line.strip()), "")
        found = f"; before it stands `{line[:60]}`: cut what is no part of the kernel" if opened else ""
        raise PlanError(f"a kernel begins with its plan in a comment: {OPEN} ... {CLOSE}{found}", 1)
    header, closed, source = rest.partition(CLOSE)
    first_line = before.count("\n") + 1
    if not closed:
        raise PlanError(f"the plan's comment is never closed with {CLOSE}", first_line)
    plan = plan_reader.read(header, first_line, archived=archived)
    if "*/" in print_plan(plan):
        raise PlanError("the plan may not contain */", first_line)
    lines = [line.rstrip() for line in source.split("\n")]
    kernel = Kernel(plan, "\n".join(lines).strip("\n") + "\n")
    if not kernel.source.strip():
        raise PlanError("there is no device code after the plan", first_line + header.count("\n"))
    _check_conditionals(kernel.plan, lines, first_line + header.count("\n"))
    return kernel


def parse_for(text: str, signature: Signature) -> Kernel:
    """Read a kernel's text and check its plan against the op it is for."""
    kernel = parse(text)
    check(kernel, signature)
    return kernel


def check(kernel: Kernel, signature: Signature) -> None:
    """Raise a PlanError unless the plan makes sense for the op."""
    try:
        plan_check.check(kernel.plan, signature)
    except PlaceError as error:
        raise kernel.fault(error) from error


def _check_conditionals(plan: Plan, lines: list[str], first_line: int) -> None:
    """Only knobs are macros: `#if` on a specialised value would silently compare a name that is no macro."""
    defined = set(re.findall(r"^\s*#\s*define\s+(\w+)", "\n".join(lines), flags=re.MULTILINE))
    allowed = {*plan.settings, *defined, "defined"}
    for number, line in enumerate(lines):
        match = re.match(r"\s*#\s*(?:if|elif)\b(.*)", line)
        names = re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*|/\*.*?\*/", "", match.group(1))) if match else []
        for name in names:
            if name not in allowed and not name.startswith("_"):
                raise PlanError(
                    f"#if on `{name}`, which is no knob: specialised values are constexpr, so use `if constexpr`",
                    first_line + number,
                )

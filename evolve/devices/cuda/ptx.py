"""PTX read as text: the instructions of an entry, their possible successors, and the origins of each value."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\([^{]*\{")
COMMENT = re.compile(r"//[^\n]*")
STATEMENT = re.compile(
    r"""\s*(?:
      \.loc\s+(?P<file>\d+)\s+(?P<line>\d+)[^\n]*
    | (?P<label>[A-Za-z_$%][\w$]*)[ \t]*:
    | (?P<brace>[{}])
    | (?P<statement>[^;]+);
    )""",
    re.VERBOSE,
)
OWN_FILE = re.compile(r'(?m)^\s*\.file\s+(\d+)\s+"(?:[^"]*/)?kernel\.cu"')
GUARD = re.compile(r"@!?(%[\w$]+)\s*")
IN_BRACKETS = re.compile(r"\[([^\]]*)\]")
OPERAND = re.compile(r"[%$\w.-]+")
RESULT = re.compile(r"\s*(?:\{([^}]*)\}|(%[\w$]+|_)(?:\s*\|\s*(%[\w$]+|_))?)")
SHORT = 6  # largest number of instructions of a branch that only chooses a value
NUMBER = re.compile(r"-?\d+")
PARAMETER = re.compile(r"\w*_param_(\d+)(?:\+(\d+))?")
WITHOUT_RESULT = frozenset({
    "st", "red", "bra", "brx", "bar", "barrier", "membar", "fence", "ret", "exit", "call", "prefetch", "prefetchu",
    "cp", "nanosleep", "trap", "brkpt", "discard", "applypriority", "griddepcontrol", "setmaxnreg", "multimem",
})  # fmt: skip
ENDS = frozenset({"ret", "exit", "trap"})
ELSEWHERE = re.compile(r"\.(?:param|shared(?:::\w+)?|local|const)\b")
HELD = re.compile(r"\.(?:shared(?:::\w+)?|local)\b")
ACROSS_BLOCKS = re.compile(r"\.(?:gpu|sys|gl)\b")
ORDERS = re.compile(r"\.(?:release|acq_rel|sc)\b")
RELAXED = re.compile(r"\.(?:cta|cluster)\b")


class Parameter(NamedTuple):
    """A pointer or number that the launch passes, at an offset within a parameter that is a list."""

    position: int
    offset: int


class Register(NamedTuple):
    """A special register such as %ctaid, without its component."""

    name: str


class Symbol(NamedTuple):
    """A variable in shared or local memory."""

    name: str


class Read(NamedTuple):
    """The value that this instruction has read from global memory, by a load or an atomic."""

    by: int


Origin = Parameter | Register | Symbol | Read


class Instruction(NamedTuple):
    """One instruction; operands are registers, names and numbers as they are written."""

    operation: str
    guard: str  # the register of the predicate, or empty
    results: tuple[str, ...]
    inputs: tuple[str, ...]
    address: tuple[str, ...]  # operands in brackets, empty without memory
    line: int  # line of kernel.cu; 0 for code of a header
    inverted: bool = False  # whether the predicate must be false

    @property
    def kind(self) -> str:
        return self.operation.partition(".")[0]

    @property
    def is_global(self) -> bool:
        """Return whether the instruction accesses global memory, or memory of a kind that PTX leaves open."""
        return self.kind in ("ld", "st", "atom", "red") and not ELSEWHERE.search(self.operation)

    @property
    def reads(self) -> bool:
        return self.is_global and self.kind in ("ld", "atom")

    @property
    def writes(self) -> bool:
        return self.is_global and self.kind in ("st", "atom", "red")

    @property
    def is_barrier(self) -> bool:
        """Return whether the threads of a block may wait for each other at this instruction."""
        return self.kind in ("bar", "barrier", "mbarrier", "call")

    @property
    def is_fence(self) -> bool:
        """Return whether the instruction makes earlier writes visible to other blocks before later writes.

        A called function may do so.
        """
        if self.kind in ("membar", "fence"):
            return ACROSS_BLOCKS.search(self.operation) is not None
        releases = ORDERS.search(self.operation) is not None and not RELAXED.search(self.operation)
        return self.kind == "call" or (self.is_global and releases)


@dataclass(frozen=True)
class Entry:
    """The instructions of a `__global__` function, with the places of its labels."""

    name: str
    code: tuple[Instruction, ...]
    labels: dict[str, int]
    clusters: bool  # whether its blocks form clusters

    @cached_property
    def following(self) -> tuple[tuple[int, ...], ...]:
        """The instructions that may run after each one."""
        return tuple(tuple(self._after(index)) for index in range(len(self.code)))

    @cached_property
    def preceding(self) -> tuple[tuple[int, ...], ...]:
        before: list[list[int]] = [[] for _ in self.code]
        for index, following in enumerate(self.following):
            for other in following:
                before[other].append(index)
        return tuple(map(tuple, before))

    @cached_property
    def writers(self) -> dict[str, tuple[int, ...]]:
        """The instructions that write each register."""
        found: dict[str, list[int]] = {}
        for index, instruction in enumerate(self.code):
            for register in instruction.results:
                found.setdefault(register, []).append(index)
        return {register: tuple(indices) for register, indices in found.items()}

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The first and last instruction of each loop, the shortest loop first."""
        found = {
            (self.labels[instruction.inputs[0]], end)
            for end, instruction in enumerate(self.code)
            if instruction.kind == "bra" and self.labels.get(instruction.inputs[0], end + 1) <= end
        }
        return tuple(sorted(found, key=lambda span: (span[1] - span[0], span)))

    @cached_property
    def origins(self) -> "Origins":
        """The origins of each register, and of each variable as `[name]`."""
        found = Origins({}, {})
        changed = True
        while changed:
            changed = False
            for index, instruction in enumerate(self.code):
                bits = self._origins_after(index, instruction, found) | found.of(self.choices.get(index, ()))
                targets = instruction.results
                if HELD.search(instruction.operation) and instruction.kind in ("st", "atom", "red"):
                    targets = (*targets, *found.variables(instruction.address))
                for target in targets:
                    before = found.known.get(target, 0)
                    if bits & ~before:
                        found.known[target] = before | bits
                        changed = True
        return found

    @cached_property
    def choices(self) -> dict[int, tuple[str, ...]]:
        """The predicates that decide whether an instruction of a short branch runs, such as `if (...) last = true`."""
        found: dict[int, tuple[str, ...]] = {}
        for index, instruction in enumerate(self.code):
            end = self.labels.get(instruction.inputs[0], 0) if instruction.kind == "bra" and instruction.guard else 0
            if index < end <= index + SHORT:
                for within in range(index + 1, end):
                    if self.code[within].kind == "mov" or HELD.search(self.code[within].operation):
                        found[within] = (*found.get(within, ()), instruction.guard)
        return found

    def of(self, operands: Iterable[str]) -> frozenset[Origin]:
        """Return the origins of these operands."""
        return self.origins.named(self.origins.of(operands))

    def derives(self, operands: Iterable[str], origin: Origin) -> bool:
        """Return whether any of these operands is computed from this origin."""
        return self.origins.of(operands) & self.origins.numbers.get(origin, 0) != 0

    def reached(self, starts: Iterable[int], stops: Callable[[int], bool], *, backwards: bool = False) -> set[int]:
        """Return the instructions that can run after (or before) these instructions without passing one that stops."""
        steps = self.preceding if backwards else self.following
        waiting, found = list(starts), set[int]()
        while waiting:
            for other in steps[waiting.pop()]:
                if other not in found:
                    found.add(other)
                    if not stops(other):
                        waiting.append(other)
        return found

    def sides(self, branch: int) -> tuple[int, ...]:
        """Return the two instructions that may follow a conditional branch; -1 is the end of the entry."""
        instruction = self.code[branch]
        target = self.labels.get(instruction.inputs[0], -1) if instruction.kind == "bra" else -1
        return target, branch + 1 if branch + 1 < len(self.code) else -1

    def constant(self, operand: str) -> str:
        """Return the constant that an operand always equals, as text, or the operand itself."""
        at = self.writers.get(operand, ())
        if len(at) == 1 and self.code[at[0]].kind == "mov" and len(self.code[at[0]].inputs) == 1:
            return self.constant(self.code[at[0]].inputs[0])
        return operand

    def is_register(self, operand: str, index: int, name: str) -> bool:
        """Return whether an operand of the instruction at this index is a special register, such as %tid.x."""
        own = set(self.writers.get(operand, ()))
        met = self.reached([index], lambda other: other in own, backwards=True) & own
        return bool(met) and all(self.code[i].kind == "mov" and self.code[i].inputs == (name,) for i in met)

    def place(self, address: tuple[str, ...]) -> tuple[str, int]:
        """Return an address as a register or parameter and a constant offset."""
        operand, distance = address[0], sum(map(int, filter(NUMBER.fullmatch, address[1:])))
        while len(at := self.writers.get(operand, ())) == 1:
            instruction = self.code[at[0]]
            last = instruction.inputs[-1] if instruction.inputs else ""
            if instruction.operation.startswith("ld.param"):
                return "".join(instruction.address), distance
            if instruction.kind == "add" and NUMBER.fullmatch(last):
                distance += int(last)
            elif instruction.kind not in ("mov", "cvta") or len(instruction.inputs) != 1:
                break
            operand = instruction.inputs[0]
        return operand, distance

    def _after(self, index: int) -> Iterable[int]:
        instruction = self.code[index]
        jumps = instruction.kind == "bra"
        if jumps and instruction.inputs[0] in self.labels:
            yield self.labels[instruction.inputs[0]]
        if instruction.kind == "brx":
            yield from set(self.labels.values())
        falls = instruction.guard or not (jumps or instruction.kind == "brx" or instruction.kind in ENDS)
        if falls and index + 1 < len(self.code):
            yield index + 1

    def _origins_after(self, index: int, instruction: Instruction, found: "Origins") -> int:
        if instruction.reads:
            return found.number(Read(index))
        if instruction.operation.startswith("ld.param"):
            match = PARAMETER.fullmatch("+".join(instruction.address))
            return found.number(Parameter(int(match[1]), int(match[2] or 0))) if match else 0
        given = found.of(instruction.inputs)
        if HELD.search(instruction.operation) and instruction.kind in ("ld", "atom"):
            for variable in found.variables(instruction.address):
                given |= found.known.get(variable, 0)
        return given


@dataclass(frozen=True)
class Origins:
    """Sets of origins, each stored as the bits of an integer, because unrolled code has thousands of large sets."""

    numbers: dict[Origin, int]  # the number of each origin's bit
    known: dict[str, int]  # origins of registers and variables

    def number(self, origin: Origin) -> int:
        return self.numbers.setdefault(origin, 1 << len(self.numbers))

    def of(self, operands: Iterable[str]) -> int:
        bits = 0
        for operand in operands:
            known = self.known.get(operand)
            origin = _named(operand) if known is None else None
            bits |= (self.number(origin) if origin else 0) if known is None else known
        return bits

    def named(self, bits: int) -> frozenset[Origin]:
        ordered, found = list(self.numbers), set[Origin]()
        while bits:
            lowest = bits & -bits
            found.add(ordered[lowest.bit_length() - 1])
            bits ^= lowest
        return frozenset(found)

    def variables(self, address: Iterable[str]) -> list[str]:
        """Return the variables that an address may point to, as `[name]`."""
        bits = self.of(address)
        return [f"[{each.name}]" for each, bit in self.numbers.items() if isinstance(each, Symbol) and bits & bit]


@lru_cache(maxsize=16)  # all workloads with the same specialised values share their PTX
def entries(ptx: str) -> dict[str, Entry]:
    """Return the entries of a module by name."""
    text = COMMENT.sub("", ptx)
    own = {match[1] for match in OWN_FILE.finditer(text)}
    return {match[1]: _entry(match, text, own) for match in ENTRY.finditer(text)}


def _entry(head: re.Match[str], text: str, own_files: set[str]) -> Entry:
    at = head.end()
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    depth, line = 1, 0
    while depth and (match := STATEMENT.match(text, at)):
        at = match.end()
        if match["line"]:
            line = int(match["line"]) if match["file"] in own_files else 0
        elif match["label"]:
            labels[match["label"]] = len(code)
        elif match["brace"]:
            depth += 1 if match["brace"] == "{" else -1
        elif not match["statement"].startswith("."):
            code.append(_instruction(match["statement"], line))
    code.append(Instruction("ret", "", (), (), (), line))  # labels may be at the end
    return Entry(head[1], tuple(code), labels, "cluster" in head[0])


def _instruction(text: str, line: int) -> Instruction:
    guard = GUARD.match(text)
    operation, _, operands = text[guard.end() if guard else 0 :].strip().replace("\t", " ").partition(" ")
    address = tuple(OPERAND.findall(" ".join(IN_BRACKETS.findall(operands))))
    results: tuple[str, ...] = ()
    kind = operation.partition(".")[0]
    if (kind not in WITHOUT_RESULT or ".red." in operation) and (match := RESULT.match(operands)):
        results = tuple(OPERAND.findall(" ".join(group for group in match.groups() if group)))
        operands = operands[match.end() :]
    inputs = tuple(OPERAND.findall(IN_BRACKETS.sub(" ", operands)))
    return Instruction(operation, guard[1] if guard else "", results, inputs, address, line, text.startswith("@!"))


def _named(operand: str) -> Origin | None:
    """Return the origin of an operand that no instruction has written."""
    if operand.startswith(("%ctaid", "%nctaid", "%tid")):
        return Register(operand.partition(".")[0])
    return Symbol(operand.partition("+")[0]) if re.match(r"[A-Za-z_$]", operand) else None

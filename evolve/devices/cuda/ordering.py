"""Order among the blocks of a launch, read from its PTX.

The checks find counters and flags without a fence before them, loops that wait for blocks that may not be running, and
read-only loads of memory that the same launch writes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from archive.kernel import Bound, BoundLaunch, BoundMap, Pointer, Pointers
from archive.records import Outcome, content_id
from evolve.devices.cuda.ptx import Entry, Instruction, Parameter, Read, Register, entries
from evolve.devices.device import RejectedError

Address = Pointer | Pointers | BoundMap  # an argument by which a launch reaches tensors
SHARES = ("atom.", ".volatile", ".relaxed", ".acquire", "ld.global.cg.", "ld.global.cv.")
REDUCES = re.compile(r"red\.(?<![a-z]red\.)")  # does not match the end of `shared.`
READ_ONLY = re.compile(r"ldg|\.nc\b")  # in the source: loads that the compiler must make read-only
FOUND = " (found in its PTX)"
FLOAT = re.compile(r"\.b?f\d+(?:x2)?$")
OF_ONE_BLOCK = re.compile(r"\.(?:cta|cluster)\b")
FRESH = re.compile(r"\.(?:volatile|relaxed|acquire|cg|cv)\b")  # loads that bypass the first-level cache
# operands with which an atomic operation changes nothing
NEUTRAL = {"add": "0", "or": "0", "xor": "0", "sub": "0", "inc": "0"}
WARP = 32
REPEATABLE = frozenset({"or", "and", "max", "min"})
TICKETS = frozenset({"add", "inc", "dec", "sub"})
COUNTS = TICKETS | {"or"}
FENCE = "call __threadfence() between the write and the atomic"
ALL_AT_ONCE = (
    "set `cooperative = true` in its [[launch]], with a grid small enough that all blocks run at the same time, or use "
    "two launches"
)


def check(bound: Bound, ptx: str) -> tuple[str, ...]:
    """Raise for a launch whose blocks depend on an order that nothing ensures; return warnings of possible faults."""
    shares = any(word in ptx for word in SHARES) or REDUCES.search(ptx) is not None
    warnings: list[str] = []
    for launch in bound.launches:
        names = _passed(launch)
        read_only = ".nc" in ptx and (len(set(names)) < len(names) or READ_ONLY.search(bound.kernel.source) is not None)
        if (shares or read_only) and launch.entry in (found := entries(ptx)):
            view = View(found[launch.entry], launch)
            among_blocks = _across_blocks(view) if prod(launch.grid) > 1 else ()
            faults = [*_read_only(view, _held_before(bound, launch)), *among_blocks]
            for fault in faults:
                if fault.sure:
                    raise RejectedError(Outcome.UNSAFE, f"{fault.text}{FOUND}")
                warnings.append(f"warning: {fault.text}")
    return tuple(dict.fromkeys(warnings))


def use(bound: Bound) -> str:
    """Return the facts on which `check` depends besides the PTX, so that its result can be kept for equal uses."""
    launches = [
        (one.entry, [_names(value) if isinstance(value, Address) else "" for value in one.args],
         one.cooperative, prod(one.grid) > 1, prod(one.block) <= WARP)
        for one in bound.launches
    ]  # fmt: skip
    zeroed = sorted(workspace.name for workspace in bound.workspace if workspace.zero)
    return content_id([launches, zeroed, READ_ONLY.search(bound.kernel.source) is not None])


@dataclass(frozen=True)
class Fault:
    """A fault of a launch, which is `sure` or depends on how the kernel divides its work."""

    text: str
    sure: bool = True


@dataclass(frozen=True)
class View:
    """An entry as one launch calls it, so that its parameters have the names of tensors."""

    entry: Entry
    launch: BoundLaunch

    @cached_property
    def buffers(self) -> dict[int, frozenset[str]]:
        """The tensors that each access of global memory may read or write, as far as they are known."""
        code = enumerate(self.entry.code)
        touched = {index: self._touched(instruction) for index, instruction in code if instruction.is_global}
        return {index: names for index, names in touched.items() if names}

    @cached_property
    def writes(self) -> tuple[int, ...]:
        return tuple(i for i in self.buffers if self.entry.code[i].writes and not self.reads_only(i))

    @cached_property
    def loads(self) -> tuple[int, ...]:
        return tuple(i for i in self.buffers if self.entry.code[i].reads)

    @cached_property
    def polls(self) -> tuple["Poll", ...]:
        return tuple(poll for index in self.loads if (poll := _poll(self, index)))

    @cached_property
    def working(self) -> frozenset[int]:
        """The instructions that show that a loop does more than wait: calls, writes, loads of unchanged memory."""
        shared = frozenset[str]().union(*(self.buffers[index] for index in self.writes))
        alone = (index for index in self.loads if not self.buffers[index] & shared)
        code = enumerate(self.entry.code)
        unknown = (i for i, each in code if each.kind == "call" or (each.writes and i not in self.buffers))
        return frozenset((*self.writes, *alone, *unknown))

    def fenced(self, index: int) -> bool:
        return self.entry.code[index].is_fence

    def reads_only(self, index: int) -> bool:
        """Return whether an atomic operation leaves the value unchanged, such as atomicAdd(p, 0)."""
        instruction = self.entry.code[index]
        if instruction.kind != "atom":
            return False
        operator, operands = _operator(instruction), [self.entry.constant(each) for each in instruction.inputs]
        same = operator == "cas" and len(operands) == 2 and operands[0] == operands[1]
        return same or (operator in NEUTRAL and operands[:1] == [NEUTRAL[operator]])

    def where(self, index: int) -> str:
        line = self.entry.code[index].line
        return f"launch {self.launch.index}, {f'kernel.cu:{line}' if line else f'`{self.launch.entry}`'}"

    def named(self, index: int) -> str:
        return " or ".join(f"`{name}`" for name in sorted(self.buffers[index]))

    def _touched(self, instruction: Instruction) -> frozenset[str]:
        found = set[str]()
        for origin in self.entry.of(instruction.address):
            if isinstance(origin, Parameter) and origin.position < len(self.launch.args):
                value = self.launch.args[origin.position]
                if isinstance(value, Pointer | Pointers):
                    found.add(_names(value)[min(origin.offset // 8, len(_names(value)) - 1)])
        return frozenset(found)


@dataclass(frozen=True)
class Poll:
    """A read in a loop that ends only when other threads have changed the value."""

    read: int
    body: frozenset[int]
    guards: tuple[str, ...]  # the predicates that end the loop
    locks: bool  # whether the loop takes a lock, which only a running block can hold


def _across_blocks(view: View) -> Iterator[Fault]:
    for poll in view.polls:
        if not view.launch.cooperative and (fault := _waiting(view, poll)):
            yield replace(fault, sure=not view.entry.clusters)  # the blocks of a cluster run at the same time
        yield from _flag_without_fence(view, poll)
    for index in view.loads:
        yield from _count_without_fence(view, index)


def _held_before(bound: Bound, launch: BoundLaunch) -> frozenset[str]:
    """Return the tensors that may hold values before a launch, so that the launch may intend to read them."""
    zeroed = frozenset(workspace.name for workspace in bound.workspace if workspace.zero)
    return zeroed.union(*(_passed(earlier) for earlier in bound.launches[: bound.launches.index(launch)]))


def _read_only(view: View, held_before: frozenset[str]) -> Iterator[Fault]:
    """Yield read-only loads of memory that the same launch writes.

    The cache used by such loads is not updated by writes. The compiler may move them in front of the writes.
    """
    code = view.entry.code
    loads = [index for index in view.loads if re.search(r"\.nc\b", code[index].operation)]
    for index in loads:
        writes = [write for write in view.writes if view.buffers[write] & view.buffers[index]]
        if writes:
            after = view.entry.reached(writes, lambda _: False)
            text = (
                f"{view.where(index)}: {view.named(index)} is written by this launch, so a read-only load of it "
                "(`__ldg`, or `const` with `__restrict__`) may return old values: use a plain load, or __ldcg for "
                "values that another block writes"
            )
            yield Fault(text, sure=index in after or not view.buffers[index] & held_before)


def _count_without_fence(view: View, count: int) -> Iterator[Fault]:
    """Yield each count after which a block reads what other blocks wrote, if no fence precedes the count."""
    entry, counter = view.entry, view.entry.code[count]
    if counter.kind != "atom" or _operator(counter) not in COUNTS or OF_ONE_BLOCK.search(counter.operation):
        return
    if any(entry.derives(entry.code[index].address, Read(count)) for index in view.buffers):
        return  # the count assigns places or work
    decided = _decided(entry, count)
    if not decided:
        return
    behind = [load for load in view.loads if load in decided and load != count]
    unordered = () if view.fenced(count) else entry.reached([count], view.fenced, backwards=True)
    place = entry.place(counter.address)
    yield from _other_threads(view, count, behind)
    for write in sorted(set(view.writes).intersection(unordered) - {count}):
        read = [load for load in behind if view.buffers[load] & view.buffers[write]]
        if read and not view.fenced(write) and entry.place(entry.code[write].address) != place:
            text = (
                f"{view.where(count)}: nothing orders the write to {view.named(write)} before the count in "
                f"{view.named(count)}, so the block that counts last may read old values: {FENCE}"
            )
            yield Fault(text)
            return
    yield from _cached(view, count, behind)


def _other_threads(view: View, count: int, behind: list[int]) -> Iterator[Fault]:
    """Yield each count by thread 0 without a barrier of the block between it and the writes of other threads."""
    entry = view.entry
    first = _of_thread_0(entry)
    if count not in first or prod(view.launch.block) <= WARP:
        return
    early = entry.reached([count], lambda index: entry.code[index].is_barrier, backwards=True)
    for write in sorted(early.intersection(view.writes) - first):
        read = [load for load in behind if view.buffers[load] & view.buffers[write]]
        if read and entry.derives(entry.code[write].address, Register("%tid")):
            text = (
                f"{view.where(count)}: thread 0 counts the block in {view.named(count)}, but others need not have "
                f"written {view.named(write)} by then: call __threadfence(), then __syncthreads() before the count"
            )
            yield Fault(text)
            return


def _of_thread_0(entry: Entry) -> frozenset[int]:
    """Return the instructions that run only in the thread whose threadIdx.x is 0."""
    found = set[int]()
    for index, instruction in enumerate(entry.code):
        made = entry.writers.get(instruction.guard, ()) if instruction.kind == "bra" else ()
        compared = entry.code[made[0]] if len(made) == 1 else None
        if compared is None or not compared.operation.startswith(("setp.ne.", "setp.eq.")):
            continue
        if compared.inputs[1] == "0" and entry.is_register(compared.inputs[0], made[0], "%tid.x"):
            ways = [_way(entry, side, index) for side in entry.sides(index)]
            equal = compared.operation.startswith("setp.eq.") != instruction.inverted
            found |= ways[0] - ways[1] if equal else ways[1] - ways[0]
    return frozenset(found)


def _decided(entry: Entry, count: int) -> frozenset[int]:
    """Return the instructions that run only for some results of an atomic operation; none if it is retried."""
    found = set[int]()
    for index, instruction in enumerate(entry.code):
        if not instruction.guard or not entry.derives((instruction.guard,), Read(count)):
            continue
        if instruction.kind not in ("bra", "ret", "exit"):
            found.add(index)
            continue
        ways = [_way(entry, side, count) for side in entry.sides(index)]
        if (count in ways[0]) != (count in ways[1]) and count in entry.reached([index], lambda _: False):
            return frozenset()
        found |= ways[0] ^ ways[1]
    return frozenset(found)


def _way(entry: Entry, start: int, stop: int) -> set[int]:
    return {start, *entry.reached([start], lambda index: index == stop)} if start >= 0 else set()


def _poll(view: View, read: int) -> Poll | None:
    """Return the loop in which this instruction waits for other threads, if there is one."""
    entry, instruction = view.entry, view.entry.code[read]
    takes = instruction.kind == "atom" and not view.reads_only(read)
    if takes and _operator(instruction) not in {"cas", "exch", *REPEATABLE}:
        return None
    for number, body in enumerate(_loops(entry, read)):
        if body - {read} & view.working:
            return None
        again = instruction.address if number == 0 else ()
        if not all(
            _same_each_time(entry, operand, body) for operand in (*again, *(instruction.inputs if takes else ()))
        ):
            continue
        guards = tuple(
            entry.code[i].guard for i in sorted(body)
            if entry.code[i].guard and entry.derives((entry.code[i].guard,), Read(read)) and _leaves(entry, i, body)
        )  # fmt: skip
        others = [i for i in view.writes if i not in body and view.buffers[i] & view.buffers[read]]
        if guards and others:
            locks = takes and _operator(instruction) in ("cas", "exch") and not _numbered(entry, instruction.inputs)
            return Poll(read, body, guards, locks)
    return None


def _loops(entry: Entry, index: int) -> Iterator[frozenset[int]]:
    """Yield the instructions of each loop that contains this instruction, the innermost loop first."""
    for begin, end in entry.spans:
        if begin <= index <= end:

            def outside(other: int, begin: int = begin, end: int = end) -> bool:
                return not begin <= other <= end

            after, before = entry.reached([index], outside), entry.reached([index], outside, backwards=True)
            body = frozenset(i for i in after & before if begin <= i <= end)
            if index in body:
                yield body


def _leaves(entry: Entry, index: int, body: frozenset[int]) -> bool:
    return entry.code[index].kind in ("ret", "exit") or any(side not in body for side in entry.sides(index))


def _same_each_time(entry: Entry, operand: str, body: frozenset[int], depth: int = 20) -> bool:
    """Return whether an operand has the same value in every round of a loop."""
    within = [index for index in entry.writers.get(operand, ()) if index in body]
    if not within:
        return True
    if len(within) > 1 or len(entry.writers[operand]) > 1 or depth == 0 or entry.code[within[0]].reads:
        return False
    return all(_same_each_time(entry, each, body, depth - 1) for each in entry.code[within[0]].inputs)


def _waiting(view: View, poll: Poll) -> Fault | None:
    """Return the fault of a loop that waits for other blocks, unless those must have begun before this block."""
    entry, read = view.entry, view.entry.code[poll.read]
    if poll.locks or _tickets(entry, read.address, poll):
        return None
    compared = (*poll.guards, *read.inputs)
    places = {entry.place(entry.code[ticket].address) for ticket in _tickets(entry, compared, poll)}
    if places and entry.place(read.address) not in places and not entry.derives(compared, Register("%nctaid")):
        return None  # the loop waits for the block's turn
    text = f"{view.where(poll.read)}: a loop waits until another block changes {view.named(poll.read)}"
    if _numbered(entry, (*read.address, *compared)):
        return Fault(
            f"{text}, but blocks begin in any order: number them by a ticket (atomicAdd on a zeroed workspace) and "
            f"wait for lower tickets only, or {ALL_AT_ONCE}"
        )
    return Fault(f"{text}, but the blocks of a launch need not all run at the same time: {ALL_AT_ONCE}")


def _tickets(entry: Entry, operands: tuple[str, ...], poll: Poll) -> list[int]:
    """Return the atomic operations that assign the numbers from which these operands are computed."""
    read = [origin.by for origin in entry.of(operands) if isinstance(origin, Read) and origin.by not in poll.body]
    return [i for i in read if entry.code[i].kind == "atom" and _operator(entry.code[i]) in TICKETS]


def _numbered(entry: Entry, operands: tuple[str, ...]) -> bool:
    return entry.derives(operands, Register("%ctaid"))


def _flag_without_fence(view: View, poll: Poll) -> Iterator[Fault]:
    """Yield each write, without a fence before it, to a flag or lock for which other blocks wait before they read."""
    entry = view.entry
    after = entry.reached([poll.read], lambda _: False)
    read = [load for load in view.loads if load in after and load != poll.read and load not in poll.body]
    for flag in [i for i in view.writes if i not in poll.body and view.buffers[i] & view.buffers[poll.read]]:
        instruction = entry.code[flag]
        if not poll.locks and instruction.kind == "st" and entry.constant(instruction.inputs[0]) == "0":
            continue  # the write resets the flag for later
        unordered = () if view.fenced(flag) else entry.reached([flag], view.fenced, backwards=True)
        for write in sorted(set(view.writes).intersection(unordered)):
            if not view.fenced(write) and any(_shown(view, write, flag, load) for load in read):
                yield Fault(
                    f"{view.where(flag)}: nothing orders the write to {view.named(write)} before that to "
                    f"{view.named(flag)}, for which other blocks wait: {FENCE} or flag"
                )
                return
    yield from _cached(view, poll.read, read)


def _shown(view: View, write: int, flag: int, load: int) -> bool:
    """Return whether a load may read memory that was written before the flag. In one buffer, floats are not flags."""
    shown = view.buffers[write] & view.buffers[load]
    floats = [FLOAT.search(view.entry.code[index].operation) is not None for index in (write, load, flag)]
    return bool(shown - view.buffers[flag]) or (bool(shown) and floats == [True, True, False])


def _cached(view: View, signal: int, loads: list[int]) -> Iterator[Fault]:
    """Yield plain loads of memory that other blocks have written, without a fence since their signal."""
    written = frozenset[str]().union(*(view.buffers[write] for write in view.writes if write != signal))
    unordered = view.entry.reached([signal], view.fenced)
    for load in loads:
        plain = view.entry.code[load].kind == "ld" and not FRESH.search(view.entry.code[load].operation)
        if plain and load in unordered and view.buffers[load] & written - view.buffers[signal]:
            text = (
                f"{view.where(load)}: {view.named(load)} is read after a signal in {view.named(signal)} without a "
                "fence, so an old value may still be cached: call __threadfence() first, or read it with __ldcg"
            )
            yield Fault(text, sure=False)
            return


def _operator(instruction: Instruction) -> str:
    """Return the operator of an atomic operation, such as `add`."""
    known = {"add", "inc", "dec", "sub", "cas", "exch", "or", "and", "xor", "max", "min"}
    return next((part for part in instruction.operation.split(".") if part in known), "")


def _passed(launch: BoundLaunch) -> tuple[str, ...]:
    pointers = (value for value in launch.args if isinstance(value, Address))
    return tuple(name for value in pointers for name in _names(value))


def _names(value: Address) -> tuple[str, ...]:
    if isinstance(value, BoundMap):
        return (value.tensor,)
    return (value.name,) if isinstance(value, Pointer) else value.names

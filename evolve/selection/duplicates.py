"""Detection of duplicate kernels: by their text before compiling, by their machine code after it."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from archive.kernel import Kernel
from archive.plan import Expression, Launch, Plan
from archive.records import Evaluation, Outcome, content_id
from archive.summaries import EvaluationSummary, KernelSummary
from evolve.devices.source_text import HASHES, PASTES, SPLICE, TOKEN

# Pairs of tokens that become one token unless a blank separates them.
PAIR = re.compile(r"([-+&|<>:#])\1|[-+*/%&|^<>=!]=|->")
TYPE = re.compile(
    r"void|bool|unsigned|signed|auto|half2?|__half2?|__nv_bfloat16|__nv_bfloat162"
    r"|(?:u?char|u?short|u?int|u?long|float|double)[1-4]?|(?:u?int(?:8|16|32|64)|size|uintptr)_t"
)
AFTER_TYPES = frozenset({"*", "&", "const", "volatile", "__restrict__"})
NAME = re.compile(r"[A-Za-z_]\w*")
READ_AT_ONCE = 200  # number of kernels whose texts are read at the same time
GAP, EDGE = " ", "\n"  # token that stands for a blank; no other token is blank

Judged = Evaluation | EvaluationSummary


class JudgedKernels(Protocol):
    """The kernels of an op that have a verdict on the device, except duplicates."""

    def with_text(self, kernel: Kernel) -> Judged | None:
        """Return the newest verdict on another kernel of the same meaning, whose text may differ."""

    def with_code(self, code: str) -> Judged | None:
        """Return the oldest verdict on a kernel that compiles to this machine code."""


class Duplicates:
    """A detector of duplicates, both of kernels judged before and among kernels that are compiled at the same time."""

    def __init__(self, judged: JudgedKernels) -> None:
        self._judged = judged
        self._compiled: dict[str, str] = {}  # machine code -> id of the first kernel that compiled to it

    def by_text(self, kernel: Kernel) -> str:
        """Return a log that names a kernel of the same meaning with another text, or an empty string."""
        if judged := self._judged.with_text(kernel):
            return f"is a reworded copy of kernel {judged.kernel_id}, whose verdict is: {judged.outcome}"
        return ""

    def by_code(self, kernel_id: str, code: str) -> str:
        """Return a log that names another kernel with this machine code, or an empty string."""
        same = "compiles to the same machine code as kernel"
        judged = self._judged.with_code(code)
        if judged and judged.kernel_id != kernel_id:
            return f"{same} {judged.kernel_id}, whose verdict is: {judged.outcome}"
        first = self._compiled.setdefault(code, kernel_id)
        return "" if first == kernel_id else f"{same} {first}, which was proposed at the same time"


class Texts:
    """The kernels of an op by the meaning of their text. A kernel is read when another one has the same outline."""

    def __init__(self, read: Callable[[Sequence[str]], Iterable[Kernel]]) -> None:
        self._read = read
        self._unread = defaultdict[str, list[str]](list)  # ids of kernels by outline
        self._alike = defaultdict[str, dict[str, list[str]]](dict)  # the others by outline and likeness, oldest first

    def add(self, kernel: KernelSummary) -> None:
        self._unread[kernel.outline].append(kernel.id)

    def like(self, kernel: Kernel) -> list[str]:
        """Return the ids of other kernels of the same meaning, oldest first."""
        alike, unread = self._alike[kernel.outline], self._unread[kernel.outline]
        if not alike and set(unread) <= {kernel.id}:
            return []
        for first in range(0, len(unread), READ_AT_ONCE):
            for other in self._read(unread[first : first + READ_AT_ONCE]):
                alike.setdefault(likeness(other), []).append(other.id)
        unread.clear()
        return [one for one in alike.get(likeness(kernel), ()) if one != kernel.id]


def oldest_by_code(verdicts: Iterable[EvaluationSummary]) -> dict[str, EvaluationSummary]:
    """Return the oldest verdict on each machine code. Verdicts on duplicates are skipped."""
    found: dict[str, EvaluationSummary] = {}
    for verdict in verdicts:
        if verdict.code and verdict.outcome is not Outcome.DUPLICATE:
            held = found.get(verdict.code)
            if held is None or verdict.created < held.created:
                found[verdict.code] = verdict
    return found


class Originals:
    """The oldest verdict on each machine code, computed on first use and then kept up to date.

    `verdicts` are the current verdicts by kernel; they belong to the caller.
    """

    def __init__(self, verdicts: Mapping[str, EvaluationSummary]) -> None:
        self._verdicts = verdicts
        self._by_code: dict[str, EvaluationSummary] | None = None

    def with_code(self, code: str) -> EvaluationSummary | None:
        if self._by_code is None:
            self._by_code = oldest_by_code(self._verdicts.values())
        return self._by_code.get(code)

    def credited(self, verdict: EvaluationSummary) -> EvaluationSummary | None:
        """Return the verdict.

        A duplicate gets the outcome and times of its original, or None if the original is unknown.
        """
        if verdict.outcome is not Outcome.DUPLICATE:
            return verdict
        original = self.with_code(verdict.code)
        return original and verdict._replace(
            outcome=original.outcome, workloads=original.workloads, times=original.times
        )

    def add(self, verdict: EvaluationSummary) -> bool:
        """Add a new verdict. Return False if it is older than the known verdict on the same machine code."""
        if self._by_code is None or not verdict.code or verdict.outcome is Outcome.DUPLICATE:
            return True
        return self._by_code.setdefault(verdict.code, verdict).created <= verdict.created

    def forget(self) -> None:
        """Compute the verdicts again the next time."""
        self._by_code = None


@lru_cache(maxsize=1_000)
def likeness(kernel: Kernel) -> str:
    """Return a hash that kernels share if they differ only in note, comments, blanks, names and unused knobs."""
    plan, source = kernel.plan, kernel.source
    entries = {name: f"entry {n}" for n, name in enumerate(dict.fromkeys(launch.entry for launch in plan.launches))}
    kept = frozenset({*plan.specialize, *(name for name, _ in (*plan.let, *plan.knobs))})
    return content_id([_plan(plan, _words(source), entries), _code(source, _types(plan), kept, tuple(entries.items()))])


# cached: the settings of one design share their source, and everything derived from it
@lru_cache(maxsize=1_000)
def _code(source: str, ours: frozenset[str], kept: frozenset[str], entries: Sequence[tuple[str, str]]) -> str:
    """Return a hash of the source without its names, except those of the plan."""
    tokens = _tokens(source)
    renamed = {**_renamed(tokens, ours, kept), **dict(entries)}
    return content_id([renamed.get(token, token) for token in tokens])


@lru_cache(maxsize=1_000)
def _words(source: str) -> frozenset[str]:
    return frozenset(_tokens(source))


def _plan(plan: Plan, words: frozenset[str], entries: Mapping[str, str]) -> list[object]:
    """Return the meaning of a plan, regardless of how it is written."""
    meant: list[object] = [
        plan.op,
        _plain(plan.when),
        sorted(plan.dtypes),
        sorted(plan.specialize),
        sorted(str(_plain(condition)) for condition in plan.require),
        [(name, _plain(value)) for name, value in plan.let],
        [(each.name, [*map(_plain, each.shape)], each.dtype, each.zero) for each in plan.workspace],
        repr(plan.tensor_maps),
        [_launch(launch, entries) for launch in plan.launches],
    ]
    words = words.union(re.findall(r"\w+", repr(meant)))
    knobs = sorted((name, values[0], sorted(values)) for name, values in plan.knobs if name in words)
    return [*meant, knobs]


def _launch(launch: Launch, entries: Mapping[str, str]) -> list[object]:
    sizes = [[*map(_plain, (*each, 1, 1)[:3])] for each in (launch.grid, launch.block)]
    args = [each if isinstance(each, tuple) else _plain(each) for each in launch.args]
    entry = entries.get(launch.entry, launch.entry)
    return [entry, launch.library, *sizes, _plain(launch.shared), args, launch.cooperative, launch.overlap]


@lru_cache(maxsize=10_000)
def _plain(expression: Expression) -> str:
    """Return an expression without superfluous blanks and brackets, or unchanged if it cannot be parsed."""
    try:
        return ast.unparse(ast.parse(str(expression).strip(), mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return str(expression)


@lru_cache(maxsize=100)
def _tokens(source: str) -> Sequence[str]:
    """Return the tokens of the source. GAP marks a blank that matters, and EDGE encloses each directive."""
    kept: list[str] = []
    blank = directive = False
    line_begins = True
    for match in TOKEN.finditer(SPLICE.sub("", source)):
        text, sign = match.group(), match.lastgroup == "sign"
        if text == "\n":
            kept += [EDGE] * directive
            line_begins, directive = True, False
        elif match.lastgroup not in ("space", "comment"):
            if sign and line_begins and text in HASHES:
                directive = True
                kept.append(EDGE)
            elif blank and (directive or (kept and PAIR.fullmatch(kept[-1] + text))):
                kept.append(GAP)
            kept.append(text)
            line_begins = blank = False
            continue
        blank = True
    return kept


def _renamed(tokens: Sequence[str], ours: frozenset[str], kept: frozenset[str]) -> dict[str, str]:
    """Return new names for the variables that the source declares, numbered by first appearance.

    Names that are called, are members or occur in the plan are kept, because they may have another meaning.
    `ours` are the types that the plan names.
    """
    words = set(tokens)
    types = {word for word in words if word in ours or TYPE.fullmatch(word)}
    names = {word for word in words if NAME.fullmatch(word)} - types
    declared: dict[str, str] = {}
    foreign = set(kept)
    after_type = False
    for earlier, before, token, after in zip(["", "", *tokens], ["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        if token in PASTES or (after_type and token in ours):
            return {}  # the preprocessor pastes names together, or a type and a variable have the same name
        if token not in AFTER_TYPES:
            if after_type and token in names:
                declared.setdefault(token, f"variable {len(declared)}")
            after_type = token in types
        if after == "(" or before in (".", "#") or earlier + before in ("->", "::") or after == ":":
            foreign.add(token)
    return {name: number for name, number in declared.items() if name not in foreign}


def _types(plan: Plan) -> frozenset[str]:
    """Return the names that the kernel's prelude gives to the types of its tensors."""
    args = [name for step in plan.launches for arg in step.args for name in (arg if isinstance(arg, tuple) else (arg,))]
    return frozenset(f"{name}_t" for name in (*args, *(each.name for each in plan.workspace)))

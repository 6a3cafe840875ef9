"""Kernels that are twins: told by their text before anything is compiled, by their code once it is."""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from archive.kernel import Kernel
from archive.plan import Expression, Launch, Plan
from archive.records import Evaluation, Outcome, content_id
from evolve.devices.source_text import HASHES, PASTES, SPLICE, TOKEN

# Signs that are one sign only where nothing stands between them.
PAIR = re.compile(r"([-+&|<>:#])\1|[-+*/%&|^<>=!]=|->")
TYPE = re.compile(
    r"void|bool|unsigned|signed|auto|half2?|__half2?|__nv_bfloat16|__nv_bfloat162"
    r"|(?:u?char|u?short|u?int|u?long|float|double)[1-4]?|(?:u?int(?:8|16|32|64)|size|uintptr)_t"
)
AFTER_TYPES = frozenset({"*", "&", "const", "volatile", "__restrict__"})
NAME = re.compile(r"[A-Za-z_]\w*")
GAP, EDGE = " ", "\n"  # told apart from other tokens, which are never blank


@lru_cache(maxsize=20_000)
def likeness(kernel: Kernel) -> str:
    """Equal where kernels differ only in the note, comments, blanks, names of variables and entries, unused knobs."""
    plan, tokens = kernel.plan, _tokens(kernel.source)
    entries = {name: f"entry {n}" for n, name in enumerate(dict.fromkeys(launch.entry for launch in plan.launches))}
    renamed = {**_renamed(tokens, plan), **entries}
    return content_id([_plan(plan, set(tokens), entries), [renamed.get(token, token) for token in tokens]])


def judged(verdicts: Iterable[Evaluation]) -> dict[str, Evaluation]:
    """Verdicts by the code they were given on, the oldest of each; a duplicate's own says nothing new."""
    found: dict[str, Evaluation] = {}
    for verdict in sorted(verdicts, key=lambda verdict: verdict.created):
        if verdict.traits and verdict.outcome is not Outcome.DUPLICATE:
            found.setdefault(verdict.traits.code, verdict)
    return found


def _plan(plan: Plan, words: set[str], entries: Mapping[str, str]) -> list[object]:
    """All that a plan means, however it is written."""
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


def _plain(expression: Expression) -> str:
    """Without superfluous blanks and brackets; as it stands where it cannot be read."""
    try:
        return ast.unparse(ast.parse(str(expression).strip(), mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return str(expression)


def _tokens(source: str) -> list[str]:
    """The source without comments and blanks, but where a blank parts two signs, or a directive begins or ends."""
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


def _renamed(tokens: list[str], plan: Plan) -> dict[str, str]:
    """New names for the variables that are declared here, numbered as they first appear.

    Only those that can mean nothing else: never called, no member of anything, and unknown to the plan.
    """
    ours = _types(plan)
    declared: dict[str, str] = {}
    foreign = {*plan.specialize, *(name for name, _ in (*plan.let, *plan.knobs))}
    after_type = False
    for earlier, before, token, after in zip(["", "", *tokens], ["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        if token in PASTES or (after_type and token in ours):
            return {}  # names are put together, or a type's name is a variable's too
        if token not in AFTER_TYPES:
            is_type = token in ours or TYPE.fullmatch(token) is not None
            if after_type and not is_type and NAME.fullmatch(token):
                declared.setdefault(token, f"variable {len(declared)}")
            after_type = is_type
        if after == "(" or before in (".", "#") or earlier + before in ("->", "::") or after == ":":
            foreign.add(token)
    return {name: said for name, said in declared.items() if name not in foreign}


def _types(plan: Plan) -> frozenset[str]:
    """The names that a kernel's prelude gives to the types of its tensors."""
    args = [name for step in plan.launches for arg in step.args for name in (arg if isinstance(arg, tuple) else (arg,))]
    return frozenset(f"{name}_t" for name in (*args, *(each.name for each in plan.workspace)))

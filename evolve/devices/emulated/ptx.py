"""Translation of a kernel's inline PTX into calls of the emulator's functions, for a few instructions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

KNOWN = (
    "mma.sync (m16n8k16 with .f16 or .bf16, m16n8k8 with .tf32, sums in .f32), wgmma.mma_async (k16 with .f16 or "
    ".bf16, tiles in shared memory, sums in .f32), ldmatrix, cp.async, cp.async.bulk (also .tensor; with an mbarrier "
    "or a bulk_group, without hints), mbarrier (init, arrive, expect_tx, try_wait.parity), in clusters mapa, "
    "barrier.cluster, ld and st.shared::cluster and st.async, and ex2.approx"
)
STATEMENT = re.compile(r"\b(?:asm|__asm__|__asm)\b(?:\s+(?:volatile|__volatile__))?\s*\(")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
OPERAND = re.compile(r'\s*"[=+&]*[a-z]"\s*(\(.*\))\s*', re.DOTALL)
PLACE = re.compile(r"%(\d+)")


@dataclass(frozen=True)
class EmulatedInstruction:
    """An instruction that the emulator has: its name, the function that executes it, and the number of its operands."""

    name: re.Pattern[str]
    function: str  # may refer to groups of the name's pattern
    operands: tuple[int, ...]


SHARED_WORD = r"(?:\.shared(?:::cta)?)\.b64"
RELEASE = r"(?:\.release\.(?:cta|cluster))?"
ACQUIRE = r"(?:\.acquire\.(?:cta|cluster))?"
SEVERAL = r"(?:\.v[24])?\.[bfsu]"
# Special registers; their names become those of instructions without operands besides the result.
RANKS = re.compile(r"mov\.u32\s+(%\d+)\s*,\s*%%(cluster_n?ctarank)")
INSTRUCTIONS = (
    EmulatedInstruction(
        re.compile(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32"), "mma<__nv_bfloat16>", (14,)
    ),
    EmulatedInstruction(
        re.compile(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32"), "mma<__half>", (14,)
    ),
    EmulatedInstruction(re.compile(r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32"), "mma_tf32", (14,)),
    EmulatedInstruction(
        re.compile(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])\.shared(?:::cta)?\.b16"), r"ldmatrix<\1>", (2, 3, 5)
    ),
    EmulatedInstruction(
        re.compile(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])\.trans\.shared(?:::cta)?\.b16"),
        r"ldmatrix_trans<\1>",
        (2, 3, 5),
    ),
    EmulatedInstruction(
        re.compile(r"cp\.async\.c[ag]\.shared(?:::cta|::cluster)?\.global(?:\.L2::(?:64|128|256)B)?"),
        "copy_async",
        (3, 4),
    ),
    EmulatedInstruction(re.compile(r"ex2\.approx\.f32"), "exp2_approx<false>", (2,)),
    EmulatedInstruction(re.compile(r"ex2\.approx\.ftz\.f32"), "exp2_approx<true>", (2,)),
    EmulatedInstruction(re.compile(r"cp\.async\.(?:commit_group|wait_all|wait_group)"), "waited", (0, 1)),
    EmulatedInstruction(re.compile(r"wgmma\.(?:fence|commit_group)\.sync\.aligned"), "waited", (0,)),
    EmulatedInstruction(re.compile(r"wgmma\.wait_group\.sync\.aligned"), "wait_for_products", (1,)),
    EmulatedInstruction(re.compile(r"fence\.proxy\.async(?:\.shared::cta|\.global)?"), "waited", (0,)),
    EmulatedInstruction(re.compile(r"fence\.mbarrier_init\.release\.cluster"), "waited", (0,)),
    EmulatedInstruction(re.compile(r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32"), "waited", (1,)),
    EmulatedInstruction(re.compile(rf"mbarrier\.(init|inval){SHARED_WORD}"), r"\1_barrier", (1, 2)),
    EmulatedInstruction(re.compile(rf"mbarrier\.arrive{RELEASE}{SHARED_WORD} _"), "arrive", (1, 2)),
    EmulatedInstruction(re.compile(rf"mbarrier\.arrive\.expect_tx{RELEASE}{SHARED_WORD} _"), "arrive_and_expect", (2,)),
    EmulatedInstruction(re.compile(rf"mbarrier\.expect_tx(?:\.relaxed\.cta)?{SHARED_WORD}"), "expect", (2,)),
    EmulatedInstruction(
        re.compile(r"cp\.async\.bulk\.shared::(?:cluster|cta)\.global\.mbarrier::complete_tx::bytes"), "bulk_in", (4,)
    ),
    EmulatedInstruction(re.compile(r"cp\.async\.bulk\.global\.shared::cta\.bulk_group"), "bulk_out", (3,)),
    EmulatedInstruction(
        re.compile(
            r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(?:cluster|cta)\.global(?:\.tile)?\.mbarrier::complete_tx::bytes"
        ),
        r"load_tile<\1>",
        (4, 5, 6, 7, 8),
    ),
    EmulatedInstruction(
        re.compile(r"cp\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group"),
        r"store_tile<\1>",
        (3, 4, 5, 6, 7),
    ),
    EmulatedInstruction(re.compile(r"cp\.async\.bulk\.commit_group"), "commit_group", (0,)),
    EmulatedInstruction(re.compile(r"cp\.async\.bulk\.wait_group(?:\.read)?"), "wait_group", (1,)),
    EmulatedInstruction(re.compile(r"prefetch\.tensormap"), "prefetched", (1,)),
    EmulatedInstruction(re.compile(r"fence\.acq_rel\.cluster"), "waited", (0,)),
    EmulatedInstruction(
        re.compile(r"barrier\.cluster\.arrive(?:\.release|\.relaxed)?(?:\.aligned)?"), "cluster_arrive", (0,)
    ),
    EmulatedInstruction(re.compile(r"barrier\.cluster\.wait(?:\.acquire)?(?:\.aligned)?"), "cluster_wait", (0,)),
    EmulatedInstruction(re.compile(r"cluster_ctarank"), "rank_in_cluster", (1,)),
    EmulatedInstruction(re.compile(r"cluster_nctarank"), "blocks_of_cluster", (1,)),
    EmulatedInstruction(re.compile(r"mapa\.shared::cluster\.u32"), "map_address", (3,)),
    EmulatedInstruction(
        re.compile(rf"st\.shared::cluster{SEVERAL}(8|16|32|64)"), r"store_in_cluster<\1 / 8>", (2, 3, 5)
    ),
    EmulatedInstruction(
        re.compile(rf"ld\.shared::cluster{SEVERAL}(8|16|32|64)"), r"load_in_cluster<\1 / 8>", (2, 3, 5)
    ),
    EmulatedInstruction(
        re.compile(rf"st\.async\.shared::cluster\.mbarrier::complete_tx::bytes{SEVERAL}(32|64)"),
        r"send_words<\1 / 8>",
        (3, 4, 6),
    ),
    EmulatedInstruction(re.compile(rf"mbarrier\.arrive{RELEASE}\.shared::cluster\.b64 _"), "arrive_in_cluster", (1, 2)),
)
# A whole statement, because the instruction has a predicate that says whether to add to the sums or to begin them.
OF_A_WARPGROUP = re.compile(
    r"\{?\s*\.reg\s+\.pred\s+(?P<add>\w+)\s*;\s*setp\.ne\.b32\s+(?P=add)\s*,\s*(?P<adds>%\d+)\s*,\s*0\s*;\s*"
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k16\.f32\.(?P<dtype>bf16|f16)\.(?P=dtype)\s*"
    r"\{(?P<sums>[^}]*)\}\s*,\s*(?:(?P<a>%\d+)|\{(?P<registers>[^}]*)\})\s*,\s*(?P<b>%\d+)\s*,\s*(?P=add)\s*,\s*1\s*,\s*1\s*,"
    r"\s*(?:(?P<a_across>[01])\s*,\s*)?(?P<b_across>[01])\s*;\s*\}?\s*"
)
# Whole statements, because they contain a predicate and a label: a loop until a phase ends, and a test whether it has
# ended.
UNTIL_A_PHASE_ENDS = re.compile(
    r"\{?\s*\.reg\s+\.pred\s+(?P<ended>\w+)\s*;\s*(?P<again>\w+)\s*:\s*mbarrier\.try_wait\.parity"
    rf"{ACQUIRE}"
    rf"{SHARED_WORD}\s+(?P=ended)\s*,\s*\[\s*(?P<at>%\d+)\s*\]\s*,\s*(?P<parity>%?\d+)\s*;\s*"
    r"(?:@!(?P=ended)\s+bra(?:\.uni)?\s+(?P=again)\s*;|@(?P=ended)\s+bra(?:\.uni)?\s+(?P<done>\w+)\s*;\s*"
    r"bra(?:\.uni)?\s+(?P=again)\s*;\s*(?P=done)\s*:)\s*\}?\s*"
)
WHETHER_A_PHASE_HAS_ENDED = re.compile(
    r"\{?\s*\.reg\s+\.pred\s+(?P<ended>\w+)\s*;\s*mbarrier\.(?:try|test)_wait\.parity"
    rf"{ACQUIRE}"
    rf"{SHARED_WORD}\s+(?P=ended)\s*,\s*\[\s*(?P<at>%\d+)\s*\]\s*,\s*(?P<parity>%?\d+)\s*;\s*"
    r"selp\.[bus]32\s+(?P<to>%\d+)\s*,\s*1\s*,\s*0\s*,\s*(?P=ended)\s*;\s*\}?\s*"
)
TYPES = {"bf16": "__nv_bfloat16", "f16": "__half"}


def translated(source: str, text: str) -> list[tuple[int, int, str]]:
    """Return the edits that replace the statements that consist of known instructions.

    `text` is the source as masked.
    """
    edits = []
    for match in STATEMENT.finditer(text):
        end = _closing(text, match.end())
        calls = _calls(source[match.end() : end], text[match.end() : end]) if end > 0 else None
        if calls is not None:
            lines = "\n" * source.count("\n", match.start(), end)
            edits.append((match.start(), end + 1, f"do {{ {calls} {lines}}} while (0)"))
    return edits


def _calls(source: str, text: str) -> str | None:
    """Return the calls for the brackets of an asm statement, or None if any instruction is unknown."""
    template, *parts = _split(source, text, ":")
    if LITERAL.sub("", template).strip():
        return None
    values: list[str] = []
    for part in parts[:2]:  # outputs and inputs; the list of clobbers does not matter here
        pieces = _split(part, _without_literals(part), ",") if part.strip() else []
        found = [OPERAND.fullmatch(piece) for piece in pieces]
        if not all(found):
            return None
        values += [one[1] for one in found if one]
    written = "".join(LITERAL.findall(template)).replace("\\n", "\n").replace("\\t", " ")
    if product := OF_A_WARPGROUP.fullmatch(written):
        return _product_of_a_warpgroup(product, values)
    if waiting := UNTIL_A_PHASE_ENDS.fullmatch(written):
        return _with_arguments("wait_for_phase", (waiting["at"], waiting["parity"]), values)
    if asked := WHETHER_A_PHASE_HAS_ENDED.fullmatch(written):
        return _with_arguments("phase_has_ended", (asked["to"], asked["at"], asked["parity"]), values)
    written = RANKS.sub(r"\2 \1", written)
    calls = [_call(one.strip(), values) for one in re.split(r"[;\n]", written) if one.strip()]
    return " ".join(call for call in calls if call) if calls and all(calls) else None


def _product_of_a_warpgroup(found: re.Match[str], values: list[str]) -> str | None:
    sums, rows = ([one.strip() for one in (found[name] or "").split(",")] for name in ("sums", "registers"))
    if 2 * len(sums) != int(found["n"]) or (found["a"] is None) != (found["a_across"] is None):
        return None
    across = ", ".join(("false", "true")[int(found[side])] for side in ("a_across", "b_across") if found[side])
    function = "multiply_tiles" if found["a"] else "multiply_registers"
    left = [found["a"]] if found["a"] else rows
    return _with_arguments(
        f"{function}<{TYPES[found['dtype']]}, {across}>", (*left, found["b"], found["adds"], *sums), values
    )


def _call(written: str, values: list[str]) -> str | None:
    name, _, rest = written.partition(" ")
    operands = [one.strip() for one in re.sub(r"[{}\[\]]", " ", rest).split(",") if one.strip()]
    if operands[:1] == ["_"]:  # the instruction's result is not needed
        name, operands = f"{name} _", operands[1:]
    for known in INSTRUCTIONS:
        found = known.name.fullmatch(name)
        if found is None or len(operands) not in known.operands:
            continue
        if call := _with_arguments(found.expand(known.function), operands, values):
            return call
    return None


def _with_arguments(function: str, operands: Sequence[str], values: list[str]) -> str | None:
    arguments = [_argument(one, values) for one in operands]
    return f"evolve::ptx::{function}({', '.join(one for one in arguments if one)});" if all(arguments) else None


def _argument(operand: str, values: list[str]) -> str | None:
    """Return an operand as C++: the expression that the statement binds to it, or a number."""
    if found := PLACE.fullmatch(operand):
        return values[int(found[1])] if int(found[1]) < len(values) else None
    return operand if operand.isdecimal() else None


def _closing(text: str, start: int) -> int:
    """Return the place of the closing bracket for the bracket just before `start`, or -1."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return -1


def _split(source: str, text: str, at: str) -> list[str]:
    """Return the parts of a source between separators outside brackets of the masked text."""
    parts, depth, begin = [], 0, 0
    for place, sign in enumerate(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(sign, 0)
        if sign == at and depth == 0:
            parts.append(source[begin:place])
            begin = place + 1
    return [*parts, source[begin:]]


def _without_literals(source: str) -> str:
    return LITERAL.sub(lambda found: " " * len(found[0]), source)

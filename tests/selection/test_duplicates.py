"""Duplicates: kernels that differ only in wording have the same likeness.

Kernels that compute something else never do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from records import failed, passed

from archive.kernel import Kernel, parse
from archive.library import shipped
from archive.records import Evaluation, Outcome, Traits
from archive.summaries import EvaluationSummary, KernelSummary, summary
from evolve.selection import duplicates
from evolve.selection.duplicates import Duplicates, Texts, likeness, oldest_by_code
from reference_ops import catalog

TEXT = """/*---
op = "softmax"
note = "one warp per row"
when = "cols <= 4096 and cols % 8 == 0"
specialize = ["cols", "per_lane"]

[knobs]
WARPS = [4, 2, 8]
SPARE = [1, 2]

[let]
per_lane = "cols // 32"

[workspace]
scratch = { shape = ["rows"], dtype = "float32" }

[[launch]]
entry = "rows_kernel"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "out", "scratch", "rows"]
---*/
#include <cuda_bf16.h>
#define TWICE(v) ((v) + (v))
struct Pair { float first; float second; };
__device__ float half_of(float value) { return value / 2; }
extern "C" __global__ void rows_kernel(const x_t* x, out_t* out, scratch_t* scratch, int rows) {
    // Each lane holds per_lane values.
    float most = -INFINITY; Pair pair;
    for (int i = 0; i < per_lane; i++) most = fmaxf(most, float(x[i * 32]));
    pair.first = most; pair.second = 2 - -most;
    out[threadIdx.x] = out_t(half_of(TWICE(pair.first)) + cols);
}
"""
KERNEL = parse(TEXT)


def altered(*changes: tuple[str, str]) -> Kernel:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text)


ALIKE = [
    [("one warp per row", "a warp takes a whole row")],
    [("    // Each lane holds per_lane values.\n", "")],
    [("float most = -INFINITY;", "float   most=-INFINITY /* the least */ ;\n\n")],
    [("int i = 0", "int\\\n i = 0")],
    [("most", "largest")],
    [("i = 0", "step = 0"), ("i < per", "step < per"), ("i++", "step++"), ("i * 32", "step * 32")],
    [("rows_kernel", "softmax_rows")],
    [("int rows)", "int number_of_rows)")],
    [("SPARE = [1, 2]", "SPARE = [2, 1, 3]")],
    [("SPARE = [1, 2]\n", "")],
    [('"32 * WARPS"', '"(32*WARPS)", 1')],
    [("cols <= 4096 and", "(cols<=4096)  and")],
    [('["cols", "per_lane"]', '["per_lane", "cols"]')],
]


@pytest.mark.parametrize(
    "changes",
    ALIKE,
    ids=lambda changes: changes[0][1][:24],
)
def test_kernels_that_differ_only_in_wording_are_alike(changes: list[tuple[str, str]]) -> None:
    other = altered(*changes)
    assert other.id != KERNEL.id
    assert likeness(other) == likeness(KERNEL)


@pytest.mark.parametrize(
    "changes",
    [
        [("cols <= 4096", "cols <= 8192")],
        [("WARPS = [4, 2, 8]", "WARPS = [2, 4, 8]")],
        [("WARPS = [4, 2, 8]", "WARPS = [4, 2]")],
        [('"cols // 32"', '"cols // 16"')],
        [('"32 * WARPS"', '"16 * WARPS"')],
        [('"x", "out", "scratch"', '"out", "x", "scratch"')],
        [('args = ["x"', 'shared = 64\nargs = ["x"')],
        [('dtype = "float32"', 'dtype = "float64"')],
        [('dtype = "float32"', 'dtype = "float32", zero = true')],
        [('note = "one', 'dtypes = ["float32"]\nnote = "one')],
        [("fmaxf", "fminf")],
        [("2 - -most", "2 --most")],
        [("pair.first = most", "pair.second = most"), ("pair.second = 2", "pair.first = 2")],
        [("float first; float second;", "float second; float first;")],
        [("TWICE(v)", "TWICE (v)")],
        [("<cuda_bf16.h>", "<cuda_fp16.h>")],
        [("float most", "double most")],
        [("+ cols)", "+ per_lane)")],
        [("x[i * 32]", "x[rows * 32]")],
    ],
    ids=lambda changes: changes[0][1][:24],
)
def test_kernels_that_differ_in_meaning_are_not_alike(changes: list[tuple[str, str]]) -> None:
    assert likeness(altered(*changes)) != likeness(KERNEL)


def pieces(body: str, top: str = "") -> str:
    """Return the likeness of a kernel that specialises n and m and has this code."""
    plan = (
        'op = "twice"\nspecialize = ["n", "m"]\n[[launch]]\nentry = "f"\ngrid = [1]\nblock = [32]\nargs = ["x", "out"]'
    )
    return likeness(
        parse(f'/*---\n{plan}\n---*/\n{top}\nextern "C" __global__ void f(const x_t* x, out_t* out) {{ {body} }}\n')
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # The same name is a variable in one place and belongs to CUDA or the plan in another.
        (
            "{ float max = 1; out[0] = max; } out[1] = max(2, 3);",
            "{ float min = 1; out[0] = min; } out[1] = min(2, 3);",
        ),
        ("{ int n = 1; out[0] = n; } out[1] = n;", "{ int m = 1; out[0] = m; } out[1] = m;"),
        ("float4 v; float x = v.x; out[0] = x;", "float4 v; float y = v.y; out[0] = y;"),
        ("float4* v; float x = v->x; out[0] = x;", "float4* v; float y = v->y; out[0] = y;"),
        ("int x_t = 2; out[0] = x_t * INFINITY;", "int x_t = 2; out[0] = x_t * NAN;"),
        ("int a = 1; out[0] = a++ + 1;", "int a = 1; out[0] = a + + +1;"),
    ],
)
def test_names_with_a_fixed_meaning_are_not_interchangeable(one: str, other: str) -> None:
    assert pieces(one) != pieces(other)


def test_names_are_not_normalised_where_tokens_are_pasted_together() -> None:
    top = "#define JOIN(a, b) a##b"
    assert pieces("int up1 = 1, down1 = 2; int up = 3; out[0] = JOIN(up, 1);", top) != pieces(
        "int up1 = 1, down1 = 2; int down = 3; out[0] = JOIN(down, 1);", top
    )


def test_the_shipped_kernels_and_their_settings_are_all_different() -> None:
    kernels = [kernel for op in catalog.names() for kernel in shipped(op)]
    kernels += [k.with_knobs({name: values[-1]}) for k in kernels for name, values in k.plan.knobs if len(values) > 1]
    assert len({likeness(kernel) for kernel in kernels}) == len({kernel.id for kernel in kernels})


def test_the_settings_of_one_design_share_the_work_on_their_source() -> None:
    settings = [altered(("WARPS = [4, 2, 8]", f"WARPS = [{warps}]")) for warps in (2, 4, 8)]
    likeness.cache_clear()
    duplicates._code.cache_clear()
    assert len(set(map(likeness, settings))) == len(settings)
    assert duplicates._code.cache_info().misses == 1


def test_kernels_that_are_alike_share_their_outline() -> None:
    for changes in ALIKE:
        assert altered(*changes).outline == KERNEL.outline, changes


def with_code(verdict: Evaluation, code: str) -> EvaluationSummary:
    return summary(replace(verdict, traits=Traits(code, 16, 16, 0, 32, 128, 1, False, False, 1.0)))


def test_the_oldest_verdict_on_a_code_counts_and_duplicates_do_not() -> None:
    first = with_code(passed("first"), "aa")
    again = with_code(failed("again", created=9.0), "aa")
    wrong = with_code(failed("wrong"), "bb")
    duplicate = with_code(failed("duplicate", Outcome.DUPLICATE, created=0.5), "aa")
    verdicts = [again, duplicate, wrong, first, summary(passed("never compiled"))]
    assert oldest_by_code(verdicts) == {"aa": first, "bb": wrong}


@dataclass(frozen=True)
class Judged:
    """Kernels with their verdicts."""

    kernels: tuple[tuple[Kernel, Evaluation], ...] = ()

    def with_text(self, kernel: Kernel) -> Evaluation | None:
        alike = [verdict for other, verdict in self.kernels if likeness(other) == likeness(kernel)]
        return next((verdict for verdict in alike if verdict.kernel_id != kernel.id), None)

    def with_code(self, code: str) -> EvaluationSummary | None:
        return oldest_by_code(summary(verdict) for _, verdict in self.kernels).get(code)


def test_only_kernels_whose_outline_occurs_again_are_read() -> None:
    reworded, other = altered(("most", "largest")), altered(("value / 2", "value * 2 + 1"))
    read: list[str] = []

    def texts(ids: Sequence[str]) -> list[Kernel]:
        read.extend(ids)
        return [kernel for kernel in (KERNEL, reworded, other) if kernel.id in ids]

    known = Texts(texts)
    for number, kernel in enumerate((KERNEL, other)):
        known.add(KernelSummary(number, kernel.id, kernel.op, kernel.family, kernel.outline))
    assert (known.like(KERNEL), read) == ([], [])
    known.add(KernelSummary(2, reworded.id, reworded.op, reworded.family, reworded.outline))
    assert known.like(KERNEL) == [reworded.id]
    assert known.like(reworded) == [KERNEL.id]
    assert read == [KERNEL.id, reworded.id]


def test_a_duplicate_by_text_is_named_with_the_outcome_of_the_kernel_that_it_repeats() -> None:
    duplicates = Duplicates(Judged(((KERNEL, failed(KERNEL.id)),)))
    log = duplicates.by_text(altered(("most", "largest")))
    assert KERNEL.id in log
    assert "wrong" in log
    assert duplicates.by_text(altered(("fmaxf", "fminf"))) == duplicates.by_text(KERNEL) == ""


def test_a_duplicate_by_code_is_named_whether_the_original_was_judged_or_proposed_in_the_same_batch() -> None:
    judged = replace(failed(KERNEL.id), traits=Traits("aa", 16, 16, 0, 32, 128, 1, False, False, 1.0))
    duplicates = Duplicates(Judged(((KERNEL, judged),)))
    assert duplicates.by_code("new", "aa").endswith(f"kernel {KERNEL.id}, whose verdict is: wrong")
    assert duplicates.by_code(KERNEL.id, "aa") == duplicates.by_code("first", "bb") == ""
    assert duplicates.by_code("second", "bb").endswith("kernel first, which was proposed at the same time")
    assert duplicates.by_code("first", "bb") == ""

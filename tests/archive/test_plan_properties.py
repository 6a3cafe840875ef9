"""Generated plans and invalid text: a printed plan parses to the same plan, and invalid text raises PlanError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive.characters import hidden
from archive.kernel import CLOSE, OPEN, parse, print_plan
from archive.plan import INT64_MAX, INT64_MIN, RESERVED, Launch, Plan, PlanError, TensorMap, Workspace

KERNEL = """\
/*---
op = "softmax"
note = "a block for each row"
when = "cols <= 4096"
dtypes = ["float32"]
specialize = ["cols"]

[knobs]
THREADS = [128, 64, 256]

[let]
half = "cols // 2"

[workspace]
sums = { shape = ["rows"], dtype = "float32", zero = true }

[[launch]]
entry = "softmax"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "out", ["x", "sums"], 3]
cooperative = true
---*/
extern "C" __global__ void softmax(const x_t* x, out_t* out) {}
"""
TOKENS = ["[", "]", "[[", "]]", "{", "}", "=", '"', '"""', "'", "\\", "#", ".", ",", "---*/", "/*---", "\n", "\r",
          "\t", "\0", "inf", "true", "1979-05-27", "0x", "9" * 30, "-1", "1e400", "[launch]", "[knobs]"]  # fmt: skip

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).filter(lambda name: name not in RESERVED)
knob_names = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)
texts = st.text(max_size=30).map(lambda text: "".join(char for char in text if not hidden(char)))
words = st.lists(texts, max_size=3).map(tuple)
expressions = st.integers(INT64_MIN, INT64_MAX) | texts
sizes = st.lists(expressions, min_size=1, max_size=3).map(tuple)
tensor_lists = st.lists(texts, min_size=1, max_size=3).map(tuple)
knob_values = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6, unique=True).map(
    lambda values: (values[0], *sorted(values[1:]))
)
launches = st.builds(
    Launch,
    entry=names,
    grid=sizes,
    block=sizes,
    args=st.lists(expressions | tensor_lists, max_size=5).map(tuple),
    shared=expressions,
    cooperative=st.booleans(),
    overlap=st.booleans(),
) | st.builds(
    Launch, entry=st.just(""), grid=st.just(()), block=st.just(()), args=words, library=texts.filter(bool)
)  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    knobs = draw(st.dictionaries(knob_names, knob_values, max_size=3))
    others = draw(st.lists(names.filter(lambda name: name not in knobs), max_size=5, unique=True))
    lets, workspaces, maps = others[:2], others[2:4], others[4:]
    return Plan(
        op=draw(texts),
        launches=draw(st.lists(launches, min_size=1, max_size=3).map(tuple)),
        note=draw(texts),
        when=draw(texts),
        dtypes=draw(words),
        specialize=draw(words),
        require=draw(words),
        knobs=tuple(knobs.items()),
        let=tuple((name, draw(expressions)) for name in lets),
        workspace=tuple(Workspace(name, draw(sizes), draw(texts), draw(st.booleans())) for name in workspaces),
        tensor_maps=tuple(TensorMap(name, draw(texts), draw(sizes), draw(sizes)) for name in maps),
    )


@st.composite
def damaged_kernels(draw: st.DrawFn) -> str:
    """Return the kernel above with a few pieces cut out, repeated or replaced by other text."""
    text = KERNEL
    for _ in range(draw(st.integers(1, 4))):
        begin, length = draw(st.integers(0, len(text))), draw(st.integers(0, 12))
        put = draw(st.sampled_from(["", text[begin : begin + length] * 2, *TOKENS]) | st.text(max_size=5))
        text = text[:begin] + put + text[begin + length :]
    return text


@given(plans().filter(lambda plan: "*/" not in print_plan(plan)))
def test_a_printed_plan_is_parsed_to_the_same_plan(plan: Plan) -> None:
    kernel = parse(f"{OPEN}\n{print_plan(plan)}{CLOSE}\nvoid f() {{}}\n")
    assert kernel.plan == plan
    assert parse(kernel.text).text == kernel.text


@given(damaged_kernels() | st.text() | st.text().map(lambda text: f"{OPEN}\n{text}\n{CLOSE}\n"))
def test_text_that_is_not_a_kernel_is_refused_with_one_of_its_lines(text: str) -> None:
    try:
        kernel = parse(text)
    except PlanError as error:
        assert 1 <= error.line <= text.count("\n") + 1  # noqa: PT017 - some texts are kernels
        str(error).encode()
    else:
        assert parse(kernel.text) == kernel


def test_the_unchanged_kernel_is_parsed() -> None:
    assert parse(KERNEL).plan.launches[0].cooperative
    with pytest.raises(PlanError):
        parse(KERNEL.replace("[[launch]]", "[[lunch]]"))

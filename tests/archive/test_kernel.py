from dataclasses import replace

import pytest

from archive.binding import Signature, parse_for
from archive.kernel import Kernel, parse
from archive.library import op_names, shipped
from archive.plan import PlanError

SIGNATURE = Signature("softmax", ("x", "out"), ("rows", "cols"), ("axis",), ("eps",), ("float32", "bfloat16"))
TEXT = """/*---
op = "softmax"
note = "one warp per row"
when = "cols <= 4096 and cols % 8 == 0"
dtypes = ["float32"]
specialize = ["cols", "per_lane"]
require = ["WARPS * per_lane <= 512"]

[knobs]
WARPS = [4, 2, 8]

[let]
per_lane = "cols // 32"

[workspace]
sums = { shape = ["rows", 2], dtype = "float32", zero = true }

[[launch]]
entry = "first"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
shared = "4 * WARPS"
args = ["x", "sums", "rows", "eps", 3, ["x", "out"]]

[[launch]]
entry = "second"
grid = ["rows", 1, 2]
block = [32]
args = ["out", "sums"]
cooperative = true
---*/
#include <cuda_bf16.h>
#if WARPS > 2
#endif
extern "C" __global__ void first() {}
"""


def kernel() -> Kernel:
    return parse_for(TEXT, SIGNATURE)


def changed(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new, 1)


def test_the_printed_form_parses_to_the_same_id() -> None:
    assert parse(kernel().text).id == kernel().id


def test_layout_and_comments_do_not_change_the_id() -> None:
    loose = changed('note = "one warp per row"', '# a comment\n\nnote   =  "one warp per row"').replace("\n", "\r\n")
    assert parse(loose).id == kernel().id


def test_a_different_source_has_a_different_id() -> None:
    assert parse(changed("first() {}", "first() { }")).id != kernel().id


def test_the_order_of_knobs_does_not_change_the_id_of_a_setting() -> None:
    direct = kernel().with_knobs({"WARPS": 2})
    roundabout = kernel().with_knobs({"WARPS": 8}).with_knobs({"WARPS": 2})
    assert direct.id == roundabout.id
    assert direct.plan.settings == {"WARPS": 2}


def test_setting_the_default_changes_nothing() -> None:
    assert kernel().with_knobs({"WARPS": 4}).id == kernel().id


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("note =", "nte =", 3, "unknown key `nte`"),
        ("WARPS = [4, 2, 8]", "warps = [4]", 10, "UPPERCASE"),
        ("WARPS = [4, 2, 8]", 'WARPS = [4]\nwhen = "rows > 1"', 11, "must come before"),
        ("WARPS = [4, 2, 8]", "WARPS = []", 10, "one or more integers"),
        ("WARPS = [4, 2, 8]", "WARPS = [4, 4]", 10, "different integers"),
        ('entry = "first"\n', "", 18, "`entry` is missing"),
        ("block = [32]", "block = [32, 1, 1, 1]", 28, "1 to 3 integers"),
        ("cooperative = true", "cooperative = 1", 30, "true or false"),
        ('op = "softmax"', 'op = "softmax', 2, "not valid TOML"),
        ("zero = true", "zeroed = true", 16, "unknown key `zeroed`"),
        ("per_lane =", "min =", 13, "cannot be a name"),
        ("sums = {", "WARPS = {", 16, "defined twice"),
        ("#if WARPS", "#if cols", 33, "not a knob"),
        ('note = "one warp per row"', 'note = "*/"', 1, "may not contain"),
    ],
)
def test_a_malformed_plan_is_refused_with_one_message_and_its_line(old: str, new: str, line: int, reason: str) -> None:
    with pytest.raises(PlanError, match=reason) as caught:
        parse(changed(old, new))
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("old", "new", "quoted", "reason"),
    [
        ('op = "softmax"', 'op = "gelu"', "op =", "for the op `gelu`"),
        ('when = "cols <= 4096', 'when = "columns <= 4096', "when =", "unknown name `columns`"),
        ('when = "cols <= 4096', 'when = "WARPS <= 4096', "when =", "unknown name `WARPS`"),
        ('dtypes = ["float32"]', 'dtypes = ["int8"]', "dtypes =", "not one of the op's dtypes"),
        ('"cols", "per_lane"', '"cols", "WARPS"', "specialize =", "cannot be specialised"),
        ("cols // 32", "cols / 32", "per_lane =", "not allowed"),
        ('"32 * WARPS"', '"32 * WRAPS"', "block =", "unknown name `WRAPS`"),
        ('args = ["x", "sums"', 'args = ["y", "sums"', "args =", "unknown argument `y`"),
        ('["x", "out"]]', '["x", "y"]]', "args =", "`y` is not a tensor"),
        ('dtype = "float32"', 'dtype = "float31"', "sums =", "neither a dtype"),
        ("sums = {", "out = {", "out =", "already a name of the op"),
        ("[knobs]\nWARPS", "[knobs]\nROWS = [1]\nWARPS", "", ""),
    ],
)
def test_a_plan_that_does_not_fit_its_op_is_refused_with_the_line_quoted(
    old: str, new: str, quoted: str, reason: str
) -> None:
    if not reason:
        parse_for(changed(old, new), SIGNATURE)
        return
    with pytest.raises(PlanError, match=reason) as caught:
        parse_for(changed(old, new), SIGNATURE)
    assert f"| {quoted}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__global__ void f() {}", "begins with its plan"),
        ("/*---\nop = 'softmax'", "never closed"),
        (TEXT[: TEXT.index("#include")], "no device code"),
        (TEXT + "\0", "control character U\\+0000"),
        ("/*---\n" + "[" * 10_000 + "\n---*/\nx", "nested|valid TOML"),
        ("/*---\n" + "# bomb\n" * 10_000 + "---*/\nx", "characters"),
        (TEXT + "x" * 300_000, "characters"),
    ],
)
def test_text_that_is_not_a_kernel_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        parse(text)


@pytest.mark.parametrize(
    ("old", "new", "asked"),
    [
        ('entry = "second"\ngrid = ["rows", 1, 2]\nblock = [32]', 'library = "matmul"', "library"),
        ("cooperative = true", "overlap = true", "overlap"),
    ],
)
def test_reserved_parts_are_parsed_and_named(old: str, new: str, asked: str) -> None:
    reserved = parse_for(changed(old, new), SIGNATURE)
    assert asked in reserved.plan.reserved
    assert parse(reserved.text).id == reserved.id


MAPPED = "[tensor_maps]\nm = { DESCRIBED }\n\n[[launch]]"


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ('tensor = "z", shape = [1], box = [1]', "`z` is not a tensor or workspace"),
        ('tensor = "x", shape = ["rows", "cols"], box = [1]', "`shape` has 2 sizes and `box` 1"),
        ('tensor = "x", shape = ["lines"], box = [1]', "unknown name `lines`"),
        ('tensor = "x", shape = [1], box = ["high"]', "unknown name `high`"),
        (
            'tensor = "x", shape = [1], box = [1], swizzle = 48',
            "a swizzle of 48 bytes is not possible: choose one of 0, 32, 64, 128",
        ),
        ('tensor = "x", shape = [1, 1, 1, 1, 1, 1], box = [1]', "`shape` must list 1 to 5 integers"),
        ('tensor = "x", box = [1]', "`shape` is missing in tensor_maps m"),
    ],
)
def test_a_malformed_tensor_map_is_refused_with_its_line(described: str, reason: str) -> None:
    text = TEXT.replace("[[launch]]", MAPPED.replace("DESCRIBED", described), 1)
    with pytest.raises(PlanError, match=reason) as caught:
        parse_for(text, SIGNATURE)
    assert "m = {" in str(caught.value) or "m = {" in text.split("\n")[caught.value.line - 1]


def test_a_tensor_map_is_an_argument_but_not_part_of_a_list() -> None:
    mapped = TEXT.replace("[[launch]]", MAPPED.replace("DESCRIBED", 'tensor = "x", shape = [1], box = [1]'), 1)
    kernel = parse_for(mapped.replace("args = [", 'args = ["m", ', 1), SIGNATURE)
    assert kernel.plan.launches[0].args[0] == "m"
    assert 'm = { tensor = "x", shape = [1], box = [1], swizzle = 0 }' in kernel.text
    with pytest.raises(PlanError, match="`m` is not a tensor or workspace"):
        parse_for(mapped.replace("args = [", 'args = [["m"], ', 1), SIGNATURE)


def test_text_before_the_plan_is_quoted_in_the_error() -> None:
    with pytest.raises(PlanError, match=r"`First some reasoning\.` comes before it"):
        parse(f"First some reasoning.\n{TEXT}")


def test_a_cpp_keyword_is_refused_as_a_name_in_let() -> None:
    with pytest.raises(PlanError, match="`short` is a keyword"):
        parse_for(TEXT.replace("per_lane", "short"), SIGNATURE)


HIDDEN = ["\x00", "\x08", "\x0c", "\r", "\x1b", "\x7f", "\x9b", "\u202a", "\u202e", "\u2066", "\u2069"]


@pytest.mark.parametrize("character", HIDDEN)
def test_a_source_with_a_hidden_character_is_refused_with_its_line(character: str) -> None:
    with pytest.raises(PlanError, match=rf"U\+{ord(character):04X}") as caught:
        parse(changed('extern "C"', f'/* {character} */ extern "C"'))
    assert caught.value.line == 35


@pytest.mark.parametrize("character", HIDDEN)
def test_an_escaped_hidden_character_in_a_plan_is_refused_like_a_literal_one(character: str) -> None:
    with pytest.raises(PlanError, match=rf"has an escape for .*U\+{ord(character):04X}") as caught:
        parse(changed("one warp", f"one \\u{ord(character):04x} warp"))
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('op = "softmax"', 'op = "soft\\u001bmax"'),
        ("WARPS = [4", '"W\\u001b" = [1]\nWARPS = [4'),
        ('"sums"', '"\\u009b"'),
    ],
)
def test_every_string_of_a_plan_is_checked_for_hidden_characters(old: str, new: str) -> None:
    with pytest.raises(PlanError, match="has an escape for the control character"):
        parse(changed(old, new))


def test_tabs_newlines_and_letters_of_all_languages_are_kept() -> None:
    assert parse(changed("one warp per row", "größer\\n\\t大")).plan.note == "größer\n\t大"


def test_a_kernel_text_from_an_old_archive_is_kept_unchanged() -> None:
    old = changed("first() {}", "first() {} // \x0c end")
    kernel = Kernel(old)
    assert kernel.text == old
    assert "\x0c" in kernel.source


def test_values_read_from_the_text_alone_equal_those_of_the_plan() -> None:
    for kernel in (kernel for op in op_names() for kernel in shipped(op)):
        unread, plan = Kernel(kernel.text), kernel.plan
        written = kernel.with_plan(replace(plan, knobs=tuple((name, tuple(sorted(own))) for name, own in plan.knobs)))
        assert (unread.op, unread.settings, unread.family) == (plan.op, plan.settings, written.id)
        assert not plan.note or unread.note == plan.note
        assert unread.has_code_of(written)
        assert "_parts" not in vars(unread), "the plan was read"


@pytest.mark.parametrize("note", ["", 'quotes " and \\', "שלום 你好 🎉", "two\nlines\tand\u007f", "\u202e"])
def test_any_note_is_read_from_the_text(note: str) -> None:
    kernel = parse(TEXT)
    assert Kernel(kernel.with_plan(replace(kernel.plan, note=note)).text).note == note


def test_other_code_is_recognised_in_the_text() -> None:
    assert not parse(TEXT).has_code_of(parse(TEXT + "__device__ int more;\n"))


def test_settings_of_one_kernel_share_a_family_and_other_code_does_not() -> None:
    kernel = parse(TEXT)
    assert kernel.with_knobs({"WARPS": 8}).family == kernel.family != parse(changed("first() {}", "last() {}")).family


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"first() {}": "renamed()   /* a; comment */ {\n}"}, True),
        ({"first() {}": "first() {} // one \\\n more"}, True),
        ({"first() {}": "first() { ; }"}, False),
    ],
)
def test_the_outline_leaves_out_names_comments_and_whitespace(changes: dict[str, str], same: bool) -> None:
    (pair,) = changes.items()
    assert (parse(changed(*pair)).outline == parse(TEXT).outline) is same

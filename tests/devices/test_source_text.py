import pytest

from evolve.devices.source_text import includes, masked, spliced_directive


@pytest.mark.parametrize(
    ("line", "header", "plain"),
    [
        ("#include <cuda_fp16.h>", "cuda_fp16.h", True),
        ('#include "cuda_bf16.h"', "cuda_bf16.h", True),
        ('  # include\t"a.h" // a comment', "a.h", True),
        ('%:include "a.h"', "a.h", True),
        ("#include_next <a.h>", "a.h", False),
        ('#embed "/etc/passwd"', "/etc/passwd", False),
        ("#include MACRO", "", True),
    ],
)
def test_what_a_line_includes_is_read(line: str, header: str, plain: bool) -> None:
    (found,) = includes(f"int before;\n{line}\nint after;\n")
    assert (found.header, found.plain) == (header, plain)


@pytest.mark.parametrize(
    "line", ['// #include "a.h"', '/*\n#include "a.h"\n*/', 'const char* s = "\\\n#include <a.h>";']
)
def test_comments_and_literals_include_nothing(line: str) -> None:
    assert list(includes(line)) == []


def test_masking_keeps_every_character_in_its_place() -> None:
    source = "int a; // x\nchar b = '\"'; const char* c = \"// no\";\n/* y\n */ int d = 1'000;\n"
    assert len(masked(source)) == len(source)
    assert masked(source).count("\n") == source.count("\n")
    assert "d = 1'000" in masked(source)
    assert "no" not in masked(source)


@pytest.mark.parametrize("text", ['#\\\ninclude "a.h"', '#inc\\\nlude "a.h"', '  # \\\n include "a.h"'])
def test_a_directive_whose_word_is_broken_over_two_lines_is_found(text: str) -> None:
    assert spliced_directive(text) == 0


@pytest.mark.parametrize("text", ["#define X \\\n    1\n", "#define F(a) \\\n    (a)\n"])
def test_a_macro_over_two_lines_is_no_fault(text: str) -> None:
    assert spliced_directive(text) is None


def test_a_header_on_the_next_line_is_still_seen() -> None:
    (found,) = includes('#include \\\n"/etc/passwd"')
    assert "/etc/passwd" in found.written

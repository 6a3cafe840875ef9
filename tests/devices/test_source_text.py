"""Source text read as tokens: includes, directives broken over two lines, and masking."""

import time

import pytest

from evolve.devices.source_text import TIME_MACROS, includes, masked, spliced_directive, word_beginning


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
def test_the_header_of_an_include_is_read(line: str, header: str, plain: bool) -> None:
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
def test_a_directive_whose_name_is_broken_over_two_lines_is_found(text: str) -> None:
    position = spliced_directive(f"int before;\n{text}")
    assert position is not None
    assert f"int before;\n{text}"[position] == "#"


@pytest.mark.parametrize("text", ["#define X \\\n    1\n", "#define F(a) \\\n    (a)\n"])
def test_a_macro_over_two_lines_is_accepted(text: str) -> None:
    assert spliced_directive(text) is None


def test_a_header_on_the_next_line_is_found() -> None:
    (found,) = includes('#include \\\n"/etc/passwd"')
    assert "/etc/passwd" in found.written


@pytest.mark.parametrize(
    "before",
    [
        'constexpr auto quote = L\'"\'; constexpr const char* open = "/*";',
        '#define NOT_R\nconstexpr const char* open = NOT_R"(";',
        '#define ODD 1\'"\' "/*"',
        "/\\\n* /*/",
        "/\\ \t\n* /*/",
        "/* /* */",
        'auto s = u8R"x(/*)x";',
        'auto s = "a\\"/*";',
        "int a = 0b1'0'1; // '\"",
        "int b = 1'000'000; auto c = '\"';",
        "#if 0\ndon't\n#endif",
    ],
)
def test_an_include_is_found_wherever_it_is(before: str) -> None:
    source = f'{before}\n#include "/etc/passwd"\nconst char* close = "*/)";\n'
    (found,) = [include for include in includes(source) if include.header]
    assert (found.header, source[found.start : found.end]) == ("/etc/passwd", '#include "/etc/passwd"')


@pytest.mark.parametrize(
    "line",
    [
        '#/*\n*/include "/etc/passwd"', '/**/ # /**/ include "/etc/passwd"', '#inc\\\nlude "/etc/passwd"',
        '#\\ \ninclude "/etc/passwd"', '%\\\n:include "/etc/passwd"', '\f#include "/etc/passwd"',
        '#include </etc//passwd>', '#include <../*/passwd>',
    ],
)  # fmt: skip
def test_an_include_is_found_in_every_spelling(line: str) -> None:
    (found,) = includes(f"int before;\n{line}\nint after;\n")
    assert found.header.endswith("passwd")


@pytest.mark.parametrize(
    "text",
    [
        '#if __has_include("/etc/passwd")', "#define ASK __has_include", '#if __has_\\\ninclude("/etc/passwd")',
        "#if __has_embed(<a>)", '#line 1 "/etc/passwd"', '# 1 "/etc/passwd"', '??=include "/etc/passwd"',
        "#define PASTED(a, b) a##b\n#if PASTED(__has_, include)(<a>)", '/??/\n* /*/\n#include "/etc/passwd"\n/* */',
        'auto s = R"(\n#include "/etc/passwd"\n)";', 'auto s = "a"R"(";', 'auto s = R"(never closed', "int a = 1'\"';",
        'auto s = R"(broken \\\n over lines)";', "#if 0\n'/*\n#endif", 'auto s = \u00e9R"(";', '#import "a.h"',
    ],
)  # fmt: skip
def test_ambiguous_text_or_a_query_of_the_disk_is_not_a_plain_include(text: str) -> None:
    assert [include for include in includes(text) if not include.plain]


@pytest.mark.parametrize(
    "text",
    [
        "#define PASTED(a, b) a##b\nint PASTED(x, 1);", "#define TEXT(x) #x", '#error "don\'t"', "#if 0\ndon't\n#endif",
        'asm volatile(R"(\n  membar.gl;\n)");', "int a = 1'000; char b = 'x';", "#pragma unroll", "// what?? and why",
        'printf("%d" "\\n", x ? 1:\'a\');', "#define F(a) \\\n  do { a; } \\\n  while (0)", "int include = 3;",
    ],
)  # fmt: skip
def test_ordinary_code_is_not_ambiguous(text: str) -> None:
    assert list(includes(text)) == []


def test_masking_joins_a_word_that_is_broken_over_two_lines() -> None:
    source = 'int a; // b\nas\\ \nm volatile("nop");\nint c;\n'
    text = masked(source)
    assert "asm" in text
    assert len(text) == len(source)
    assert text.count("\n") == source.count("\n")
    assert text.index("int c") == source.index("int c")


@pytest.mark.parametrize(
    "bomb", ['R"a(' * 40_000, "/*" * 90_000, "'" * 190_000, "\\\n" * 90_000, "#" * 190_000, '"\\' * 90_000]
)
def test_a_long_source_is_read_in_linear_time(bomb: str) -> None:
    start = time.perf_counter()
    list(includes(bomb))
    assert len(masked(bomb)) == len(bomb)
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("constexpr char month = __DATE__[0];", "__DATE__"),
        ("constexpr char hour = __TI\\\nME__[0];", "__TIME__"),
        ("#define WHEN __TIMESTAMP__\n", "__TIMESTAMP__"),
        ("#define J(a, b) a##b\nconstexpr char c = J(__TI, ME__)[0];", "__TIME__ joined by ##"),
        ("#define J(a, b, c) a##b##c\nconstexpr char c = J(__D, AT, E__)[0];", "__DATE__ joined by ##"),
    ],
)
def test_the_time_of_compilation_is_found_in_every_spelling(text: str, name: str) -> None:
    found = word_beginning(text, TIME_MACROS)
    assert found is not None
    assert found[1] == name


@pytest.mark.parametrize("text", ["// __DATE__\n", 'const char* s = "__TIME__";', "int __DATE = 1, DATE__ = 2;"])
def test_words_that_only_look_like_the_time_of_compilation_are_accepted(text: str) -> None:
    assert word_beginning(text, TIME_MACROS) is None


@pytest.mark.parametrize(
    "text",
    [
        "auto now = __builtin_ia32_rdtsc();",
        "auto now = __builtin_\\\nia32_rdtsc();",
        "#define J(a, b) a##b\nauto now = J(__builtin_ia, 32_rdtsc)();",
        "#define J(a, b, c) a##b##c\nauto now = J(__built, in_ia32_, rdtsc)();",
    ],
)
def test_words_with_a_refused_beginning_are_found_in_every_spelling(text: str) -> None:
    assert word_beginning(text, ("__builtin_ia32_",)) is not None


@pytest.mark.parametrize(
    "text", ["// __builtin_ia32_rdtsc", "#define J(a, b) a##b\nint J(row, 32_) = __builtin_expect(1, 1);"]
)
def test_words_with_another_beginning_are_accepted(text: str) -> None:
    assert word_beginning(text, ("__builtin_ia32_",)) is None

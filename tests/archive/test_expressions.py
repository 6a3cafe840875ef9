import pytest

from archive.expressions import FUNCTIONS, ExpressionError, Scope, boolean, check_boolean, check_integer, integer
from archive.plan import RESERVED

SCOPE = Scope({"rows": 10, "cols": 96, "zero": 0, "WARPS": 4}, {"x": 2})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rows + cols * 2", 202),
        ("cols // 32 % 2", 1),
        ("ceil_div(rows, WARPS)", 3),
        ("min(rows, cols, 7) - max(1, 2)", 5),
        ("-rows", -10),
        ("cols * itemsize(x)", 192),
        (12, 12),
    ],
)
def test_integer_expressions_are_evaluated(text: int | str, value: int) -> None:
    assert integer(text, SCOPE) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rows < cols <= 96", True),
        ("cols % 8 == 0 and not rows == 10", False),
        ("zero > 0 and rows % zero == 0", False),
        ("zero == 0 or rows // zero == 1", True),
        ("True", True),
    ],
)
def test_conditions_are_evaluated(text: str, value: bool) -> None:
    assert boolean(text, SCOPE) is value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rows / 2", "not allowed"),
        ("rows ** 9", "not allowed"),
        ("1.5", "not allowed"),
        ("True + 1", "not allowed"),
        ("x.shape", "not allowed"),
        ("__import__('os')", "not allowed"),
        ("[1][0]", "not allowed"),
        ("lambda: 1", "not allowed"),
        ("rows if cols else 1", "not allowed"),
        ("depth + 1", "unknown name `depth`"),
        ("itemsize(y)", "unknown name `y`"),
        ("ceil_div(1)", "takes two values"),
        ("rows +", "cannot read"),
        ("rows\nimport os", "cannot read"),
        ("1" * 500, "characters"),
        ("(" * 350, "cannot read"),
        ("99999999999999999999", "64 bits"),
    ],
)
def test_invalid_expressions_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason.replace("(", r"\(")):
        check_integer(text, SCOPE)


def test_a_check_includes_the_operand_that_and_would_skip() -> None:
    with pytest.raises(ExpressionError, match="unknown name `nothing`"):
        check_boolean("zero > 1 and nothing == 2", SCOPE)


def test_division_by_zero_is_reported_with_its_expression() -> None:
    with pytest.raises(ExpressionError, match="division by zero in `rows // zero`"):
        integer("rows // zero", SCOPE)


def test_a_value_beyond_64_bits_is_refused_at_the_step_that_produces_it() -> None:
    with pytest.raises(ExpressionError, match="does not fit in 64 bits"):
        integer("9223372036854775807 * rows - 9223372036854775807 * rows", SCOPE)


def test_a_check_accepts_an_expression_that_fails_only_for_some_values() -> None:
    check_integer("rows // zero", SCOPE)


@pytest.mark.parametrize("text", ["-" * 390 + "1", "1" + "+1" * 190, "not " * 90 + "1 < 2"])
def test_a_deep_expression_is_refused_before_anything_recurses(text: str) -> None:
    with pytest.raises(ExpressionError, match="more than 150 parts"):
        check_boolean(text, SCOPE)


@pytest.mark.parametrize(
    ("expression", "said"), [("rows > 1 && cols > 1", "write and, or, not"), ("x.dtype == 2", "`dtypes`")]
)
def test_syntax_of_other_languages_is_refused_with_the_syntax_to_use(expression: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said):
        check_boolean(expression, SCOPE)


def test_the_functions_of_expressions_are_reserved_names() -> None:
    assert FUNCTIONS.keys() <= RESERVED

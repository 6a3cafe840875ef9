"""Generated expressions: values within 64 bits equal Python's, and invalid text raises only ExpressionError."""

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from archive.expressions import ExpressionError, Scope, boolean, ceil_div, check_boolean, check_integer, integer
from archive.plan import INT64_MAX, INT64_MIN

VALUES = {"rows": 10, "cols": 96, "zero": 0, "large": INT64_MAX, "small": INT64_MIN, "WARPS": 4}
SCOPE = Scope(VALUES, {"x": 2, "y": 8})
PYTHON = {**VALUES, "x": 2, "y": 8, "itemsize": lambda size: size, "ceil_div": ceil_div}


@dataclass(frozen=True)
class Expression:
    """The text of an expression and all integer expressions in it, including itself if it is one."""

    text: str
    integers: tuple[str, ...]

    @property
    def defined(self) -> bool:
        """Whether the value of every integer expression in it fits in 64 bits."""
        try:
            return all(INT64_MIN <= in_python(text) <= INT64_MAX for text in self.integers)
        except ZeroDivisionError:
            return False


def in_python(text: str) -> int:
    return int(eval(text, {}, PYTHON))


def within(parts: Iterable[Expression]) -> tuple[str, ...]:
    return tuple(text for part in parts for text in part.integers)


def leaf(text: str) -> Expression:
    return Expression(text, (text,))


def inner(text: str, *parts: Expression) -> Expression:
    return Expression(text, (*within(parts), text))


def deeper(integers: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    operators = st.sampled_from(["+", "-", "*", "//", "%"])
    several = st.lists(integers, min_size=2, max_size=3)
    return (
        st.builds(lambda a, op, b: inner(f"({a.text} {op} {b.text})", a, b), integers, operators, integers)
        | st.builds(lambda a: inner(f"-({a.text})", a), integers)
        | st.builds(lambda a, b: inner(f"ceil_div({a.text}, {b.text})", a, b), integers, integers)
        | st.builds(
            lambda name, parts: inner(f"{name}({', '.join(part.text for part in parts)})", *parts),
            st.sampled_from(["min", "max"]),
            several,
        )
    )


leaves = st.sampled_from([*VALUES, "itemsize(x)", "itemsize(y)"]) | st.integers(0, 300).map(str)
integers = st.recursive(leaves.map(leaf), deeper, max_leaves=8)
comparisons = st.builds(
    lambda a, op, b: Expression(f"{a.text} {op} {b.text}", within((a, b))),
    integers,
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    integers,
)
conditions = st.recursive(
    comparisons,
    lambda some: (
        st.builds(lambda a: Expression(f"not ({a.text})", a.integers), some)
        | st.builds(
            lambda a, join, b: Expression(f"({a.text}) {join} ({b.text})", within((a, b))),
            some,
            st.sampled_from(["and", "or"]),
            some,
        )
    ),
    max_leaves=3,
)
short = 400  # the maximum length of an expression in characters
pieces = st.sampled_from(
    ["rows", "cols", "zero", "x", "itemsize(x)", "min(", "max(", "ceil_div(", "(", ")", "[", "]", "+", "-", "*", "//",
     "%", "/", "**", "<<", "<", "==", " and ", " or ", " not ", ",", ".", "1", "0x1f", "1_0", "1.5", "1e9", "9" * 20,
     "True", "None", "lambda:", " if ", " else ", "f'{rows}'", "\n", "\0", "\\", ":=", "#", "é", "\ud800"]
)  # fmt: skip


@given(integers.filter(lambda one: len(one.text) <= short))
def test_an_integer_equals_pythons_or_is_an_error_if_a_step_exceeds_64_bits(expression: Expression) -> None:
    try:
        found = integer(expression.text, SCOPE)
    except ExpressionError:
        assert not expression.defined
    else:
        assert found == in_python(expression.text)
        assert expression.defined


@given(conditions.filter(lambda one: len(one.text) <= short))
def test_a_condition_equals_pythons_or_is_an_error_if_a_step_exceeds_64_bits(expression: Expression) -> None:
    try:
        found = boolean(expression.text, SCOPE)
    except ExpressionError:
        assert not expression.defined
    else:
        assert found == bool(in_python(expression.text))


@given(st.lists(pieces, max_size=30).map("".join) | st.text(max_size=30))
def test_text_that_is_not_an_expression_is_refused_by_the_check(text: str) -> None:
    for check, evaluate in ((check_integer, integer), (check_boolean, boolean)):
        try:
            check(text, SCOPE)
        except ExpressionError:
            continue
        try:
            assert INT64_MIN <= evaluate(text, SCOPE) <= INT64_MAX
        except ExpressionError as error:
            assert "division by zero" in str(error) or "64 bits" in str(error)  # noqa: PT017 - some texts have values

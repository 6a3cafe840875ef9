"""Small stand-ins for modules that PyTorch imports while a task is traced.

A task is traced with sizes that are plain numbers. Its PyTorch functions would import PyTorch's compiler, sympy and
symbolic sizes, which takes seconds. Stand-ins therefore replace these modules while a task is loaded or traced.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

COMPILER, SYMBOLIC_SIZES = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"


class StandIn(ModuleType):
    """Stand-in for a module, which has the given attributes. Access to any other attribute imports the module."""

    def __init__(self, name: str, attributes: Mapping[str, object], *, is_package: bool) -> None:
        super().__init__(name)
        vars(self).update(attributes)
        self._is_package = is_package

    def __getattr__(self, name: str) -> Any:
        # tools read these attributes of every module
        if name.startswith("__") and not (name == "__path__" and self._is_package):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextlib.contextmanager
def light_imports() -> Iterator[None]:
    """Replace modules that have not been imported yet by the stand-ins."""
    stand_ins = [
        StandIn(COMPILER, {"disable": _not_disabled}, is_package=True),
        StandIn("sympy", {"Basic": _NoExpression}, is_package=True),
        StandIn(SYMBOLIC_SIZES, OF_NUMBERS, is_package=False),
    ]
    for stand_in in stand_ins:
        sys.modules.setdefault(stand_in.__name__, stand_in)
    try:
        yield
    finally:
        for stand_in in stand_ins:
            if sys.modules.get(stand_in.__name__) is stand_in:
                del sys.modules[stand_in.__name__]


def _not_disabled(function: object, *_args: object, **_options: object) -> object:
    return function


class _NoExpression:
    """Stand-in for the class of symbolic expressions. No size is an instance of it."""


def _number(value: Any) -> Any:
    return value


def _every(*conditions: Any) -> bool:
    return all(conditions)


def _any(*conditions: Any) -> bool:
    return any(conditions)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


def _no(_value: Any) -> bool:
    return False


def _yes(_value: Any) -> bool:
    return True


# Results of PyTorch's functions on symbolic sizes for numbers and truth values. Versions of PyTorch use different
# functions.
OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "expect_true": bool, "guard_bool": bool, "guard_or_false": bool, "guard_or_true": bool,
    "guard_size_oblivious": bool, "statically_known_true": bool, "definitely_true": bool,
    "guard_int": int, "hint_int": int, "guarding_hint_or_throw": _number, "guard_scalar": _number,
    "sym_eq": _equal, "sym_and": _every, "sym_or": _any,
    "has_hint": _yes, "has_guarding_hint": _yes, "is_concrete_int": _yes, "is_concrete_bool": _yes,
    "is_nested_int": _no, "is_symbolic": _no,
}  # fmt: skip

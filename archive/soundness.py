"""Checks of records. Archives may come from other machines, and they keep every record that they accept.

Every record that is read from a file must pass `check`; one from another archive must also pass `check_foreign`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from archive import kernel as genome
from archive.characters import described, hidden_in_name
from archive.kernel import Kernel
from archive.records import Check, Duel, Measurement, Standard

SHORTEST_US, LONGEST_US = 1e-6, 1e15
LAST_MOMENT = 253_402_300_800.0  # first second of the year 10000, which `datetime` cannot represent
DAY = 86_400.0  # largest difference between the clocks of two machines
EXCERPT = 60
TICK = 1 + 1e-9  # rounding may move a median past the end of its own interval

MOMENTS = ("created", "started", "ended")
# Text from models, compilers and servers, which may contain any characters; it is escaped wherever it is shown.
SPEECH = ("log", "reply", "failure", "report", "parameters", "messages", "skipped")

NAMES: dict[Any, str] = {str: "be text", bool: "be true or false", int | float: "be a number"}

Test = Callable[[Any], str]  # returns where a value is wrong and why; empty if it is valid


class UnsoundError(ValueError):
    """Raised when a record is not valid. The message names the field, what it must be, and what it is."""


def check(record: object) -> None:
    """Raise unless all fields have the declared types, numbers are finite and not negative, and times are plausible."""
    if said := _record(record):
        raise UnsoundError(said.removeprefix("."))


def check_foreign(record: object, now: float) -> None:
    """Raise for times in the future, which would override all later verdicts, and for names with hidden characters."""
    for name, value in _leaves(record, ""):
        if name in MOMENTS and isinstance(value, float | int) and value > now + DAY:
            raise UnsoundError(f"`{name}` is {(value - now) / DAY:.0f} days ahead of this machine's clock")
        if isinstance(value, str) and name not in SPEECH and (found := hidden_in_name(value)):
            raise UnsoundError(f"`{name}` has {described(found)}")
        if isinstance(value, Kernel):
            genome.parse(value.text)


def _leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    """Yield every plain value in a record, with the name of the field that holds it."""
    if isinstance(value, tuple):
        for one in value:
            yield from _leaves(one, name)
    elif is_dataclass(value) and not isinstance(value, Kernel):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), field.name)
    else:
        yield name, value


def _record(record: Any) -> str:
    for name, test in _tests(cast("Any", type(record))):
        if said := test(getattr(record, name)):
            return f".{name}{said}"
    return _times(record)


def _times(record: object) -> str:
    match record:
        case Measurement(median_us=median, low_us=low, high_us=high, eager_us=eager):
            return _time("median_us", median) or _time("eager_us", eager) or _within("median_us", low, median, high)
        case Duel(speedup=speedup, low=low, high=high):
            return _within("speedup", low, speedup, high) if speedup else ".speedup must be above 0"
        case Standard(eager_us=eager):
            return _time("eager_us", eager)
    return ""


def _time(name: str, microseconds: float) -> str:
    if SHORTEST_US <= microseconds <= LONGEST_US:
        return ""
    return f".{name} must be a time from {SHORTEST_US:g} to {LONGEST_US:g}, not {microseconds!r}"


def _within(name: str, low: float, value: float, high: float) -> str:
    if low <= value * TICK and value <= high * TICK:
        return ""
    return f".{name} must lie in its interval: {low!r} <= {value!r} <= {high!r} does not hold"


@cache
def _tests(kind: Any) -> tuple[tuple[str, Test], ...]:
    if kind is Kernel:  # the parser has checked the kernel
        return ()
    hints = get_type_hints(kind)
    return tuple((field.name, _test(hints[field.name], kind, field.name)) for field in fields(kind))


def _test(hint: Any, kind: object, name: str) -> Test:
    """Return the test for a field of a kind of record."""
    arguments = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        given = [one for one in arguments if one is not type(None)]
        # A union of types is the type of an op's parameter, which may be negative, true or false.
        return partial(_optional, _test(given[0], kind, name) if len(given) == 1 else partial(_instance, hint))
    if get_origin(hint) is tuple:
        tests = [_test(one, kind, name) for one in arguments if one is not Ellipsis]
        return partial(_sequence, tests[0]) if Ellipsis in arguments else partial(_row, tests)
    if is_dataclass(hint):
        return partial(_nested, cast("type", hint))
    if hint is float:
        return _any_number if kind is Check else _moment if name in MOMENTS else _number
    if hint is int:
        return _any_whole if name == "seed" else _whole
    return partial(_instance, cast("type", hint))


def _optional(test: Test, value: Any) -> str:
    return "" if value is None else test(value)


def _sequence(test: Test, value: Any) -> str:
    if type(value) is not tuple:
        return _must("be a list", value)
    return next((f"[{index}]{said}" for index, one in enumerate(value) if (said := test(one))), "")


def _row(tests: list[Test], value: Any) -> str:
    if type(value) is not tuple or len(value) != len(tests):
        return _must(f"be a list of {len(tests)}", value)
    return next((f"[{index}]{said}" for index, test in enumerate(tests) if (said := test(value[index]))), "")


def _nested(kind: type, value: Any) -> str:
    return _record(value) if isinstance(value, kind) else _must(f"be of type {kind.__name__}", value)


def _number(value: Any) -> str:
    good = type(value) in (float, int) and 0 <= value < math.inf
    return "" if good else _must("be a finite number, at least 0", value)


def _any_number(value: Any) -> str:
    """Return the fault of a value that is not a number.

    Infinity and NaN are accepted, for an output whose error is infinite or unknown.
    """
    return "" if type(value) in (float, int) else _must("be a number", value)


def _moment(value: Any) -> str:
    good = type(value) in (float, int) and 0 <= value < LAST_MOMENT
    return "" if good else _must("be a time in seconds since 1970", value)


def _whole(value: Any) -> str:
    return "" if type(value) is int and value >= 0 else _must("be a whole number, at least 0", value)


def _any_whole(value: Any) -> str:
    return "" if type(value) is int else _must("be a whole number", value)


def _instance(kind: type, value: Any) -> str:
    return "" if isinstance(value, kind) else _must(NAMES.get(kind, f"be of type {kind.__name__}"), value)


def _must(wanted: str, value: object) -> str:
    return f" must {wanted}, not {repr(value)[:EXCERPT]}"

"""Conversion of decoded JSON to records: dicts and lists become dataclasses, tuples and enums, as the fields declare.

The opposite direction needs no code here: `json.dumps(dataclasses.asdict(record))`.
"""

import types
from dataclasses import is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def record(kind: type[T], fields: dict[str, Any]) -> T:
    """Return a dataclass of this kind. An unknown field raises a TypeError; a missing one gets its default."""
    hints = _hints(cast("Any", kind))
    return kind(**{name: _value(hints.get(name), value) for name, value in fields.items()})


def _value(kind: Any, value: Any) -> Any:
    if value is None or kind is None:
        return value
    if get_origin(kind) in (Union, types.UnionType):
        return _value(next((one for one in get_args(kind) if _nested(one)), None), value)
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if kinds[-1] is Ellipsis:
            return tuple(_value(kinds[0], one) for one in value)
        return tuple(_value(one, each) for one, each in zip(kinds, value, strict=True))
    if is_dataclass(kind):
        return record(cast("type[Any]", kind), value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


def _nested(kind: Any) -> bool:
    """Return whether a value of this kind changes its type when it is stored as JSON."""
    return is_dataclass(kind) or get_origin(kind) is tuple or (isinstance(kind, type) and issubclass(kind, Enum))


@lru_cache(maxsize=100)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)

"""Arrays of other frameworks, such as CuPy and JAX, as arguments of functions: taken and returned without copies."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack


def foreign(value: Any) -> bool:
    """Return whether an argument is another framework's array."""
    # A variable that fx traces would claim every attribute; its type has only its own.
    return not isinstance(value, Tensor) and hasattr(type(value), "__dlpack__")


def called(function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Call a function of tensors with arrays, and return arrays of the first one's kind.

    Both sides wait for each other's current streams, as DLPack says.
    """
    back = arguments[0].__array_namespace__().from_dlpack
    given = [_mapped(value, foreign, from_dlpack) for value in arguments]
    named_too = {name: _mapped(value, foreign, from_dlpack) for name, value in named.items()}
    with torch.no_grad():
        found = function(*given, **named_too)
    return _mapped(found, lambda value: isinstance(value, Tensor), back)


def _mapped(value: Any, chosen: Callable[[Any], bool], function: Callable[[Any], Any]) -> Any:
    if chosen(value):
        return function(value)
    if not isinstance(value, tuple | list):
        return value
    made = getattr(type(value), "_make", type(value))  # a named tuple takes its values one by one
    return made([_mapped(one, chosen, function) for one in value])

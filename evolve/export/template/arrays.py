"""Arrays of other frameworks, such as CuPy and JAX, as arguments and results of the functions of a package."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack


def is_foreign(value: Any) -> bool:
    """Return whether an argument is another framework's array."""
    # A variable that fx traces has every attribute; its type has only the defined ones.
    return not isinstance(value, Tensor) and hasattr(type(value), "__dlpack__")


def called_with_arrays(function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Call a function with arrays of other frameworks, such as CuPy, and return arrays of the first argument's kind.

    Nothing is copied. Each framework waits for the other's current stream, as DLPack specifies.
    """
    back = arguments[0].__array_namespace__().from_dlpack
    given = [_mapped(value, is_foreign, from_dlpack) for value in arguments]
    named_too = {name: _mapped(value, is_foreign, from_dlpack) for name, value in named.items()}
    with torch.no_grad():
        found = function(*given, **named_too)
    return _mapped(found, lambda value: isinstance(value, Tensor), back)


def _mapped(value: Any, chosen: Callable[[Any], bool], function: Callable[[Any], Any]) -> Any:
    if chosen(value):
        return function(value)
    if not isinstance(value, tuple | list):
        return value
    # the constructor of a named tuple takes its values as separate arguments
    made = getattr(type(value), "_make", type(value))
    return made([_mapped(one, chosen, function) for one in value])

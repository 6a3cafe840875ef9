"""Marks a function of the user's program as an op. Imports nothing, so that the program pays nothing for it."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def op(*examples: Callable[[], Any], name: str = "") -> Callable[[F], F]:
    """`@evolve.op(lambda: (torch.randn(8, 4096),), ...)`: example inputs, each a function that makes them anew.

    The function stays what it is. `evolve run file.py:function` evolves kernels for it: dims that differ between the
    examples are symbolic, and the examples are the workloads. One of them should be small enough for a CPU.
    """

    for one in examples:
        if _wants_arguments(one):  # `@evolve.op` without parentheses would put `marked` in place of the function
            raise TypeError(
                f"`{getattr(one, '__name__', one)}` is no example, because it wants arguments; write "
                "`@evolve.op(lambda: (torch.randn(8, 4096),))` over a function, with what it is called with"
            )

    def marked(function: F) -> F:
        function.evolve_op = {"examples": examples, "name": name}  # type: ignore[attr-defined]
        return function

    return marked


def _wants_arguments(example: object) -> bool:
    code = getattr(example, "__code__", None)
    return code is not None and code.co_argcount > len(getattr(example, "__defaults__", None) or ())

"""How kernels are found: propose, evaluate, archive, select, export. `@evolve.op` marks a user's function as an op.

Importing this package does not load PyTorch.
"""

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["op"]

F = TypeVar("F", bound=Callable[..., Any])


def op(*examples: Callable[[], Any], name: str = "") -> Callable[[F], F]:
    """Mark a function as an op, with example inputs: `@evolve.op(lambda: (torch.randn(8, 4096),), ...)`.

    Each example is a function that creates new inputs. The marked function itself does not change.
    `evolve run file.py:function` evolves kernels for it. The examples are the workloads, and dims that differ between
    them are symbolic. With a single example, or several of the same shapes, every dim that can change is symbolic.
    """

    for example in examples:
        if _needs_arguments(example):  # not a function, or the marked function if `@evolve.op` has no parentheses
            raise TypeError(
                f"an example is a function without arguments, got `{getattr(example, '__name__', example)}`; write "
                "`@evolve.op(lambda: (torch.randn(8, 4096),))` above the function, with its inputs in the tuple"
            )

    def mark(function: F) -> F:
        function.evolve_op = {"examples": examples, "name": name}  # type: ignore[attr-defined]
        return function

    return mark


def _needs_arguments(example: object) -> bool:
    code = getattr(example, "__code__", None)
    return code is not None and code.co_argcount > len(getattr(example, "__defaults__", None) or ())

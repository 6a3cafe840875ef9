"""How kernels are found: propose, evaluate, archive, select, export."""

from evolve.op_decorator import op

__all__ = ["op"]

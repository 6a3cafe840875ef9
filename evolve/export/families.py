"""Families of functions with PyTorch's signatures: the modules of the template that define them, and their ops."""

from collections.abc import Collection
from types import ModuleType

from evolve.export.template import (
    functions_images,
    functions_loss,
    functions_matrix,
    functions_normalization,
    functions_pointwise,
    functions_recurrent,
    functions_rows,
)
from evolve.export.template.forms import Form

FAMILIES: tuple[ModuleType, ...] = (
    functions_images,
    functions_loss,
    functions_matrix,
    functions_normalization,
    functions_pointwise,
    functions_recurrent,
    functions_rows,
)


def forms() -> tuple[Form, ...]:
    """Return the forms of all families."""
    return tuple(form for family in FAMILIES for form in family.FORMS)


def of_ops(names: Collection[str]) -> dict[str, tuple[Form, ...]]:
    """Return the forms that may call one of these ops, grouped by the module that defines them."""
    found = {family.__name__: tuple(f for f in family.FORMS if set(f.ops) & set(names)) for family in FAMILIES}
    return {module: some for module, some in found.items() if some}

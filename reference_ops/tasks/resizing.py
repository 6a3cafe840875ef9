"""Examples of a function at other sizes than the user's: which sizes of its inputs can change, alone or together."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch

from reference_ops.tasks.calling import OnDevice, seeded
from reference_ops.tasks.smaller import At, Smaller, alike, fits, smaller, tracer
from reference_ops.tasks.tracing import Case, Traced, traced

MOST_STEPS = 20_000  # operations to trace while looking for sizes that change together
Place = tuple[str, int]  # an input and its axis, or a whole number among the arguments and -1


@dataclass(frozen=True)
class Resized:
    """The examples with their sizes by name, and the function at smaller and awkward sizes."""

    examples: list[Traced]
    small: Smaller
    at: At | None = None  # traces the function at any sizes that it accepts


def resized(examples: Sequence[Traced]) -> Resized:
    """Find other sizes of a function. With examples of several shapes, only what differs between them changes."""
    own = examples[0]
    names = _varied(examples) if len({_shapes(one) for one in examples}) > 1 else _changeable(own)
    known = [replace(one, case=_at(one, names, _sizes(one, names))) for one in examples]
    if not names:
        return Resized(known, Smaller(tuple(one for one in known if fits(one)), (), ()))
    found = smaller(lambda changed: _checked(_at(own, names, changed)), own, _sizes(own, names))
    small = [one for one in known if fits(one)] or [*found.emulated]
    if len({_shapes(one) for one in examples}) == 1:
        kinds = list({tuple(fact.dtype for fact in one.inputs.values()): one for one in examples}.values())
        again = (traced(_at(kind, names, dict(one.case.sizes))) for one in found.emulated for kind in kinds)
        small = list({(_shapes(one), _dtypes(one)): one for one in (*small, *again)}.values())

    at = tracer(lambda changed: _at(own, names, {**_sizes(own, names), **changed}), own)
    return Resized(known, Smaller(tuple(small), found.awkward, found.varied), at)


def _shapes(found: Traced) -> tuple[tuple[int, ...], ...]:
    return tuple(fact.shape for fact in found.inputs.values())


def _dtypes(found: Traced) -> tuple[torch.dtype, ...]:
    return tuple(fact.dtype for fact in found.inputs.values())


def _places(found: Traced) -> dict[Place, int]:
    """Return the sizes of all inputs, and the whole numbers that equal one of them, such as a number of columns."""
    axes = {
        (name, axis): size
        for name, fact in found.inputs.items()
        if name not in found.drawn_inside
        for axis, size in enumerate(fact.shape)
        if size > 1
    }
    numbers = {(name, -1): value for name, value in found.constants.items() if type(value) is int}
    return axes | {place: value for place, value in numbers.items() if value in axes.values()}


def _varied(examples: Sequence[Traced]) -> dict[Place, str]:
    """Return a name for each size that differs between the examples. Sizes that differ in the same way share it."""
    each = [_places(one) for one in examples]
    shared = [place for place in each[0] if all(place in places for places in each)]
    seen = {place: tuple(places[place] for places in each) for place in shared}
    return _named({place: values for place, values in seen.items() if len(set(values)) > 1})


def _changeable(own: Traced) -> dict[Place, str]:
    """Return a name for each size that can change. Sizes that can change only together share it."""
    places, left = _places(own), MOST_STEPS
    alone = dict(zip(places, map(str, range(len(places))), strict=True))

    def changes(*together: Place) -> bool:
        nonlocal left
        size = places[together[0]]
        for other in (size + 1, 2 * size):
            if left > 0:
                with contextlib.suppress(Exception):  # at invalid sizes a function may raise anything
                    found = traced(_at(own, alone, {alone[place]: other for place in together}))
                    left -= found.steps
                    if alike(found, own):
                        return True
        return False

    classes: dict[Place, tuple[Place, ...]]
    classes = {place: (place,) for place in places if place[1] >= 0 and changes(place)}
    for one, other in combinations(places, 2):
        if not {one, other} & classes.keys() and places[one] == places[other] and changes(one, other):
            classes |= {one: (one, other), other: (one, other)}
    for size in set(places.values()):
        rest = tuple(place for place in places if place not in classes and places[place] == size)
        if len(rest) > 2 and changes(*rest):
            classes |= dict.fromkeys(rest, rest)
    return _named({place: classes[place] for place in places if place in classes})


def _named(classes: Mapping[Place, object]) -> dict[Place, str]:
    """Return the name of each place: that of the first place in its class."""
    first: dict[object, str] = {}
    for (name, axis), kind in classes.items():
        first.setdefault(kind, name if axis < 0 else f"{name}_{axis}")
    return {place: first[kind] for place, kind in classes.items()}


def _sizes(found: Traced, names: Mapping[Place, str]) -> dict[str, int]:
    places = _places(found)
    return {name: places[place] for place, name in reversed([*names.items()])}


def _at(found: Traced, names: Mapping[Place, str], sizes: Mapping[str, int]) -> Case:
    """Return the example with these sizes, by name, instead of its own."""

    def inputs() -> list[Any]:
        given = zip(found.arguments, found.case.inputs(), strict=False)
        return [_changed(name, value) for (name, _), value in given]

    def _changed(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return sizes.get(names.get((name, -1), ""), value)
        shape = [sizes.get(names.get((name, axis), ""), size) for axis, size in enumerate(value.shape)]
        return _resized(value, shape, found.inputs[name].drawn)

    return Case(found.case.model, inputs, tuple(sizes.items()))


def _resized(value: torch.Tensor, shape: list[int], drawn: str) -> torch.Tensor:
    """Draw a tensor as the example does, or cut it off and repeat it."""
    if shape == [*value.shape]:
        return value
    if drawn and value.is_floating_point():
        return (torch.rand if drawn == "rand" else torch.randn)(shape, dtype=value.dtype)
    for axis, size in enumerate(shape):
        value = value.index_select(axis, torch.arange(size, device=value.device) % value.shape[axis])
    return value


def _checked(case: Case) -> Case:
    """Compute a small case: an index may be too large for a smaller table, and shapes do not show that."""
    found = traced(case)
    if fits(found) and not found.drawn_inside:
        with torch.no_grad(), OnDevice("cpu"), seeded("cpu"):
            found.call([value for value in case.inputs() if isinstance(value, torch.Tensor)], {})
    return case

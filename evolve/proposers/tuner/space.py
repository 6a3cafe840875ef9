"""The discrete space of one kernel's knobs: what is legal, and what is one program under several names."""

import itertools
import math
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from archive.binding import IllegalError, Point, accepts, bind
from archive.kernel import Kernel
from archive.plan import PlanError

Setting = tuple[int, ...]
MOST_BINDINGS = 4000  # settings times workloads that one look at a space may take
LEAST_SETTINGS = 200


@dataclass(frozen=True)
class Programs:
    """The distinct programs that the settings come to on one workload."""

    of: torch.Tensor  # the program of each setting, -1 where the workload is refused or the setting is not legal there
    places: torch.Tensor  # of each program: the middle of all its settings


@dataclass(frozen=True)
class Space:
    """The settings of one family that are legal on some workload; of equal ones only the first."""

    kernel: Kernel
    settings: tuple[Setting, ...]
    places: torch.Tensor  # of each setting: its knobs, each scaled to 0..1
    choices: tuple[bool, ...]  # by knob: whether its values are choices rather than sizes
    programs: tuple[Programs, ...]  # by workload
    names: torch.Tensor  # of each setting: how many settings there are, itself among them, that differ in nothing
    middles: torch.Tensor  # of each setting: the middle of the places of all these

    @cached_property
    def numbers(self) -> dict[Setting, int]:
        """Where each setting stands."""
        return {setting: number for number, setting in enumerate(self.settings)}

    def at(self, index: int) -> Kernel:
        """The kernel in the one form that a setting has."""
        return set_to(self.kernel, self.settings[index])


def set_to(kernel: Kernel, setting: Setting) -> Kernel:
    return kernel.with_knobs({name: value for (name, _), value in zip(kernel.plan.knobs, setting, strict=True)})


def axes_of(kernel: Kernel) -> tuple[Setting, ...]:
    """The values of each knob, in order."""
    return tuple(tuple(sorted(set(values))) for _, values in kernel.plan.knobs)


def setting_of(kernel: Kernel) -> Setting:
    return tuple(values[0] for _, values in kernel.plan.knobs)


def space_of(kernel: Kernel, points: Sequence[Point], tried: Iterable[Setting], near: Iterable[Setting] = ()) -> Space:
    """What there is to try, with all that was tried; where that is too much, what is near, and a sample."""
    axes = axes_of(kernel)
    most = max(LEAST_SETTINGS, MOST_BINDINGS // max(1, len(points)))
    base = set_to(kernel, tuple(axis[0] for axis in axes))
    places = tuple(_HashablePoint(point) for point in points)
    memory = _remembered(base, places)
    own = dict.fromkeys(tried)
    kept: dict[Setting, _Bindings] = {}
    names: dict[_Bindings, list[Setting]] = {}
    for setting in dict.fromkeys(itertools.chain(own, _listed(axes, tuple(near), most))):
        if setting not in memory:
            memory[setting] = _bindings(base, setting, places)
        bindings = memory[setting]
        if setting in own or (bindings not in names and any(binding is not None for binding in bindings)):
            kept[setting] = bindings
        names.setdefault(bindings, []).append(setting)
    scaled = _places(kept, axes)
    columns = zip(*kept.values(), strict=True) if kept else ()
    choices = tuple(axis[0] <= 0 for axis in axes)
    counts = torch.tensor([len(names[bindings]) for bindings in kept.values()], dtype=torch.float64)
    middles = _middles([names[bindings] for bindings in kept.values()], axes)
    programs = tuple(_programs(column, middles, counts) for column in columns)
    return Space(kernel, tuple(kept), scaled, choices, programs, counts, middles)


def _listed(axes: Sequence[Setting], near: Sequence[Setting], most: int) -> Iterator[Setting]:
    """Every combination; of too many the neighbours of some, and a sample that is always the same."""
    count = math.prod(map(len, axes))
    if count <= most:
        return itertools.product(*axes)
    around = itertools.chain.from_iterable(_neighbours(setting, axes) for setting in near)
    drawn = random.Random(0).sample(range(min(count, sys.maxsize)), most)
    return itertools.chain(around, (_numbered(number, axes) for number in drawn))


def _numbered(number: int, axes: Sequence[Setting]) -> Setting:
    values = []
    for axis in axes:
        number, place = divmod(number, len(axis))
        values.append(axis[place])
    return tuple(values)


def _neighbours(setting: Setting, axes: Sequence[Setting]) -> Iterator[Setting]:
    for index, axis in enumerate(axes):
        for value in axis:
            yield (*setting[:index], value, *setting[index + 1 :])


def _middles(groups: Sequence[Sequence[Setting]], axes: Sequence[Setting]) -> torch.Tensor:
    sizes = torch.tensor([len(group) for group in groups])
    places = _places(itertools.chain.from_iterable(groups), axes)
    sums = torch.zeros(len(groups), len(axes), dtype=torch.float64)
    return sums.index_add_(0, torch.arange(len(groups)).repeat_interleave(sizes), places) / sizes[:, None]


def _places(settings: Iterable[Setting], axes: Sequence[Setting]) -> torch.Tensor:
    return torch.tensor([_scaled(setting, axes) for setting in settings], dtype=torch.float64).reshape(-1, len(axes))


def _scaled(setting: Setting, axes: Sequence[Setting]) -> list[float]:
    """Sizes by their logarithm; where 0 or less is among them, by their order."""
    return [
        axis.index(value) / max(1, len(axis) - 1)
        if axis[0] <= 0 or len(axis) == 1
        else math.log(value / axis[0]) / math.log(axis[-1] / axis[0])
        for value, axis in zip(setting, axes, strict=True)
    ]


def _programs(bindings: Iterable["int | None"], middles: torch.Tensor, names: torch.Tensor) -> Programs:
    numbers: dict[int | None, int] = {None: -1}
    of = torch.tensor([numbers.setdefault(binding, len(numbers) - 1) for binding in bindings])
    bound = of >= 0
    count = len(numbers) - 1
    weighed = middles[bound] * names[bound, None]
    sums = torch.zeros(count, middles.shape[1], dtype=torch.float64).index_add_(0, of[bound], weighed)
    sizes = torch.bincount(of[bound], names[bound], minlength=count)[:, None]
    return Programs(of, sums / sizes)


_Bindings = tuple[int | None, ...]  # by workload: equal where neither the compiler nor the launch sees a difference


@dataclass(frozen=True)
class _HashablePoint:
    """A point that can be part of a key."""

    point: Point

    def __hash__(self) -> int:
        return hash((self.point.dtype, *self.point.dims.items(), *self.point.parameters.items()))


@lru_cache(maxsize=256)
def _remembered(_kernel: Kernel, _places: tuple[_HashablePoint, ...]) -> dict[Setting, _Bindings]:
    """Binding takes a while, and the same settings are looked at again and again."""
    return {}


def _bindings(kernel: Kernel, setting: Setting, places: tuple[_HashablePoint, ...]) -> _Bindings:
    one = set_to(kernel, setting)
    named = tuple(value for name, value in one.plan.settings.items() if _mentions(kernel.source, name))
    return tuple(_binding(one, place.point, named) for place in places)


def _binding(kernel: Kernel, point: Point, named: Setting) -> int | None:
    try:
        if not accepts(kernel, point):
            return None
        bound = bind(kernel, point)
    except (IllegalError, PlanError):
        return None
    return hash((bound.constants, bound.types, bound.workspace, bound.launches, named))


@lru_cache(maxsize=1024)
def _mentions(source: str, name: str) -> bool:
    """Whether the device code may depend on a knob; where it pastes words together, it may on any."""
    return "##" in source or re.search(rf"\b{re.escape(name)}\b", source) is not None

"""The space of a kernel's legal knob settings, and the settings that compile to the same program."""

import itertools
import math
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import torch

from archive.binding import IllegalError, Point, accepts, bind
from archive.kernel import Kernel
from archive.plan import PlanError

Setting = tuple[int, ...]
MAX_BINDINGS = 4000  # largest product of settings and workloads in one space
MIN_SETTINGS = 200


@dataclass(frozen=True)
class Programs:
    """The distinct programs that the settings compile to on one workload."""

    of: torch.Tensor  # program of each setting; -1 if the workload is refused or the setting is illegal
    coordinates: torch.Tensor  # centroid of each program's settings


@dataclass(frozen=True)
class Space:
    """The settings of a family that are legal on some workload, without those equivalent to an earlier one."""

    kernel: Kernel
    settings: tuple[Setting, ...]
    coordinates: torch.Tensor  # knob values of each setting, scaled to 0..1
    categorical: tuple[bool, ...]  # whether each knob's values are categories rather than sizes
    programs: tuple[Programs, ...]  # one per workload
    multiplicity: torch.Tensor  # number of settings equivalent to each setting, including itself
    centroids: torch.Tensor  # centroid of the settings equivalent to each setting

    @cached_property
    def index_of(self) -> dict[Setting, int]:
        """The index of each setting."""
        return {setting: index for index, setting in enumerate(self.settings)}

    def kernel_at(self, index: int) -> Kernel:
        """Return the kernel with this setting."""
        return with_setting(self.kernel, self.settings[index])


def with_setting(kernel: Kernel, setting: Setting) -> Kernel:
    """Return the kernel with these knob values, which are in the order of its plan."""
    return kernel.with_knobs({name: value for (name, _), value in zip(kernel.plan.knobs, setting, strict=True)})


def axes_of(kernel: Kernel) -> tuple[Setting, ...]:
    """Return the values of each knob, in ascending order."""
    return tuple(tuple(sorted(set(values))) for _, values in kernel.plan.knobs)


class HasSettings(Protocol):
    """A kernel, or a record of one."""

    @property
    def settings(self) -> Mapping[str, int]:
        """The value of each knob, in the order of the plan."""


def setting_of(kernel: HasSettings) -> Setting:
    """Return the kernel's knob values."""
    return tuple(kernel.settings.values())


def space_of(kernel: Kernel, points: Sequence[Point], tried: Iterable[Setting], near: Iterable[Setting] = ()) -> Space:
    """Return the space with all settings or, if there are too many, those tried, neighbours of `near`, and a sample."""
    axes = axes_of(kernel)
    most = max(MIN_SETTINGS, MAX_BINDINGS // max(1, len(points)))
    base = with_setting(kernel, tuple(axis[0] for axis in axes))
    at = tuple(_HashablePoint(point) for point in points)
    cache = _binding_cache(base, at)
    own = dict.fromkeys(tried)
    kept: dict[Setting, _Bindings] = {}
    equivalent: dict[_Bindings, list[Setting]] = {}
    for setting in dict.fromkeys(itertools.chain(own, _listed(axes, tuple(near), most))):
        if setting not in cache:
            cache[setting] = _bindings(base, setting, at)
        bindings = cache[setting]
        if setting in own or (bindings not in equivalent and any(binding is not None for binding in bindings)):
            kept[setting] = bindings
        equivalent.setdefault(bindings, []).append(setting)
    coordinates = _coordinates(kept, axes)
    columns = zip(*kept.values(), strict=True) if kept else ()
    categorical = tuple(axis[0] <= 0 for axis in axes)
    counts = torch.tensor([len(equivalent[bindings]) for bindings in kept.values()], dtype=torch.float64)
    centroids = _centroids([equivalent[bindings] for bindings in kept.values()], axes)
    programs = tuple(_programs(column, centroids, counts) for column in columns)
    return Space(kernel, tuple(kept), coordinates, categorical, programs, counts, centroids)


def _listed(axes: Sequence[Setting], near: Sequence[Setting], most: int) -> Iterator[Setting]:
    """Return all combinations or, if there are too many, the neighbours of `near` and a reproducible sample."""
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


def _centroids(groups: Sequence[Sequence[Setting]], axes: Sequence[Setting]) -> torch.Tensor:
    sizes = torch.tensor([len(group) for group in groups])
    coordinates = _coordinates(itertools.chain.from_iterable(groups), axes)
    sums = torch.zeros(len(groups), len(axes), dtype=torch.float64)
    return sums.index_add_(0, torch.arange(len(groups)).repeat_interleave(sizes), coordinates) / sizes[:, None]


def _coordinates(settings: Iterable[Setting], axes: Sequence[Setting]) -> torch.Tensor:
    return torch.tensor([_scaled(setting, axes) for setting in settings], dtype=torch.float64).reshape(-1, len(axes))


def _scaled(setting: Setting, axes: Sequence[Setting]) -> list[float]:
    """Scale sizes by their logarithm, and categories (knobs with a value of 0 or less) by their order."""
    return [
        axis.index(value) / max(1, len(axis) - 1)
        if axis[0] <= 0 or len(axis) == 1
        else math.log(value / axis[0]) / math.log(axis[-1] / axis[0])
        for value, axis in zip(setting, axes, strict=True)
    ]


def _programs(bindings: Iterable["int | None"], centroids: torch.Tensor, counts: torch.Tensor) -> Programs:
    numbers: dict[int | None, int] = {None: -1}
    of = torch.tensor([numbers.setdefault(binding, len(numbers) - 1) for binding in bindings])
    bound = of >= 0
    count = len(numbers) - 1
    weighted = centroids[bound] * counts[bound, None]
    sums = torch.zeros(count, centroids.shape[1], dtype=torch.float64).index_add_(0, of[bound], weighted)
    sizes = torch.bincount(of[bound], counts[bound], minlength=count)[:, None]
    return Programs(of, sums / sizes)


_Bindings = tuple[int | None, ...]  # one number per workload; equal if both the code and the launches are the same


@dataclass(frozen=True)
class _HashablePoint:
    """A point that can be part of a cache key."""

    point: Point

    def __hash__(self) -> int:
        return hash((self.point.dtype, *self.point.dims.items(), *self.point.parameters.items()))


@lru_cache(maxsize=256)
def _binding_cache(_kernel: Kernel, _at: tuple[_HashablePoint, ...]) -> dict[Setting, _Bindings]:
    """Return the cache of bindings. Binding is slow, and every request needs the same settings."""
    return {}


def _bindings(kernel: Kernel, setting: Setting, at: tuple[_HashablePoint, ...]) -> _Bindings:
    one = with_setting(kernel, setting)
    named = tuple(value for name, value in one.plan.settings.items() if _mentions(kernel.source, name))
    return tuple(_binding(one, hashable.point, named) for hashable in at)


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
    """Return whether the device code may depend on a knob. Code that pastes tokens may depend on any knob."""
    return "##" in source or re.search(rf"\b{re.escape(name)}\b", source) is not None

"""Options of the selection: which kernels may run. They apply to a block of code, or to the process as defaults."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch

PYTORCH = "pytorch"  # used in place of a kernel's id
NEAR = 3  # number of names that an error suggests
ops_of_package: set[str] = set()  # ops that options may name; filled in when the package is imported


@dataclass(frozen=True)
class Options:
    """Which kernels may run; the default allows all."""

    deterministic: bool | None = None  # None: as set by torch.use_deterministic_algorithms
    workspace_limit: int | None = None  # limit on the bytes of scratch memory
    allow: frozenset[str] | None = None  # ops that may use kernels; None for all
    pin: tuple[tuple[str, str], ...] = ()  # pairs of an op and the id of the only kernel to run, or PYTORCH
    autotune: bool = False  # whether the first call for new sizes times the kernels here

    @property
    def is_deterministic(self) -> bool:
        wanted = self.deterministic
        return torch.are_deterministic_algorithms_enabled() if wanted is None else wanted

    def pinned(self, op: str) -> str:
        return dict(self.pin).get(op, "")

    def refusal(self, op: str) -> str:
        """Return the reason why no kernel of an op may run; empty if one may."""
        if self.allow is not None and op not in self.allow:
            return f"the options allow no kernels of {op}"
        return f"the options pin {op} to PyTorch" if self.pinned(op) == PYTORCH else ""


# Each combination exists once, so that calls may compare by identity.
_known: dict[Options, Options] = {}
of_process = [_known.setdefault(Options(), Options())]
_of_block: ContextVar[Options | None] = ContextVar("options", default=None)
of_block = _of_block.get  # replaces the options of the process, unless it returns None


def current() -> Options:
    return of_block() or of_process[0]


@contextmanager
def options(
    *,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    allow: Collection[str] | None = None,
    pin: Mapping[str, str] | None = None,
    autotune: bool | None = None,
) -> Iterator[None]:
    """Choose which kernels may run in a block: `with options(deterministic=True): ...`.

    `workspace_limit` bounds a kernel's scratch memory in bytes. `allow` names the ops that may use kernels. `pin` gives
    the kernel's id for an op, or "pytorch". With `autotune`, the first call for new sizes times the kernels and PyTorch
    on this GPU, and the cache on disk stores the fastest. Options that are not given keep their values outside the
    block.
    """
    token = _of_block.set(_changed(deterministic, workspace_limit, allow, pin, autotune))
    try:
        yield
    finally:
        _of_block.reset(token)


def set_options(
    *,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    allow: Collection[str] | None = None,
    pin: Mapping[str, str] | None = None,
    autotune: bool | None = None,
) -> None:
    """Choose which kernels may run in this process, as `options` does for a block.

    Without arguments, all kernels may run again.
    """
    given = (deterministic, workspace_limit, allow, pin, autotune)
    found = Options() if all(value is None for value in given) else _changed(*given)
    of_process[0] = _known.setdefault(found, found)


def _changed(
    deterministic: bool | None,
    workspace_limit: int | None,
    allow: Collection[str] | None,
    pin: Mapping[str, str] | None,
    autotune: bool | None,
) -> Options:
    for name in ops_of_package and [*(allow or ()), *(pin or {})]:
        if name not in ops_of_package:
            raise ValueError(_unknown(name))
    if workspace_limit is not None and (type(workspace_limit) is not int or workspace_limit < 0):
        raise ValueError(f"workspace_limit must be a number of bytes, got {workspace_limit!r}")
    found = current()
    if deterministic is not None:
        found = replace(found, deterministic=deterministic)
    if workspace_limit is not None:
        found = replace(found, workspace_limit=workspace_limit)
    if allow is not None:
        found = replace(found, allow=frozenset(allow))
    if pin is not None:
        found = replace(found, pin=tuple(sorted({**dict(found.pin), **pin}.items())))
    if autotune is not None:
        found = replace(found, autotune=autotune)
    return _known.setdefault(found, found)


def _unknown(op: str) -> str:
    from difflib import get_close_matches  # imported only here, so that importing a package takes less time

    names = get_close_matches(op, ops_of_package, NEAR) or sorted(ops_of_package)[:NEAR]
    return f"the options name an op `{op}`, which this package does not have; it has, among others, {', '.join(names)}"

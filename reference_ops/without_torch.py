"""Loading of ops without PyTorch, for texts about them: importing PyTorch would take most of a short command's time.

An op's file names functions and types of PyTorch in its declarations, but uses them only in its reference.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

MODULES = ("torch", "torch.nn", "torch.nn.functional")  # the modules of PyTorch that files of ops import


class NotImportedError(Exception):
    """Raised when a file of ops uses PyTorch while it is loaded, so that it cannot be loaded without PyTorch."""


class _Named:
    """A function, type or value of PyTorch by its name. It can be part of an annotation, but cannot be used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Named":
        return _attribute(self._name, name)

    def __call__(self, *_arguments: object, **_named: object) -> object:
        raise NotImportedError(f"{self._name} is called while PyTorch is not imported")

    def __bool__(self) -> bool:
        raise NotImportedError(f"{self._name} is tested while PyTorch is not imported")

    def __eq__(self, _other: object) -> bool:
        raise NotImportedError(f"{self._name} is compared while PyTorch is not imported")

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, _other: object) -> "_Named":
        return self

    __ror__ = __or__


class _Module(ModuleType):
    def __getattr__(self, name: str) -> _Named:
        return _attribute(self.__name__, name)


def _attribute(owner: str, name: str) -> _Named:
    if name.startswith("__"):  # Python asks for these to find out what an object can do
        raise AttributeError(name)
    return _Named(f"{owner}.{name}")


@contextmanager
def without_torch() -> Iterator[None]:
    """Let ops be loaded without PyTorch, unless this process has imported it.

    Their functions can be read, but not called. Afterwards the modules that were imported here are forgotten, so that
    the next import of an op gets an op that can be called.
    """
    if "torch" in sys.modules:
        yield
        return
    before = set(sys.modules)
    sys.modules.update({name: _Module(name) for name in MODULES})
    try:
        yield
    finally:
        for name in MODULES:
            del sys.modules[name]
        for name in [one for one in sys.modules if one.startswith("reference_ops.") and one not in before]:
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if parent in sys.modules:
                delattr(sys.modules[parent], child)

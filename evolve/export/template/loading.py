"""The ops and primitives of a package, each created on first access: a program uses a few of hundreds."""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path, PurePosixPath

from evolve.export.template import manifest
from evolve.export.template.dispatch import Primitive, gradients_of
from evolve.export.template.launching import Gpus, Machine
from evolve.export.template.manifest import BrokenPackageError
from reference_ops.op import Op, ops_of


class Ops(Mapping[str, Op]):
    """Ops by name: those of the manifest, and other ops of their modules, such as a backward without a kernel."""

    def __init__(self, package: str, modules: Mapping[str, str]) -> None:
        self._package = package
        self._modules = modules  # the file of each op of the manifest, such as "ops/softmax.py"
        self._known: dict[str, Op] = {}
        self._waiting = list(dict.fromkeys(modules.values()))

    def __getitem__(self, name: str) -> Op:
        if name in self._modules and name not in self._known:
            self._load(self._modules[name])
        while name not in self._known and self._waiting:
            self._load(self._waiting[0])
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def _load(self, file: str) -> None:
        module = import_module(f"{self._package}.{PurePosixPath(file).with_suffix('').as_posix().replace('/', '.')}")
        for op in ops_of(module):
            self._known.setdefault(op.name, op)
        if file in self._waiting:
            self._waiting.remove(file)


class Primitives(Mapping[str, Primitive]):
    """The primitives of a package by name."""

    def __init__(self, package: str, folder: Path, digest: str, machine: Machine | None = None) -> None:
        try:
            content = (folder / manifest.FILE).read_bytes()
        except OSError as error:
            raise BrokenPackageError(f"{folder / manifest.FILE} is missing; install the package again") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise BrokenPackageError(
                f"{folder / manifest.FILE} was changed after the export; install the package again"
            )
        self._entries = manifest.entries(content.decode(), folder)
        self._folder = folder
        self.digest = digest
        self._machine = machine or Gpus(self._entries.cubins, folder, digest)
        self._ops = Ops(package, self._entries.modules)
        self.made: dict[str, Primitive] = {}
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> Primitive:
        if name not in self.made:
            with self._lock:
                if name not in self.made:
                    self.made[name] = self._primitive(name)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def _primitive(self, name: str) -> Primitive:
        primitive = Primitive(self._ops[name], self._entries[name], self._folder, self._machine)
        primitive.gradients = gradients_of(primitive.op, self._ops, self, self._machine)
        return primitive

"""Objects and cubins that processes of a test run have compiled, and ops that they have checked, shared by all of them.

Tests compile a few kernels hundreds of times, each time in a new folder and often in a new process. The first process
that compiles a text appends the result to a file, and the others take it from there. One file contains the results, and
the other one their places. The files have no names: a process opens them through the process that made them, before it
is confined and may write nowhere else. Compilations that failed are not stored.
"""

import fcntl
import hashlib
import json
import os
import pickle
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from evolve.devices.cuda import compiler as nvrtc
from evolve.devices.cuda import translation
from evolve.devices.emulated import compiler as host
from evolve.devices.prelude import cuda_include_dirs
from evolve.evaluation import evaluator
from reference_ops import catalog
from reference_ops.op import Op, Workload

PLACE = struct.Struct("=32s32sQQ")  # the key, a hash of the contents, where they begin, and their size
Finished = Callable[[list[str], Path], "subprocess.CompletedProcess[str]"]
Patch = Callable[[object, str, object], None]  # sets an attribute
OF_THE_RUN = "evolve_objects"  # key in the input that xdist's controller passes to its workers


class SharedObjects:
    """Compiled objects by key, in files to which processes append."""

    def __init__(self, places: int, contents: int) -> None:
        self._places, self._contents = places, contents  # descriptors
        self._known: dict[bytes, tuple[bytes, int, int]] = {}
        self._end = 0

    @property
    def address(self) -> str:
        """The names under which other processes can open the files while this process lives."""
        return json.dumps([f"/proc/{os.getpid()}/fd/{file}" for file in (self._places, self._contents)])

    def get(self, key: bytes) -> bytes | None:
        """Return the contents with this key, if a process has added them."""
        self._read_on()
        if key not in self._known:
            return None
        digest, start, size = self._known[key]
        found = os.pread(self._contents, size, start)
        return found if hashlib.sha256(found).digest() == digest else None

    def add(self, key: bytes, contents: bytes) -> None:
        """Append the contents.

        If the process is killed meanwhile, a part of the contents may remain in the file, but no key refers to it.
        """
        # another process is adding contents, or was stopped while adding
        with suppress(BlockingIOError), self._locked():
            start = os.fstat(self._contents).st_size
            os.pwrite(self._contents, contents, start)
            place = PLACE.pack(key, hashlib.sha256(contents).digest(), start, len(contents))
            os.pwrite(self._places, place, os.fstat(self._places).st_size // PLACE.size * PLACE.size)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._places, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            fcntl.lockf(self._places, fcntl.LOCK_UN)

    def _read_on(self) -> None:
        """Read the places that were added since the last call."""
        added = (os.fstat(self._places).st_size - self._end) // PLACE.size * PLACE.size
        for key, digest, start, size in PLACE.iter_unpack(os.pread(self._places, added, self._end)):
            self._known.setdefault(key, (digest, start, size))
        self._end += added


KEPT = pytest.StashKey[SharedObjects]()


def made() -> SharedObjects:
    """Return new files without names, which end with the last process that has opened them."""
    files = []
    for _ in range(2):
        file, name = tempfile.mkstemp(prefix="evolve-test-objects-")
        Path(name).unlink()
        files.append(file)
    return SharedObjects(*files)


def opened(address: str) -> SharedObjects:
    """Return the files at the address of another process."""
    places, contents = (os.open(name, os.O_RDWR | os.O_CLOEXEC) for name in json.loads(address))
    return SharedObjects(places, contents)


def of_the_run(config: pytest.Config) -> SharedObjects:
    """Return the files of a test run, which xdist's controller makes for all its workers."""
    if KEPT not in config.stash:
        given = getattr(config, "workerinput", {}).get(OF_THE_RUN)
        config.stash[KEPT] = opened(given) if given else made()
    return config.stash[KEPT]


def share(objects: SharedObjects, patch: Patch = setattr) -> None:
    """Let this process and its forks compile no text that another process has compiled."""
    compiled = nvrtc._nvrtc

    def found_or_finished(finished: Finished, command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
        target = Path(command[command.index("-o") + 1])
        key = _key(command, folder)
        if contents := objects.get(key):
            target.write_bytes(contents)
            return subprocess.CompletedProcess(command, 0, "", "")
        done = finished(command, folder)
        if done.returncode == 0:
            objects.add(key, target.read_bytes())
        return done

    def found_or_compiled(source: str, arch: str) -> nvrtc._Output:
        options = translation.options(arch, cuda_include_dirs())
        key = hashlib.sha256(repr([source, options]).encode()).digest()
        if contents := objects.get(key):
            return nvrtc._Output(*pickle.loads(contents))
        output = compiled(source, arch)
        objects.add(key, pickle.dumps((output.image, output.log, output.ptx)))
        return output

    for name in ("_finished", "_prepared"):  # the first compiles kernels, the second the runtime and the headers
        patch(host, name, partial(found_or_finished, getattr(host, name)))
    patch(nvrtc, "_nvrtc", found_or_compiled)


def assemble_plainly(patch: Patch = setattr) -> None:
    """Let NVRTC's assembler optimise nothing, which takes a third of the time of a compilation.

    The PTX, and what the assembler refuses, stay the same. It is for tests of verdicts, which are found in the PTX and
    by the host's compiler; registers, spills and instructions of the machine code are not those of a GPU.
    """
    options = translation.options

    def plain(arch: str, folders: Iterable[Path]) -> list[str]:
        return [*options(arch, folders), "--ptxas-options=-O0"]

    patch(translation, "options", plain)


def check_ops_once(objects: SharedObjects) -> None:
    """Let only one worker look for blind spots at a workload of the catalog, instead of each before timing."""
    refuse = evaluator._refuse_blind

    def refuse_once(op: Op, workload: Workload, torch_device: str) -> None:
        key = hashlib.sha256(repr(["no blind spots", op.name, workload.key, torch_device]).encode()).digest()
        known = catalog.loaded_as(op) == op.name  # not an op from a test's file
        if not known or objects.get(key) is None:
            refuse(op, workload, torch_device)
            objects.add(key, b"none")

    evaluator._refuse_blind = refuse_once


def _key(command: list[str], folder: Path) -> bytes:
    """Return a hash of the command and of the files in the folder that it names, without the folder's path."""
    found = hashlib.sha256(repr([word.replace(str(folder), "") for word in command]).encode())
    for word in command:
        if word.startswith(str(folder)) and Path(word).is_file():
            found.update(Path(word).read_bytes())
    return found.digest()

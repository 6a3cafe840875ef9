"""Objects that workers have compiled for the emulated device, shared by all workers of a test run.

Tests evaluate a few kernels hundreds of times, each time in a new folder and often in a new process. The first process
that compiles a text appends the object to a file, and the others take it from there. The file has no name, and it is
open before a worker is confined, which may then write nowhere else. Failed compilations are repeated.
"""

import hashlib
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from evolve.devices.emulated import compiler

HEADER = struct.Struct("=4s32s32sQ")  # a mark, the key, a hash of the contents, and their size
MARK = b"obj1"
Compile = Callable[[list[str], Path], "subprocess.CompletedProcess[str]"]


class SharedObjects:
    """A file of compiled objects, to which processes append."""

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix="evolve-test-objects-")
        os.close(descriptor)
        self._file = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        Path(name).unlink()
        self._end = 0
        self._places: dict[bytes, tuple[int, int, bytes]] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return the contents with this key, if a process has added them completely."""
        self._read_on()
        if key not in self._places:
            return None
        start, size, digest = self._places[key]
        found = os.pread(self._file, size, start)
        return found if hashlib.sha256(found).digest() == digest else None

    def add(self, key: bytes, contents: bytes) -> None:
        header = HEADER.pack(MARK, key, hashlib.sha256(contents).digest(), len(contents))
        os.write(self._file, header + contents)

    def _read_on(self) -> None:
        """Find the objects that were added since the last call.

        A process that was killed may have left a part of an object.
        """
        size = os.fstat(self._file).st_size
        while self._end + HEADER.size <= size:
            mark, key, digest, length = HEADER.unpack(os.pread(self._file, HEADER.size, self._end))
            if mark != MARK:
                return
            self._places.setdefault(key, (self._end + HEADER.size, length, digest))
            self._end += HEADER.size + length


def share() -> None:
    """Let this process and those that are forked from it compile each text for the emulated device once."""
    shared, compiled = SharedObjects(), compiler._finished

    def finished(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
        made = Path(command[command.index("-o") + 1])
        key = _key(command, folder)
        if contents := shared.get(key):
            made.write_bytes(contents)
            return subprocess.CompletedProcess(command, 0, "", "")
        done = compiled(command, folder)
        if done.returncode == 0:
            shared.add(key, made.read_bytes())
        return done

    compiler._finished = finished


def _key(command: list[str], folder: Path) -> bytes:
    """Return a hash of the command and of the files in the folder that it names, without the folder's path."""
    found = hashlib.sha256(repr([word.replace(str(folder), "") for word in command]).encode())
    for word in command:
        if word.startswith(str(folder)) and Path(word).is_file():
            found.update(Path(word).read_bytes())
    return found.digest()

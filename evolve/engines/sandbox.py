"""Sandbox of a worker: denies access to the network and most of the file system, and limits memory.

On the emulated device, a kernel is native code in the worker's own process. On a GPU, only compilers and PyTorch's
caches run native code there. Protections that the system does not offer are skipped; `gaps` lists them.
"""

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_BYTES = 2**30
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
CAPABILITIES_VERSION, CAP_DAC_OVERRIDE = 0x20080522, 1 << 1  # lets root continue to read the user's files
# system call numbers that are the same on every architecture
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_VERSION, LANDLOCK_PATH_BENEATH = 1, 1

# Landlock's rights on files, and the version that introduced them.
EXECUTE, WRITE, READ, LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_AND_REMOVE = 0x1FF0
REFER, TRUNCATE, IOCTL = 1 << 13, 1 << 14, 1 << 15
RIGHTS_SINCE = ((1, EXECUTE | WRITE | READ | LIST | MAKE_AND_REMOVE), (2, REFER), (3, TRUNCATE), (5, IOCTL))
ON_FILES = EXECUTE | WRITE | READ | TRUNCATE | IOCTL  # the other rights apply to folders only
READ_ONLY = EXECUTE | READ | LIST
BIND_AND_CONNECT_TCP, ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3  # rights since versions 4 and 6 of Landlock

# By machine: seccomp's architecture, the number of socket(), and the start of a second range of system call numbers.
SYSTEMS = {"x86_64": (0xC000003E, 41, 0x40000000), "aarch64": (0xC00000B7, 198, None)}
IO_URING_SETUP = 425  # this system call can create sockets without socket()
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # opcodes of a filter
ALLOW, FAIL = 0x7FFF0000, 0x00050000
AF_UNIX, AF_NETLINK = 1, 16
HARMLESS_DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True)
class Bounds:
    """The paths and sockets that a worker may still access."""

    writable: tuple[Path, ...]
    readable: tuple[Path, ...] = ()  # readable even in a hidden folder of the user's home
    memory_bytes: int | None = None  # limit on memory, in addition to what the process has already mapped
    gpu: bool = False  # allows devices, and local sockets for CUDA's daemons


def enter(bounds: Bounds) -> None:
    """Confine this process and all processes that it starts. This cannot be undone."""
    _limit_resources(bounds.memory_bytes)
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if not bounds.gpu:
        _drop_capabilities(libc)
    _restrict_files(libc, bounds)
    _forbid_sockets(libc, (AF_UNIX, AF_NETLINK) if bounds.gpu else ())


def gaps() -> list[str]:
    """Return a sentence for each protection that this system does not offer."""
    if sys.platform != "linux":
        return ["workers are not confined: this is possible on Linux only"]
    libc = ctypes.CDLL(None, use_errno=True)
    version, found = _landlock_version(libc), []
    if version < 1:
        found.append("workers can write wherever the user can: this kernel has no Landlock, or it is switched off")
    # A system that has filters refuses a filter at address 0 with one of these errors.
    libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, None, 0, 0)
    if ctypes.get_errno() not in (errno.EFAULT, errno.EACCES) or platform.machine() not in SYSTEMS:
        found.append("workers can reach the network: this system has no seccomp filters")
    if 1 <= version < 6:
        found.append("workers can signal other processes of the user: Landlock prevents this only since Linux 6.12")
    return found


def _limit_resources(memory_bytes: int | None) -> None:
    _lower(resource.RLIMIT_CORE, 1)  # a limit of 0 would still start a program that collects core dumps at every crash
    _lower(resource.RLIMIT_FSIZE, FILE_BYTES)
    if memory_bytes:
        try:
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        except OSError:
            mapped = 0
        _lower(resource.RLIMIT_AS, mapped + memory_bytes)


def _lower(limit: int, value: int) -> None:
    _, most = resource.getrlimit(limit)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (value, value))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Drop all capabilities but one: with them, root in a container could read other processes' keys."""
    header, held = struct.pack("=Ii", CAPABILITIES_VERSION, 0), ctypes.create_string_buffer(24)
    if libc.capget(header, held) == 0:
        effective, permitted, *_ = struct.unpack("=6I", held.raw)
        kept = struct.pack("=6I", effective & CAP_DAC_OVERRIDE, permitted & CAP_DAC_OVERRIDE, 0, 0, 0, 0)
        libc.capset(header, kept)


def _landlock_version(libc: ctypes.CDLL) -> int:
    version: int = libc.syscall(LANDLOCK_CREATE, None, 0, LANDLOCK_VERSION)
    return version


def _restrict_files(libc: ctypes.CDLL, bounds: Bounds) -> None:
    version = _landlock_version(libc)
    if version < 1:
        return
    handled = sum(rights for since, rights in RIGHTS_SINCE if version >= since)
    attributes = struct.pack(
        "=QQQ",
        handled,
        BIND_AND_CONNECT_TCP if version >= 4 else 0,
        ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0,
    )
    ruleset = libc.syscall(LANDLOCK_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:  # an older version of Landlock expects a smaller structure
        ruleset = libc.syscall(LANDLOCK_CREATE, attributes, 16 if version >= 4 else 8, 0)
    if ruleset < 0:
        return
    everything = [*bounds.writable, *(map(Path, ("/dev", "/proc")) if bounds.gpu else ())]
    for rights, paths in (
        (READ_ONLY, _readable(bounds)),
        (WRITE | READ | IOCTL, (Path("/dev") / name for name in HARMLESS_DEVICES)),
        (handled, everything),
    ):
        for path in paths:
            _allow(libc, ruleset, path, rights & handled)
    libc.syscall(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing file needs no rule
    rule = struct.pack("=Qi", rights if path.is_dir() else rights & ON_FILES, opened)
    libc.syscall(LANDLOCK_ADD, ruleset, LANDLOCK_PATH_BENEATH, rule, 0)
    os.close(opened)


def _readable(bounds: Bounds) -> Iterator[Path]:
    """Yield all paths except hidden files in the user's home, which may hold keys. Those for Python are included."""
    yield from _visible(Path("/"), Path.home().resolve())
    yield from bounds.readable
    yield from (Path(entry) for entry in (*sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix) if entry)
    for variable in ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"):
        yield from (Path(entry) for entry in os.environ.get(variable, "").split(os.pathsep) if entry.startswith("/"))


def _visible(folder: Path, home: Path) -> Iterator[Path]:
    """Yield the contents of a folder, except hidden entries of the home."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            continue  # the link's target has a separate rule
        if home.is_relative_to(entry):
            yield from _visible(entry, home)
        elif folder != home or not entry.name.startswith("."):
            yield entry


def _forbid_sockets(libc: ctypes.CDLL, families: Iterable[int]) -> None:
    """Make socket() fail except for these families. socketpair() and pipes still work: they reach no other program."""
    if platform.machine() not in SYSTEMS or sys.byteorder != "little":
        return
    architecture, socket, others_from = SYSTEMS[platform.machine()]
    refuse = (RETURN, 0, 0, FAIL | errno.EACCES)
    allow = (RETURN, 0, 0, ALLOW)
    program = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), refuse, (LOAD, 0, 0, 0)]
    if others_from is not None:
        program += [(AT_LEAST, 0, 1, others_from), refuse]
    program += [(EQUAL, 0, 1, IO_URING_SETUP), (RETURN, 0, 0, FAIL | errno.ENOSYS)]
    program += [(EQUAL, 1, 0, socket), allow, (LOAD, 0, 0, 16)]
    for family in families:
        program += [(EQUAL, 0, 1, family), allow]
    program.append(refuse)
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(instructions)))
    libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filters, 0, 0)

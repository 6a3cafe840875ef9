"""The host's C++ compiler: compiles a kernel to a shared library, and finds the variables to compare after calls."""

import atexit
import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from archive.kernel import Bound, Kernel, print_plan
from archive.records import Outcome
from evolve.devices import object_file, state
from evolve.devices.device import RejectedError
from evolve.devices.emulated.source import clusters, entries, translate
from evolve.devices.object_file import Symbol
from evolve.devices.prelude import cuda_include_dirs, specialisation
from evolve.devices.source_text import without_foreign_files
from evolve.errors import UserError

HERE = Path(__file__).parent
HEADER = "emulated.h"
ANCHOR = "evolve_launch"
GCC_MARK = b"gpch"  # first bytes of g++'s precompiled headers; other compilers do not use files with the suffix .gch
MAX_LOG_CHARACTERS, COMPILE_SECONDS, RUNTIME_SECONDS = 4000, 20, 180
FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=fast",
    "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-w",
)  # fmt: skip
# Clang deletes code before an out-of-range conversion, which is well defined on a GPU.
CLANG_FLAGS = ("-fno-strict-float-cast-overflow",)
LIBRARIES = ("-lm", "-lpthread")
# The C++ library is left out: kernels cannot use it, and its symbols would take a third of the linking time.
GCC_VERSION, GCC_LIBRARIES = "Free Software Foundation", ("-nodefaultlibs", *LIBRARIES, "-lc", "-lgcc")
# Messages of a compiler whose child process was killed.
KILLED = re.compile(r"(?:Killed|Terminated) signal terminated program|(?:ld|as) terminated with signal (?:9|15)\b")
ZEROED, FOR_THE_LINKER_ALONE = ".bss", ".data.rel.ro"
RUN_BY_THE_LOADER = (".init", ".fini", ".preinit_array", ".ctors", ".dtors")


@dataclass(frozen=True)
class Toolchain:
    """The compiler found on this machine, the folders of CUDA's headers, and the libraries to link."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    headers: tuple[Path, ...]
    libraries: tuple[str, ...] = LIBRARIES


def find_toolchain() -> Toolchain:
    """Return the toolchain. Raise a UserError that says what to install if a part of it is missing."""
    command = find_compiler()
    if command is None:
        raise UserError("the emulated device needs a C++ compiler", "install g++ or clang++, or `pip install ziglang`")
    headers = cuda_include_dirs()
    if not headers:
        raise UserError(
            "the emulated device needs CUDA's headers (cuda_fp16.h)",
            "`pip install 'cuda-toolkit[cudart,crt]==13.*'`, or set CUDA_HOME to an installed toolkit",
        )
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    flags = FLAGS + (CLANG_FLAGS if "clang" in version else ())
    return Toolchain(command, flags, headers, GCC_LIBRARIES if GCC_VERSION in version else LIBRARIES)


def find_compiler() -> tuple[str, ...] | None:
    """Return the command of the host's compiler, or None."""
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            return (path,)
    if importlib.util.find_spec("ziglang"):
        # `cc -x c++`, because `c++` would first build a C++ library, which is not needed.
        return (sys.executable, "-m", "ziglang", "cc", "-x", "c++")
    return None


def prepare() -> None:
    """Compile the runtime and the headers that nearly all kernels need, before processes are forked."""
    toolchain = find_toolchain()
    runtime_object(toolchain, cooperative=False)
    precompiled_header(_command(toolchain, cooperative=False, fp8=False))


@dataclass(frozen=True)
class Built:
    """A shared library, and the names of the variables that a call must leave unchanged."""

    library: Path
    variables: tuple[str, ...]


def build(bound: Bound, toolchain: Toolchain, folder: Path) -> Built:
    """Compile into `folder`, or raise a RejectedError with the compiler's messages."""
    kernel = bound.kernel
    first_line = print_plan(kernel.plan).count("\n") + 3
    source = translate(kernel.source, first_line)
    names = tuple(dict.fromkeys(launch.entry for launch in bound.launches))
    _check_entries(bound, entries(kernel.source))
    unit = folder / "kernel.cpp"
    fp8 = "fp8" in specialisation(bound) + kernel.source
    unit.write_text(
        f'#include "{HEADER}"\n#line 1 "prelude"\n{specialisation(bound)}'
        f'#line {first_line} "kernel.cu"\n{source}\n{_table(names, clusters(kernel.source))}'
    )
    together = clusters(kernel.source) or any(launch.cooperative for launch in bound.launches)
    library = folder / "kernel.so"
    runtime = folder / "runtime.o"
    runtime.write_bytes(runtime_object(toolchain, cooperative=bool(together)))
    command = _command(toolchain, cooperative=bool(together), fp8=fp8)
    if precompiled_header(command):
        (folder / f"{HEADER}.gch").symlink_to(_header_file(command, os.getpid()))
    kernel_object = folder / "kernel.o"
    _compile([*command, "-c", str(unit), "-o", str(kernel_object)], folder, kernel)
    check_runs_only_when_launched(kernel_object.read_bytes())
    variables = lasting_variables(kernel_object.read_bytes(), bound.kernel.source)
    # `-x none`, because the compiler's command may make it read every file as C++.
    linked = ["-x", "none", str(kernel_object), str(runtime), "-shared", "-o", str(library), *toolchain.libraries]
    _compile([*toolchain.command, *toolchain.flags, *linked], folder, kernel)
    return Built(library, variables)


def _compile(command: list[str], folder: Path, kernel: Kernel) -> None:
    done = _finished(command, folder)
    # the compiler was killed by a user or by a system short of memory: try once more
    if done.returncode < 0 or KILLED.search(done.stderr):
        done = _finished(command, folder)
    if done.returncode != 0:
        raise _failure(done.stderr, folder, kernel)


def _finished(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS, cwd=folder, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RejectedError(Outcome.COMPILE_ERROR, f"compiling took more than {COMPILE_SECONDS} s") from error


def _check_entries(bound: Bound, found: tuple[str, ...]) -> None:
    if re.search(r"#[ \t]*define\b[^\n]*__global__", bound.kernel.source):
        return  # entries that a macro defines cannot be found in the text
    for launch in bound.launches:
        if launch.entry not in found:
            raise RejectedError(Outcome.MALFORMED, _no_entry(launch.index, launch.entry, found))


def _no_entry(index: int, entry: str, found: tuple[str, ...]) -> str:
    return (
        f'launch {index}: the source has no extern "C" __global__ function `{entry}` '
        f"(found: {', '.join(found) or 'none'})"
    )


def _table(names: tuple[str, ...], clustered: Mapping[str, str]) -> str:
    """Return C++ for the table of entries.

    Each entry is redeclared with C linkage under a `#line` with its name, so that the compiler's error names an entry
    that lacks C linkage.
    """
    checks = "\n".join(f'#line 1 "entry {name}"\nextern "C" decltype({name}) {name};' for name in names)
    rows = ", ".join(f"EVOLVE_ENTRY({name}{f', {dims}' if (dims := clustered.get(name)) else ''})" for name in names)
    table = f'extern "C" EVOLVE_EXPORT const evolve::Entry evolve_entries[] = {{ {rows} }};' if names else ""
    return f'{checks}\n#line 1 "entries"\n{table}\n'


def _failure(stderr: str, folder: Path, kernel: Kernel) -> RejectedError:
    ours = ("kernel.cu", "prelude", "entries", *(f"entry {launch.entry}" for launch in kernel.plan.launches))
    log = without_foreign_files(stderr, ours, (folder, HERE / "include", HERE / "runtime", *cuda_include_dirs()))
    log = log.replace(f"{folder}/", "").replace(f"{HERE / 'include'}/", "")
    log = re.sub(r"/\S*/(?=[\w.]+\.h)", "", log)
    errors = re.findall(r"^(kernel\.cu|prelude|entry (\w+)|[\w.]+):.*error: ", log, flags=re.MULTILINE)
    misfits = [entry for place, entry in errors if place.startswith("entry ")]
    if misfits and len(misfits) == len([place for place, _ in errors if place != "entries"]):
        others = tuple(name for name in entries(kernel.source) if name not in misfits)
        index = next(i for i, launch in enumerate(kernel.plan.launches) if launch.entry == misfits[0])
        return RejectedError(
            Outcome.MALFORMED, _no_entry(index, misfits[0], (*others, f'{misfits[0]} without extern "C"'))
        )
    log = re.sub(r"^(?:In file included from|\s+from) .*\n", "", log, flags=re.MULTILINE).strip()
    if len(log) > MAX_LOG_CHARACTERS:
        log = log[:MAX_LOG_CHARACTERS] + "\n..."
    return RejectedError(Outcome.COMPILE_ERROR, log)


def _command(toolchain: Toolchain, *, cooperative: bool, fp8: bool) -> tuple[str, ...]:
    """Return the command that compiles device code, without the name of the file."""
    includes = [argument for path in (HERE / "include", *toolchain.headers) for argument in ("-I", str(path))]
    types = ("-DEVOLVE_FP8",) if fp8 else ()
    return (*toolchain.command, *toolchain.flags, *_native(), *_mode(cooperative), *types, "-nostdinc", *includes)


def _native() -> tuple[str, ...]:
    """Return the option that enables fused multiply-add, as on GPUs."""
    machine = platform.machine().lower()
    return ("-mcpu=native",) if machine in {"aarch64", "arm64"} else ("-march=native",) if machine == "x86_64" else ()


def _mode(cooperative: bool) -> tuple[str, ...]:
    return ("-DEVOLVE_COOPERATIVE",) if cooperative else ()


@lru_cache(maxsize=4)
def precompiled_header(compile_command: tuple[str, ...]) -> bytes:
    """Return the headers precompiled by g++; empty for other compilers, which then only compile more slowly.

    Like the runtime, the headers are compiled once per process and kept in memory. This takes longer than compiling
    most kernels.
    """
    with tempfile.TemporaryDirectory(prefix="evolve-header-") as folder:
        target = Path(folder) / f"{HEADER}.gch"
        command = [*compile_command, "-x", "c++-header", str(HERE / "include" / HEADER), "-o", str(target)]
        try:
            done = _prepared(command, Path(folder))
        except subprocess.TimeoutExpired:
            return b""
        header = target.read_bytes() if done.returncode == 0 and target.is_file() else b""
        return header if header.startswith(GCC_MARK) else b""


@lru_cache(maxsize=4)
def _header_file(compile_command: tuple[str, ...], process: int) -> Path:  # noqa: ARG001 - a fork writes its own file
    """Return a file with the precompiled headers, which is removed when this process ends.

    A killed worker leaves it in the worker's folder, which the engine removes.
    """
    folder = Path(tempfile.mkdtemp(prefix="evolve-header-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / f"{HEADER}.gch").write_bytes(precompiled_header(compile_command))
    return folder / f"{HEADER}.gch"


@lru_cache(maxsize=4)
def runtime_object(toolchain: Toolchain, *, cooperative: bool) -> bytes:
    """Return the runtime, compiled once per process. It is kept in memory, so a killed worker leaves no file."""
    with tempfile.TemporaryDirectory(prefix="evolve-runtime-") as folder:
        target = Path(folder) / "runtime.o"
        command = [
            *toolchain.command,
            *toolchain.flags,
            *_mode(cooperative),
            "-c",
            str(HERE / "runtime" / "runtime.cpp"),
        ]
        command += ["-o", str(target)]
        done = _prepared(command, Path(folder))
        if done.returncode != 0:
            raise UserError(
                f"{' '.join(toolchain.command)} cannot compile the emulator's runtime: {done.stderr[:2000]}",
                "put a working g++ or clang++ on PATH",
            )
        return target.read_bytes()


def _prepared(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=RUNTIME_SECONDS, cwd=folder, check=False)


def check_runs_only_when_launched(kernel_object: bytes) -> None:
    """Raise for code that runs when the library is loaded or unloaded, which a GPU does not have."""
    if any(section.name.startswith(RUN_BY_THE_LOADER) for section in object_file.sections(kernel_object)):
        message = "error: a constructor or a destructor outside of a kernel: globals can only have constant values"
        raise RejectedError(Outcome.COMPILE_ERROR, message)
    chosen = [symbol.name for symbol in object_file.symbols(kernel_object) if symbol.kind == object_file.RESOLVED]
    if chosen:
        message = f"error: `{chosen[0]}` is chosen by a function that runs when the kernel is loaded (ifunc)"
        raise RejectedError(Outcome.COMPILE_ERROR, message)


def lasting_variables(kernel_object: bytes, source: str) -> tuple[str, ...]:
    """Return the variables to compare after every call; raise if one starts as zero and is not declared constant.

    Constants of the host are not included, nor is shared memory, which is declared thread-local.
    """
    symbols = object_file.symbols(kernel_object)
    zeroed = [symbol.name for symbol in symbols if _in(symbol, ZEROED)]
    state.check_compiled(zeroed, [symbol.name for symbol in symbols if symbol.section is None], source)
    kept = [symbol.name for symbol in symbols if _writable(symbol) and symbol.name not in zeroed]
    return (*zeroed, *kept)


def _writable(symbol: Symbol) -> bool:
    variable = symbol.kind == object_file.VARIABLE and symbol.section is not None and symbol.section.writable
    return variable and not _in(symbol, FOR_THE_LINKER_ALONE)


def _in(symbol: Symbol, section: str) -> bool:
    """Return whether a variable is in the section or a part of it, such as `.data.rel.local` or `.bss.name`."""
    held = symbol.section.name if symbol.kind == object_file.VARIABLE and symbol.section else ""
    return held == section or held.startswith(f"{section}.")


@dataclass(frozen=True)
class WatchedVariable:
    """A variable of a loaded library, and its value before any launch."""

    name: str
    address: int
    loaded: bytes

    def changed(self) -> bool:
        """Return whether a launch has changed the variable, and restore it. Other programs may share the library."""
        if ctypes.string_at(self.address, len(self.loaded)) == self.loaded:
            return False
        ctypes.memmove(self.address, self.loaded, len(self.loaded))
        return True


def watched_variables(library: ctypes.CDLL, file: Path, names: tuple[str, ...]) -> tuple[WatchedVariable, ...]:
    """Return the variables with these names and their values, before the first launch."""
    if not names:
        return ()
    symbols = object_file.symbols(file.read_bytes())
    anchor = next(symbol.at for symbol in symbols if symbol.name == ANCHOR)
    start = (ctypes.cast(library[ANCHOR], ctypes.c_void_p).value or 0) - anchor
    found = (symbol for symbol in symbols if symbol.name in names and symbol.kind == object_file.VARIABLE)
    return tuple(WatchedVariable(s.name, start + s.at, ctypes.string_at(start + s.at, s.size)) for s in found)

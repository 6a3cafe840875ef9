"""The host's C++ compiler: from a kernel to a shared library whose variables are watched."""

import ctypes
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from archive.binding import Bound
from archive.kernel import Kernel
from archive.plan import print_plan
from archive.records import Outcome
from evolve.devices import object_file, state
from evolve.devices.device import RejectedError
from evolve.devices.emulated.source import entries, translate
from evolve.devices.object_file import Symbol
from evolve.devices.prelude import cuda_include_dirs, specialisation
from evolve.devices.source_text import of_known_files
from evolve.errors import UserError

HERE = Path(__file__).parent
HEADER = "emulated.h"
ANCHOR = "evolve_launch"
GCC_MARK = b"gpch"  # how g++'s own precompiled headers begin; it takes no others, and others take none so named
MAX_LOG_CHARACTERS, COMPILE_SECONDS, RUNTIME_SECONDS = 4000, 20, 180
FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=fast",
    "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-w",
)  # fmt: skip
# Clang deletes code that must reach a conversion out of range; on a GPU that is well defined.
CLANG_FLAGS = ("-fno-strict-float-cast-overflow",)
# What a compiler says of a part of it that ended so.
KILLED = re.compile(r"(?:Killed|Terminated) signal terminated program|(?:ld|as) terminated with signal (?:9|15)\b")
ZEROED, INITIALISED, FOR_THE_LINKER_ALONE = ".bss", ".data", ".data.rel.ro"


@dataclass(frozen=True)
class Toolchain:
    """The compiler found on this machine, and the folders of CUDA's headers."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    headers: tuple[Path, ...]


def find_toolchain() -> Toolchain:
    """What the emulated device compiles with; a UserError says what to install where something is missing."""
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
    return Toolchain(command, FLAGS + (CLANG_FLAGS if "clang" in version else ()), headers)


def find_compiler() -> tuple[str, ...] | None:
    """The command of the host compiler, or None where there is none."""
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            return (path,)
    if importlib.util.find_spec("ziglang"):
        # As `cc -x c++`: `c++` would first build a C++ library, which nothing here uses.
        return (sys.executable, "-m", "ziglang", "cc", "-x", "c++")
    return None


def prepare() -> None:
    """Compile what nearly all kernels need: processes that are forked afterwards have it."""
    toolchain = find_toolchain()
    runtime_object(toolchain, cooperative=False)
    precompiled_header(_how(toolchain, cooperative=False, fp8=False))


@dataclass(frozen=True)
class Built:
    """The shared library, and the names of its variables that the kernel could leave changed."""

    library: Path
    variables: tuple[str, ...]


def build(bound: Bound, toolchain: Toolchain, folder: Path) -> Built:
    """Compile into `folder`, or raise a RejectedError with the compiler's words."""
    kernel = bound.kernel
    first_line = print_plan(kernel.plan).count("\n") + 3
    source = translate(kernel.source, first_line)
    names = tuple(dict.fromkeys(launch.entry for launch in bound.launches))
    _check_entries(bound, entries(kernel.source))
    unit = folder / "kernel.cpp"
    fp8 = "fp8" in specialisation(bound) + kernel.source
    unit.write_text(
        f'#include "{HEADER}"\n#line 1 "prelude"\n{specialisation(bound)}'
        f'#line {first_line} "kernel.cu"\n{source}\n{_table(names)}'
    )
    cooperative = any(launch.cooperative for launch in bound.launches)
    library = folder / "kernel.so"
    runtime = folder / "runtime.o"
    runtime.write_bytes(runtime_object(toolchain, cooperative=cooperative))
    how = _how(toolchain, cooperative=cooperative, fp8=fp8)
    if read_ahead := precompiled_header(how):
        (folder / f"{HEADER}.gch").write_bytes(read_ahead)
    own = folder / "kernel.o"
    _compile([*how, "-c", str(unit), "-o", str(own)], folder, kernel)
    variables = lasting_variables(own.read_bytes(), bound.kernel.source)
    # Objects after `-x none`, so that a compiler told to read C++ does not read them as such.
    linked = ["-x", "none", str(own), str(runtime), "-shared", "-o", str(library), "-lm", "-lpthread"]
    _compile([*toolchain.command, *toolchain.flags, *linked], folder, kernel)
    return Built(library, variables)


def _compile(command: list[str], folder: Path, kernel: Kernel) -> None:
    done = _finished(command, folder)
    if done.returncode < 0 or KILLED.search(done.stderr):  # by somebody, or a system short of memory: once more
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
        return  # entries made by a macro cannot be read off the text
    for launch in bound.launches:
        if launch.entry not in found:
            raise RejectedError(Outcome.MALFORMED, _no_entry(launch.index, launch.entry, found))


def _no_entry(index: int, entry: str, found: tuple[str, ...]) -> str:
    return (
        f'launch {index}: the source has no extern "C" __global__ function `{entry}` '
        f"(found: {', '.join(found) or 'none'})"
    )


def _table(names: tuple[str, ...]) -> str:
    """The entries as data. Redeclared with C linkage, one that lacks it is an error on the line of its name."""
    checks = "\n".join(f'#line 1 "entry {name}"\nextern "C" decltype({name}) {name};' for name in names)
    rows = ", ".join(f"EVOLVE_ENTRY({name})" for name in names)
    table = f'extern "C" EVOLVE_EXPORT const evolve::Entry evolve_entries[] = {{ {rows} }};' if names else ""
    return f'{checks}\n#line 1 "entries"\n{table}\n'


def _failure(stderr: str, folder: Path, kernel: Kernel) -> RejectedError:
    ours = ("kernel.cu", "prelude", "entries", *(f"entry {launch.entry}" for launch in kernel.plan.launches))
    log = of_known_files(stderr, ours, (folder, HERE / "include", HERE / "runtime", *cuda_include_dirs()))
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


def _how(toolchain: Toolchain, *, cooperative: bool, fp8: bool) -> tuple[str, ...]:
    """The command that compiles device code, but for the file."""
    includes = [argument for path in (HERE / "include", *toolchain.headers) for argument in ("-I", str(path))]
    asked = ("-DEVOLVE_FP8",) if fp8 else ()
    return (*toolchain.command, *toolchain.flags, *_native(), *_mode(cooperative), *asked, "-nostdinc", *includes)


def _native() -> tuple[str, ...]:
    """For fused multiply-add, as on a GPU."""
    machine = platform.machine().lower()
    return ("-mcpu=native",) if machine in {"aarch64", "arm64"} else ("-march=native",) if machine == "x86_64" else ()


def _mode(cooperative: bool) -> tuple[str, ...]:
    return ("-DEVOLVE_COOPERATIVE",) if cooperative else ()


@lru_cache(maxsize=4)
def precompiled_header(how: tuple[str, ...]) -> bytes:
    """What g++ makes of the headers, which takes it longer than most kernels do; nothing of other compilers.

    Made once per process and kept in memory, as the runtime is; without it everything works, only slower.
    """
    with tempfile.TemporaryDirectory(prefix="evolve-header-") as folder:
        target = Path(folder) / f"{HEADER}.gch"
        command = [*how, "-x", "c++-header", str(HERE / "include" / HEADER), "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUNTIME_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return b""
        made = target.read_bytes() if done.returncode == 0 and target.is_file() else b""
        return made if made.startswith(GCC_MARK) else b""


@lru_cache(maxsize=4)
def runtime_object(toolchain: Toolchain, *, cooperative: bool) -> bytes:
    """The compiled runtime, made once per process and kept in memory: a killed worker leaves no file behind."""
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUNTIME_SECONDS, check=False)
        if done.returncode != 0:
            raise UserError(
                f"{' '.join(toolchain.command)} cannot compile the emulator's runtime: {done.stderr[:2000]}",
                "put a working g++ or clang++ on PATH",
            )
        return target.read_bytes()


def lasting_variables(own: bytes, source: str) -> tuple[str, ...]:
    """Those to be compared after every call; raises for those that begin as zero and are not declared constant.

    What the host keeps among constants is not among them, nor is shared memory: it is declared to be each thread's own.
    """
    symbols = object_file.symbols(own)
    zeroed = [symbol.name for symbol in symbols if _in(symbol, ZEROED)]
    state.check_compiled(zeroed, [symbol.name for symbol in symbols if symbol.section is None], source)
    kept = [symbol.name for symbol in symbols if _in(symbol, INITIALISED) and not _in(symbol, FOR_THE_LINKER_ALONE)]
    return (*zeroed, *kept)


def _in(symbol: Symbol, section: str) -> bool:
    """Compilers split sections by what they hold: `.data.rel.local`, `.bss.name`."""
    held = symbol.section.name if symbol.kind == object_file.VARIABLE and symbol.section else ""
    return held == section or held.startswith(f"{section}.")


@dataclass(frozen=True)
class WatchedVariable:
    """One variable of a loaded library, and what it held before any launch."""

    name: str
    address: int
    loaded: bytes

    def changed(self) -> bool:
        """Whether a launch changed it; then it is put back, since other programs may share the library."""
        if ctypes.string_at(self.address, len(self.loaded)) == self.loaded:
            return False
        ctypes.memmove(self.address, self.loaded, len(self.loaded))
        return True


def watched_variables(library: ctypes.CDLL, file: Path, names: tuple[str, ...]) -> tuple[WatchedVariable, ...]:
    """To be called before the first launch."""
    if not names:
        return ()
    symbols = object_file.symbols(file.read_bytes())
    anchor = next(symbol.at for symbol in symbols if symbol.name == ANCHOR)
    start = (ctypes.cast(library[ANCHOR], ctypes.c_void_p).value or 0) - anchor
    found = (symbol for symbol in symbols if symbol.name in names and symbol.kind == object_file.VARIABLE)
    return tuple(WatchedVariable(s.name, start + s.at, ctypes.string_at(start + s.at, s.size)) for s in found)

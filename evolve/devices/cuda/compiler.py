"""NVRTC compiler: compiles a bound kernel to a cubin, and checks the plan against it. It needs no GPU."""

import base64
import contextlib
import hashlib
import json
import os
import re
import tempfile
import zlib
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from math import prod
from pathlib import Path

from archive.kernel import Bound
from archive.records import Outcome, Resources, Traits
from evolve.devices import object_file, state
from evolve.devices.cuda import cubin, ordering, translation
from evolve.devices.cuda.translation import EMPTY_HEADERS
from evolve.devices.device import RejectedError
from evolve.devices.object_file import Symbol
from evolve.devices.prelude import cuda_include_dirs, specialisation
from evolve.devices.source_text import includes, spliced_directive, without_foreign_files

ANCHOR = "evolve_anchor"
SLOW_HEADERS = ("cooperative_groups", "cuda/std", "cub/", "thrust/", "cuda/atomic", "cuda/barrier", "cuda/pipeline")
HEADER_NAME = re.compile(r"\w[\w./+-]*")
REAL, VIRTUAL = "sm_", "compute_"  # prefixes of architectures; for the second, NVRTC returns only PTX
OWN_PTX = re.compile(r"\b_*asm\b|cluster")  # in a source: instructions that only the assembler checks
# In PTX: variables in shared, local and constant memory, and the limit on the threads of an entry.
HELD = re.compile(r"\.(?:shared|local|const)\s+\.align\s+\d+\s+\.[a-z]+(?P<bits>\d+)\s+[\w$]+(?:\[(?P<count>\d+)\])?")
MOST_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+(?:\s*,\s*\d+)*)")
ASSEMBLED_BYTES = 48 * 1024  # size of such variables that the assembler always accepts
PRECOMPILES_SINCE = (12, 8)  # since this version, NVRTC can precompile headers
CACHES_SINCE = (12, 9)  # since this version, NVRTC caches results if there is a GPU, but without the log
LOG_CHARACTERS = 4000
SERIALISED = (
    "the compiler waits for each wgmma before the next: it does so where sums or factors in registers are used before "
    "wgmma.wait_group, where the kernel can end in between, and where sums are converted to 16 bits without an "
    "operation before (add 0.0f)"
)
ENTRY_IN_LOG = re.compile(r"Compiling entry function '(\w+)'")
LOCAL_IN_LOG = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
REGISTERS_IN_LOG = re.compile(r"Used (\d+) registers")
SHARED_IN_LOG = re.compile(r"(\d+) bytes smem")
# Special registers that distinguish one call from another: clocks, counters, the number of a launch, the place where it
# runs, and whether it runs in a CUDA graph.
TELLING = re.compile(rb"%(?:(?:clock|globaltimer|gridid|pm\d)\w*|(?:current_graph_exec|smid|warpid)\b)")
# Registers of the driver and of the system's shared memory: only <cooperative_groups.h> needs them.
OF_THE_DRIVER = re.compile(rb"\.loc\s+(?P<file>\d+)|(?P<name>%(?:envreg\d|reserved_smem_offset)\w*)")
OWN_FILE = re.compile(rb'(?m)^\s*\.file\s+(\d+)\s+"(?:[^"]*/)?kernel\.cu"')


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel: the image to load, its entries, their resources, and the compiler's warnings."""

    bound: Bound
    arch: str
    image: bytes
    entries: dict[str, cubin.EntryPoint]
    resources: tuple[Resources, ...]
    log: str
    variables: tuple[Symbol, ...] = ()  # variables that must be unchanged after every call

    @cached_property
    def traits(self) -> Traits:
        return cubin.traits_of(self.bound, self.image, self.resources, self.arch)


def compile_cubin(bound: Bound, arch: str, cache: Path | None = None) -> Cubin:
    """Compile for an architecture such as sm_90a, and check the plan against the cubin.

    `compile_ahead` in another process may have written the result to the folder `cache`. The result is then read and
    removed.
    """
    _check_source(bound)
    return _checked(bound, arch, _found_or_compiled(translation.source(bound), arch, cache))


def check_compiles(bound: Bound, arch: str) -> None:
    """Raise a RejectedError as `compile_cubin` does, but make no machine code if the assembler has nothing to refuse.

    This takes half of the time. Arguments and variables are not checked, because `compile_cubin` has checked them at
    another workload.
    """
    _check_source(bound)
    if OWN_PTX.search(bound.kernel.source):
        compile_cubin(bound, arch)
        return
    output = _nvrtc(translation.source(bound), arch.replace(REAL, VIRTUAL, 1))
    ptx = zlib.decompress(output.ptx).decode(errors="replace")
    if _may_be_refused(bound, ptx, cubin.most_shared(arch)):
        compile_cubin(bound, arch)
    else:
        ordering.check(bound, ptx)


def _may_be_refused(bound: Bound, ptx: str, most_shared: int) -> bool:
    """Return whether a launch may exceed a limit that only the assembler checks or that only the cubin contains."""
    held = sum(int(found["bits"]) // 8 * int(found["count"] or 1) for found in HELD.finditer(ptx))
    shared = max((launch.shared for launch in bound.launches), default=0)
    threads = max((prod(launch.block) for launch in bound.launches), default=0)
    allowed = (prod(int(size) for size in found[1].split(",")) for found in MOST_THREADS.finditer(ptx))
    return held > ASSEMBLED_BYTES or held + shared > most_shared or threads > min(allowed, default=threads)


def _check_source(bound: Bound) -> None:
    if reserved := bound.kernel.plan.reserved:
        raise RejectedError(Outcome.UNSUPPORTED, f"the plan asks for {reserved}, which is not supported yet")
    _check_includes(bound.kernel.source)
    state.check_source(bound.kernel.source)


def _checked(bound: Bound, arch: str, compiled: "_Output") -> Cubin:
    translation.check_launches(bound, compiled.entries)
    _check_shared(bound, compiled.resources, arch)
    log = "\n".join([*compiled.warnings(bound, arch), compiled.log])
    warnings = _warnings(bound.kernel.source, log, compiled.resources)
    variables = _variables(compiled, specialisation(bound), bound.kernel.source)
    return Cubin(bound, arch, compiled.image, compiled.entries, compiled.resources, warnings, variables)


def _check_shared(bound: Bound, resources: tuple[Resources, ...], arch: str) -> None:
    """Raise a RejectedError if static and dynamic shared memory of a launch together exceed the limit of a block."""
    static = {taken.entry: taken.shared_bytes for taken in resources}
    most = cubin.most_shared(arch)
    for launch in bound.launches:
        if static.get(launch.entry, 0) + launch.shared > most:
            sizes = f"{static[launch.entry]} bytes of static and {launch.shared} of dynamic shared memory"
            message = f"launch {launch.index} (`{launch.entry}`): {sizes} together exceed the limit of {most}"
            raise RejectedError(Outcome.ILLEGAL, message)


def compile_ahead(bound: Bound, arch: str, cubins: Path) -> Cubin:
    """Compile and check, and write the result to `cubins` for another process that calls `compile_cubin`.

    If another process has compiled the kernel ahead, its result is checked, and the kernel is not compiled again.
    """
    _check_source(bound)
    source = translation.source(bound)
    file = _cubin_file(cubins, source, arch)
    output = _read(file) or _nvrtc(source, arch)
    compiled = _checked(bound, arch, output)
    partial_file = file.with_suffix(f".{os.getpid()}")
    texts = json.dumps([output.log, base64.b64encode(output.ptx).decode(), output.checked])
    with contextlib.suppress(OSError):  # without the file, the other process compiles again
        partial_file.write_bytes(texts.encode() + b"\n" + output.image)
        partial_file.replace(file)
    return compiled


def nvrtc_version() -> str:
    """Return NVRTC's version, such as 13.0. Raises ImportError or RuntimeError if it cannot be loaded."""
    from cupy.cuda import nvrtc

    major, minor = nvrtc.getVersion()
    return f"{major}.{minor}"


@lru_cache(maxsize=256)
def _found_or_compiled(source: str, arch: str, cache: Path | None) -> "_Output":
    if cache is None:
        return _nvrtc(source, arch)
    file = _cubin_file(cache, source, arch)
    output = _read(file)
    with contextlib.suppress(OSError):
        file.unlink()
    return output or _nvrtc(source, arch)


def _read(file: Path) -> "_Output | None":
    """Return the result that a process that compiles ahead has written to this file, if there is one."""
    try:
        texts, _, image = file.read_bytes().partition(b"\n")
    except OSError:
        return None
    log, ptx, checked = json.loads(texts)
    return _Output(image, log, base64.b64decode(ptx), checked)


def _cubin_file(folder: Path, source: str, arch: str) -> Path:
    return folder / f"{hashlib.sha256(f'{arch} {source}'.encode()).hexdigest()}.cubin"


@lru_cache(maxsize=16)  # all workloads have the same source
def _check_includes(source: str) -> None:
    """Allow headers of the toolkit only: with other paths, compiler messages could quote the user's files."""
    if spliced_directive(source) is not None:
        raise RejectedError(Outcome.COMPILE_ERROR, "the name of a preprocessor directive is split across lines")
    for include in includes(source):
        if not include.plain:
            message = (
                f"`{include.written[:80]}`: a kernel may not test for files or contain a literal without a clear end"
            )
            raise RejectedError(Outcome.COMPILE_ERROR, message)
        known = HEADER_NAME.fullmatch(include.header) and ".." not in include.header
        if not known or not _in_toolkit(include.header):
            message = (
                f"#include {include.written[:80]}: the CUDA toolkit has no such header, and no others can be included"
            )
            raise RejectedError(Outcome.COMPILE_ERROR, message)


def _in_toolkit(header: str) -> bool:
    return header in EMPTY_HEADERS or any((folder / header).is_file() for folder in cuda_include_dirs())


@dataclass(frozen=True)
class _Output:
    """The result of NVRTC for one source. The PTX is compressed."""

    image: bytes
    log: str
    ptx: bytes
    # warnings about the compiled code; the key describes the use of the code
    checked: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def entries(self) -> dict[str, cubin.EntryPoint]:
        return cubin.entries(self.image)

    @cached_property
    def resources(self) -> tuple[Resources, ...]:
        return tuple(_resources(self.log, self.entries))

    @cached_property
    def symbols(self) -> tuple[tuple[Symbol, ...], tuple[str, ...]]:
        """The variables that outlive a call, and the names of symbols that are not in the cubin."""
        symbols = object_file.symbols(self.image)
        return cubin.variables(symbols), tuple(symbol.name for symbol in symbols if symbol.section is None)

    def warnings(self, bound: Bound, arch: str) -> list[str]:
        """Return warnings about the compiled code. Raises RejectedError if it depends on an order of blocks."""
        use = ordering.use(bound)
        if use not in self.checked:  # cached: reading the code takes longer than all other steps after NVRTC
            unordered = ordering.check(bound, zlib.decompress(self.ptx).decode(errors="replace"))
            serialised = [f"warning: in `{name}` {SERIALISED}" for name in cubin.serialised(self.image, arch)]
            self.checked[use] = [*unordered, *serialised]
        return self.checked[use]


@lru_cache(maxsize=256)  # workloads that share all specialised values share their cubin
def _nvrtc(source: str, arch: str) -> _Output:
    from cupy.cuda import nvrtc

    options = [*translation.options(arch, cuda_include_dirs()), "-lineinfo", "--ptxas-options=-v"]
    if nvrtc.getVersion() >= PRECOMPILES_SINCE:
        options += _precompiled_headers(arch)
    if nvrtc.getVersion() >= CACHES_SINCE:
        options.append("--no-cache")
    program = nvrtc.createProgram(
        source, "kernel.cu", (b"",) * len(EMPTY_HEADERS), [name.encode() for name in EMPTY_HEADERS]
    )
    try:
        nvrtc.compileProgram(program, options)
        ptx = nvrtc.getPTX(program)
        _check_registers(ptx)
        # CuPy treats the image as a C string and drops its last byte, a zero that nvdisasm and readelf need.
        image = b"" if arch.startswith(VIRTUAL) else nvrtc.getCUBIN(program) + b"\0"
        return _Output(image, _own_messages(nvrtc.getProgramLog(program)), zlib.compress(ptx, 1))
    except nvrtc.NVRTCError as error:
        log = re.sub(r"(?m)^/\S*/include/", "", _own_messages(nvrtc.getProgramLog(program)).strip()) or str(error)
        raise RejectedError(Outcome.COMPILE_ERROR, log[:LOG_CHARACTERS]) from error
    finally:
        nvrtc.destroyProgram(program)


def _precompiled_headers(arch: str) -> list[str]:
    """Return options with which the headers of the prelude are compiled once per process, which changes no output."""
    folder = Path(_own_folder(os.getpid()).name, arch)
    folder.mkdir(parents=True, exist_ok=True)  # without its folder, NVRTC fails
    # the warning says that nothing behind the first #line is precompiled
    return ["--pch", f"--pch-dir={folder}", "--pch-messages=false", "-diag-suppress=20283"]


@cache
def _own_folder(_pid: int) -> tempfile.TemporaryDirectory[str]:
    """Return this process's folder for precompiled headers, which no other process can use."""
    return tempfile.TemporaryDirectory(prefix="evolve-headers-", ignore_cleanup_errors=True)


def _check_registers(ptx: bytes) -> None:
    """Raise for a kernel that reads a register that distinguishes calls.

    Unlike in the source, each such register has only one name in PTX.
    """
    found = TELLING.search(ptx)
    if name := found[0].decode() if found else _of_the_driver(ptx):
        advice = {
            "%smid": "number blocks by blockIdx",
            "%warpid": "number warps by threadIdx",
            "%current_graph_exec": "a kernel must do the same in a graph as outside of one",
        }.get(
            name,
            "its value is known only to the driver"
            if not found
            else "`cuda::atomic::wait` and semaphores read a timer too; poll with `load` instead",
        )
        message = f"the kernel reads `{name}`, which differs from call to call: outputs may depend only on the inputs"
        raise RejectedError(Outcome.KEEPS_STATE, f"{message} ({advice})")


def _of_the_driver(ptx: bytes) -> str:
    """Return the name of a register of the driver that the kernel's own text reads, or an empty string."""
    own, current = {match[1] for match in OWN_FILE.finditer(ptx)}, b""
    for match in OF_THE_DRIVER.finditer(ptx) if b"%envreg" in ptx or b"%reserved_smem" in ptx else ():
        if match["name"] and (current in own or not current):
            return match["name"].decode()
        current = match["file"] or current
    return ""


def _own_messages(log: str) -> str:
    return without_foreign_files(log, ("kernel.cu", "application ptx input", *EMPTY_HEADERS), cuda_include_dirs())


def _variables(compiled: _Output, *sources: str) -> tuple[Symbol, ...]:
    """Return the variables to compare after calls; raise for variables whose only use can be to keep state."""
    variables, undefined = compiled.symbols
    to_keep = [
        variable.name
        for variable in variables
        if cubin.begins_empty(variable) or cubin.declared_in_inline_ptx(variable)
    ]
    state.check_compiled(to_keep, undefined, *sources)
    return variables if {variable.name for variable in variables} > {ANCHOR} else ()


def _resources(log: str, entries: dict[str, cubin.EntryPoint]) -> list[Resources]:
    found, name, local = [], "", 0
    for line in log.splitlines():
        if match := ENTRY_IN_LOG.search(line):
            name, local = match.group(1), 0
        elif match := LOCAL_IN_LOG.search(line):
            local = int(match.group(1))
        elif (match := REGISTERS_IN_LOG.search(line)) and name in entries:
            shared = SHARED_IN_LOG.search(line)
            found.append(Resources(name, int(match.group(1)), int(shared.group(1)) if shared else 0, local))
    return found


def _warnings(source: str, log: str, resources: tuple[Resources, ...]) -> str:
    lines = [line for line in log.splitlines() if "warning" in line]
    lines += [f"`{r.entry}` spills {r.local_bytes} bytes to local memory" for r in resources if r.local_bytes]
    slow = [name for name in SLOW_HEADERS if re.search(rf"#\s*include\s*[<\"]{name}", source)]
    lines += [f"<{name.rstrip('/')}> takes seconds to compile" for name in slow]
    return "\n".join(lines)[:LOG_CHARACTERS]

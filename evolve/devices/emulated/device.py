"""The emulated device: runs kernels on the CPU, as shared libraries built by the host's C++ compiler."""

import _ctypes
import ctypes
import math
import mmap
import platform
import struct
import tempfile
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from archive.binding import PIECE_BYTES
from archive.kernel import Bound, BoundLaunch, BoundMap, Pointer, Pointers, Value
from archive.plan import DTYPES
from archive.records import DeviceInfo, Outcome, Resources, Traits
from evolve.devices import state
from evolve.devices.device import CompileResult, Program, RejectedError, Tools, check_maps
from evolve.devices.emulated import ARCH, POLICY, compiler
from evolve.devices.emulated.compiler import WatchedVariable, watched_variables

SMS, SHARED_BYTES = 4, 232448
MAX_RESIDENT_BLOCKS, THREADS_PER_SM = 128, 2048
MESSAGE_BYTES = 1024
FAILURES = {1: Outcome.LAUNCH_ERROR, 2: Outcome.CRASHED, 3: Outcome.ILLEGAL, 4: Outcome.COMPILE_ERROR}
CValue = ctypes.Array[ctypes.c_char]
ENVIRONMENT_BYTES, SSE_FLAGS = 64, 0x3F  # more bytes than C's `fenv_t` has; the lowest bits of MXCSR
C_LIBRARY = ctypes.CDLL(None)
# first of the stacks for threads that no launch uses: a program of its own for each workload would keep too many
IDLE_STACKS = ctypes.c_void_p()
NO_ACCESS = 0  # the flag PROT_NONE
TILE_MAP, MOST_DIMS, MAP_ALIGNMENT, MAP_MARK = struct.Struct("<Q3I5I5Q40xQ"), 5, 64, 0x70616D2D656C6974


def fenced(nbytes: int) -> torch.Tensor | None:
    """Return at least this many bytes, directly before memory that cannot be accessed.

    None where the system cannot forbid access.
    """
    protect = getattr(C_LIBRARY, "mprotect", None)
    if protect is None:
        return None
    usable = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    memory = mmap.mmap(-1, usable + mmap.PAGESIZE)
    tensor = torch.frombuffer(memory, dtype=torch.uint8, count=usable)  # the array keeps the mapping alive
    fence = ctypes.c_void_p(tensor.data_ptr() + usable)
    return None if protect(fence, ctypes.c_size_t(mmap.PAGESIZE), NO_ACCESS) else tensor


class EmulatedDevice:
    """A device that checks kernels without a GPU. Its times are CPU times."""

    torch_device = POLICY.torch_device

    def __init__(
        self,
        also_compile: Callable[[Bound], CompileResult] | None = None,
        also_check: Callable[[Bound], None] | None = None,
    ) -> None:
        self._also_compile, self._also_check = also_compile, also_check
        self.tools = Tools(fenced=fenced, compile_without_traits=self._without_traits if also_check else None)
        # Workloads with the same specialised values share a library. It is unloaded together with its last program.
        self._libraries: weakref.WeakValueDictionary[Hashable, _Loaded] = weakref.WeakValueDictionary()
        self._with_traits: weakref.WeakSet[_Loaded] = weakref.WeakSet()

    @cached_property
    def info(self) -> DeviceInfo:
        return DeviceInfo(
            kind="emulated", name=_cpu_name(), arch=ARCH, sms=SMS, shared_bytes=SHARED_BYTES, torch=torch.__version__
        )

    @cached_property
    def _toolchain(self) -> compiler.Toolchain:
        return compiler.find_toolchain()

    def compile(self, bound: Bound) -> "EmulatedProgram":
        _check_launches(bound)
        for_gpu = self._also_compile(bound) if self._also_compile else None
        program = EmulatedProgram(bound, loaded := self._loaded(bound), for_gpu)
        self._with_traits.add(loaded)
        return program

    def _without_traits(self, bound: Bound) -> "EmulatedProgram":
        if (known := self._libraries.get(_library_key(bound))) and known in self._with_traits:
            return self.compile(bound)
        _check_launches(bound)
        if self._also_check:
            self._also_check(bound)
        return EmulatedProgram(bound, self._loaded(bound), None)

    def _loaded(self, bound: Bound) -> "_Loaded":
        key = _library_key(bound)
        loaded = self._libraries.get(key)
        if loaded is None:
            with tempfile.TemporaryDirectory(prefix="evolve-kernel-") as folder:
                built = compiler.build(bound, self._toolchain, Path(folder))
                library = ctypes.CDLL(str(built.library))
                loaded = _Loaded(library, watched_variables(library, built.library, built.variables))
            # ctypes never unloads a library by itself.
            weakref.finalize(loaded, _ctypes.dlclose, library._handle)  # noqa: SLF001
            self._libraries[key] = loaded
        return loaded

    def run(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
        program.launch(tensors)

    def time(self, call: Callable[[], object]) -> float:
        start = time.process_time_ns()
        call()
        return (time.process_time_ns() - start) / 1000


def _library_key(bound: Bound) -> Hashable:
    entries = tuple((launch.entry, launch.cooperative) for launch in bound.launches)
    return bound.kernel.id, bound.constants, bound.types, entries


def _check_launches(bound: Bound) -> None:
    if reserved := bound.kernel.plan.reserved:
        raise RejectedError(Outcome.UNSUPPORTED, f"{reserved} are not supported yet")
    for launch in bound.launches:
        _check_resident(launch)


def _check_resident(launch: BoundLaunch) -> None:
    """Raise a RejectedError unless all blocks of a cooperative grid fit on the device at once."""
    most = min(SMS * (THREADS_PER_SM // math.prod(launch.block)), MAX_RESIDENT_BLOCKS)
    if launch.cooperative and math.prod(launch.grid) > most:
        raise RejectedError(
            Outcome.ILLEGAL,
            f"launch {launch.index}: a cooperative grid of {math.prod(launch.grid)} blocks of "
            f"{math.prod(launch.block)} threads, but only {most} blocks fit on the device at once",
        )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


class EmulatedProgram:
    """A kernel in a shared library. The library is unloaded together with the last program that uses it."""

    def __init__(self, bound: Bound, loaded: "_Loaded", compiled: CompileResult | None) -> None:
        self.bound = bound
        self._compiled = compiled
        self.resources: tuple[Resources, ...] = ()
        self.log = compiled.log if compiled else ""
        self._loaded = loaded
        library = loaded.library
        names = tuple(dict.fromkeys(launch.entry for launch in bound.launches))
        rows = (CEntry * len(names)).in_dll(library, "evolve_entries") if names else ()
        self._entries = dict(zip(names, rows, strict=True))
        for launch in bound.launches:
            check(launch, self._entries[launch.entry])

    @property
    def traits(self) -> Traits | None:
        """Traits for the GPU for which the kernel was also compiled."""
        return self._compiled.traits if self._compiled else None

    def launch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for workspace in self.bound.workspace:
            if workspace.zero:
                tensors[workspace.name].zero_()
        check_maps(self.bound, tensors)
        for launch in self.bound.launches:
            self._launch(launch, tensors)
        if changed := [variable.name for variable in self._loaded.watched if variable.changed()]:
            raise state.changed(changed)

    def _launch(self, launch: BoundLaunch, tensors: Mapping[str, torch.Tensor]) -> None:
        entry = self._entries[launch.entry]
        values = [as_c(value, entry.parameters[i], tensors) for i, value in enumerate(launch.args)]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = (ctypes.c_uint * 6)(*launch.grid, *launch.block)
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        call = ctypes.c_void_p(entry.call)
        environment = floating_point_environment()
        failure = self._loaded.library.evolve_launch(
            call,
            sizes,
            ctypes.c_uint(launch.shared),
            int(launch.cooperative),
            ctypes.c_uint(entry.cluster),
            pointers,
            message,
            MESSAGE_BYTES,
            ctypes.byref(IDLE_STACKS),
        )
        left = floating_point_environment()
        if restore := getattr(C_LIBRARY, "fesetenv", None):
            # restored, because a change would affect all later arithmetic, and the next call could read the flags
            restore(environment)
        if control_registers(left) != control_registers(environment):
            raise RejectedError(Outcome.KEEPS_STATE, f"launch {launch.index}: the kernel changed how the CPU rounds")
        if failure:
            text = message.value.decode(errors="replace")
            raise RejectedError(FAILURES[failure], f"launch {launch.index} (`{launch.entry}`): {text}")


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A shared library and its variables. It stays loaded while a program references this object."""

    library: ctypes.CDLL
    watched: tuple[WatchedVariable, ...]


def floating_point_environment() -> CValue:
    """Return C's `fenv_t` of this thread, which defines the CPU's rounding and treatment of subnormals."""
    held = ctypes.create_string_buffer(ENVIRONMENT_BYTES)
    if get := getattr(C_LIBRARY, "fegetenv", None):
        get(held)
    return held


def control_registers(environment: CValue) -> tuple[int, ...]:
    """Return the control registers in an environment, without the flags that any arithmetic may set."""
    match platform.machine().lower():
        case "x86_64" | "amd64":
            (x87,), (sse,) = struct.unpack_from("<H", environment, 0), struct.unpack_from("<I", environment, 28)
            return x87, sse & ~SSE_FLAGS
        case "aarch64" | "arm64":
            return struct.unpack_from("<I", environment, 0)
    return ()


class Parameter(ctypes.Structure):
    """One parameter of an entry: its kind as a character, and its size in bytes."""

    _fields_ = (("kind", ctypes.c_int), ("bytes", ctypes.c_int))

    @property
    def description(self) -> str:
        kinds = {"p": "a pointer", "i": "an integer", "u": "an unsigned integer", "f": "a floating point number"}
        kinds |= {"l": f"a List of {self.bytes // 8} pointers", "t": "a tensor map"}
        kind = chr(self.kind)
        return kinds.get(kind, "a value of a type that no argument has") + (
            "" if kind in "plt" else f" of {self.bytes} bytes"
        )


class CEntry(ctypes.Structure):
    """One row of the table of entries that a compiled kernel exports."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("count", ctypes.c_int),
        ("parameters", ctypes.POINTER(Parameter)),
        ("cluster", ctypes.c_uint),
    )


def check(launch: BoundLaunch, entry: CEntry) -> None:
    """Raise a RejectedError unless every argument fits its parameter."""
    if entry.count != len(launch.args):
        raise RejectedError(
            Outcome.MALFORMED,
            f"launch {launch.index}: `{launch.entry}` takes {entry.count} parameters, args lists {len(launch.args)}",
        )
    for position, value in enumerate(launch.args):
        parameter = entry.parameters[position]
        if problem := _misfit(value, parameter):
            raise RejectedError(
                Outcome.MALFORMED, f"launch {launch.index}, argument {position} of `{launch.entry}`: {problem}"
            )


def _misfit(value: Value, parameter: Parameter) -> str:
    kind, size = chr(parameter.kind), parameter.bytes
    given = _described(value)
    fits = {
        Pointer: kind == "p",
        Pointers: kind == "l",
        BoundMap: kind == "t",
        float: kind == "f",
        int: kind in "iu" and size in {4, 8},
    }
    if not fits[type(value)]:
        return f"the plan passes {given}, the entry takes {parameter.description}"
    if isinstance(value, Pointers) and size != 8 * len(value.names):
        return f"the plan passes {given}, the entry takes {parameter.description}"
    if isinstance(value, int):
        bits = 8 * size
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind == "i" else (0, (1 << bits) - 1)
        if not low <= value <= high:
            return f"{value} does not fit {parameter.description}"
    return ""


def _described(value: Value) -> str:
    match value:
        case Pointer(name):
            return f"the tensor `{name}`"
        case Pointers(names):
            return f"a list of {len(names)} tensors ({', '.join(names)})"
        case BoundMap(name):
            return f"the tensor map `{name}` (take it as `const __grid_constant__ CUtensorMap {name}`)"
        case float():
            return f"the float {value}"
    return f"the integer {value}"


def as_c(value: Value, parameter: Parameter, tensors: Mapping[str, torch.Tensor]) -> ctypes.Array[ctypes.c_char]:
    """Return the bytes of one argument."""
    match value:
        case Pointer(name):
            data: bytes = bytes(ctypes.c_void_p(tensors[name].data_ptr()))
        case Pointers(names):
            data = b"".join(bytes(ctypes.c_void_p(tensors[name].data_ptr())) for name in names)
        case BoundMap():
            return _encoded(value, tensors[value.tensor].data_ptr())
        case float():
            data = bytes(ctypes.c_float(value) if parameter.bytes == 4 else ctypes.c_double(value))
        case _:
            data = (value % (1 << 8 * parameter.bytes)).to_bytes(parameter.bytes, "little")
    return ctypes.create_string_buffer(data, len(data))


def _encoded(described: BoundMap, address: int) -> ctypes.Array[ctypes.c_char]:
    """Return a tensor map as the runtime's `TileMap`, aligned as kernels expect it."""
    if address % PIECE_BYTES:
        message = (
            f"tensor map `{described.name}`: `{described.tensor}` does not begin at a multiple of {PIECE_BYTES} bytes"
        )
        raise RejectedError(Outcome.LAUNCH_ERROR, message)
    rank, unused = len(described.shape), [0] * (MOST_DIMS - len(described.shape))
    data = TILE_MAP.pack(
        address, DTYPES[described.dtype], rank, described.swizzle,
        *described.box[::-1], *unused, *described.shape[::-1], *unused, MAP_MARK,
    )  # fmt: skip
    memory = ctypes.create_string_buffer(TILE_MAP.size + MAP_ALIGNMENT)
    offset = -ctypes.addressof(memory) % MAP_ALIGNMENT
    place = (ctypes.c_char * TILE_MAP.size).from_buffer(memory, offset)
    place.raw = data
    return place

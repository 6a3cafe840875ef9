"""Launches through CUDA's driver by ctypes. The driver comes with the GPU, so no package other than PyTorch is needed.

Values that do not change between calls, such as grids and numbers, are written into memory once. A call writes
addresses and calls the driver with four arguments for each launch.
"""

import copy
import ctypes
import hashlib
import math
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from archive.kernel import Bound, BoundLaunch, BoundMap, Pointer, Pointers, Value
from archive.records import Outcome
from evolve.devices.cuda import cubin
from evolve.devices.cuda.tensor_maps import EncodedMap
from evolve.devices.cuda.translation import check_launches
from evolve.devices.device import RejectedError
from evolve.export.template.calls import MissingError

LIBRARY = "libcuda.so.1"
OWN_VERSION = Path("/sys/module/nvidia/version")
DEFAULT_SHARED_BYTES = 48 * 1024
STATIC_SHARED, MOST_SHARED = 1, 8  # attributes of functions: CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, ...MAX_DYNAMIC...
COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
NO_CONTEXT = (201, 400)  # this thread has no context, or the context of another GPU
# the cubin is for another architecture, or for a CUDA version that the driver does not accept
OTHER_CUBIN = (200, 209, 218, 222)
LOADS_SINCE = 12030  # version of CUDA since which modules can be loaded during a capture
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
NEEDED = ("cuLaunchKernelEx", "cuThreadExchangeStreamCaptureMode")  # functions that old drivers lack
ADDRESS = struct.Struct("<Q")


class DriverError(RuntimeError):
    """Raised when the driver reports an error."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what}: {_described(code)}")
        self.code = code


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )

    @classmethod
    def of(cls, launch: BoundLaunch) -> "Config":
        config = cls((*launch.grid,), (*launch.block,), launch.shared)
        if launch.cooperative:
            config.attributes = ctypes.pointer(_Attribute(id=COOPERATIVE, value=1))
            config.count = 1
        return config


class Block:
    """The memory of all arguments of a plan's launches: addresses first, which each call writes, then numbers.

    Launches share the address of a tensor, because the driver copies arguments when a launch is enqueued. Tensor maps
    have separate memory, in which the driver changes the address.
    """

    def __init__(self, launches: Sequence[BoundLaunch], sizes: Sequence[Sequence[int]]) -> None:
        self.names: list[str] = []  # the tensors whose addresses are written, in order
        pointers: dict[tuple[str, ...], int] = {}
        for key in [_tensors(value) for launch in launches for value in launch.args]:
            if key and key not in pointers:
                pointers[key] = ADDRESS.size * len(self.names)
                self.names += key
        numbers = sum(len(launch.args) for launch in launches)
        self.memory = ctypes.create_string_buffer(ADDRESS.size * (len(self.names) + numbers + 1))
        self.pack = struct.Struct(f"<{len(self.names)}Q").pack_into
        self.maps: list[tuple[int, EncodedMap]] = []  # each map with the place of its tensor in `names`
        self._numbers: dict[tuple[int, int], Any] = {}  # key: launch and position
        at = ADDRESS.size * len(self.names)
        self.arguments = []  # for each launch, an array with the address of each argument
        for launch, each in zip(launches, sizes, strict=True):
            start = ctypes.addressof(self.memory)
            places = []
            for position, (value, size) in enumerate(zip(launch.args, each, strict=True)):
                if isinstance(value, Pointer | Pointers):
                    places.append(start + pointers[_tensors(value)])
                    continue
                if isinstance(value, BoundMap):
                    encoded = EncodedMap(value, driver())
                    self.maps.append((self.names.index(value.tensor), encoded))
                    places.append(encoded.place)
                    continue
                self._numbers[launch.index, position] = _number(value, size).from_buffer(self.memory, at)
                self.set(launch.index, position, value)
                places.append(start + at)
                at += ADDRESS.size
            self.arguments.append((ctypes.c_void_p * max(1, len(places)))(*places))

    def set(self, launch: int, position: int, value: float) -> None:
        """Set a number among the arguments of a launch, which is given by its index in the plan."""
        if (launch, position) in self._numbers:  # a launch with an empty grid is left out and has no numbers
            self._numbers[launch, position].value = value

    def point(self, addresses: Sequence[int]) -> None:
        """Write the addresses of the tensors in `names`."""
        self.pack(self.memory, 0, *addresses)
        for at, encoded in self.maps:
            encoded.point(addresses[at])


class Program:
    """All launches of a plan for one workload, loaded on the current GPU."""

    def __init__(self, bound: Bound, image: bytes, sms: int) -> None:
        entries = cubin.entries(image)
        check_launches(bound, entries)
        module = loaded(image)
        self.launches = bound.launches
        self._sizes = [entries[launch.entry].parameter_bytes for launch in self.launches]
        self.functions = [module.function(launch.entry, launch.shared) for launch in self.launches]
        for launch, function in zip(self.launches, self.functions, strict=True):
            if launch.cooperative:
                _check_residency(launch, function, sms)
        # A CDLL, although a PyDLL, which keeps Python's lock, saves 0.05 us: a launch waits while the GPU's queue is
        # full, and the queue may hold a Python function that needs the lock.
        self.call = driver().cuLaunchKernelEx
        self._arrange()

    def again(self) -> "Program":
        """Return the same program with separate memory for arguments."""
        made = copy.copy(self)
        made._arrange()  # noqa: SLF001 - of this class
        return made

    def _arrange(self) -> None:
        self.block = Block(self.launches, self._sizes)
        self._configs = [Config.of(launch) for launch in self.launches]
        self._references = list(map(ctypes.byref, self._configs))

    def arguments(self) -> tuple[Any, ...]:
        """Return the places of the addresses of `block.names`, and the arguments of `call` for each launch.

        The arguments are all configurations, in which a call sets the stream, then the references to the
        configurations, then the arguments of the launches. Functions that set the addresses of tensor maps follow, in
        the order of `block.maps`.
        """
        places = (ctypes.c_uint64 * len(self.block.names)).from_buffer(self.block.memory)
        pointing = [encoded.point for _, encoded in self.block.maps]
        return (places, *self._configs, *self._references, *self.block.arguments, *pointing)

    def enqueue(self, addresses: Sequence[int], device: int) -> None:
        """Enqueue all launches on PyTorch's current stream of the device, with these addresses of `block.names`."""
        self.block.point(addresses)
        stream = torch._C._cuda_getCurrentRawStream(device)  # noqa: SLF001 - the public way takes 20 times as long
        rows = zip(self._configs, self._references, self.functions, self.block.arguments, strict=True)
        for config, reference, function, arguments in rows:
            config.stream = stream
            if code := self.call(reference, function, arguments, None):
                self.call_again(code, reference, function, arguments, device)

    def call_again(self, code: int, reference: Any, function: Any, arguments: Any, device: int) -> None:
        """Repeat a call that returned this code, if the cause can be removed. Raise a DriverError otherwise."""
        if code in NO_CONTEXT:  # a new thread: PyTorch sets the thread's context at the first call that needs it
            use_context(device)
            code = self.call(reference, function, arguments, None)
        checked(code, "a kernel cannot be launched")


def program(bound: Bound, images: Iterable[bytes], sms: int) -> Program:
    """Load the first of these cubins that the driver accepts.

    The driver may refuse cubins of another version of CUDA.
    """
    refused: DriverError | None = None
    for image in images:
        try:
            return Program(bound, image, sms)
        except DriverError as error:
            if error.code not in OTHER_CUBIN:
                raise
            refused = error
    raise refused or ValueError("no cubin is given")


def use_context(device: int) -> None:
    """Make the context that PyTorch uses on this device current in this thread."""
    checked(driver().cuCtxSetCurrent(_primary_context(device)), "the GPU cannot be used")


@cache
def _primary_context(device: int) -> ctypes.c_void_p:
    """Return the context. It is never released: the release would destroy it if PyTorch does not hold it yet."""
    context, gpu = ctypes.c_void_p(), ctypes.c_int()
    checked(driver().cuDeviceGet(ctypes.byref(gpu), device), "the GPU cannot be used")
    checked(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu), "the GPU cannot be used")
    return context


@contextmanager
def despite_captures() -> Iterator[None]:
    """Allow this thread to load modules while it or another thread captures a CUDA graph."""
    mode = ctypes.c_int(RELAXED)
    checked(driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "modules cannot be loaded")
    try:
        yield
    finally:
        driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))  # `mode` now holds the previous mode


@cache
def driver() -> ctypes.CDLL:
    """Return CUDA's driver. Raise a MissingError if there is none."""
    try:
        found = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise MissingError(f"there is no NVIDIA driver ({LIBRARY})") from error
    if missing := [name for name in NEEDED if not hasattr(found, name)]:
        raise MissingError(f"the NVIDIA driver is too old: it has no {missing[0]}")
    return found


@cache
def offered() -> int:
    """Return the version of CUDA that the driver offers, such as 13000."""
    found = ctypes.c_int()
    checked(driver().cuDriverGetVersion(ctypes.byref(found)), "the driver has no version")
    return found.value


def version() -> str:
    """Return the version of CUDA that the driver offers, and the driver's own version if the system reports it."""
    with suppress(OSError):
        return f"{offered()} {OWN_VERSION.read_text(encoding='ascii').strip()}"
    return str(offered())


def loads_in_captures() -> bool:
    """Return whether a module can be loaded while a CUDA graph is captured."""
    return offered() >= LOADS_SINCE


class Module:
    """A cubin that is loaded on one GPU. It is never unloaded, because a stream may still use it."""

    def __init__(self, image: bytes) -> None:
        self._handle = ctypes.c_void_p()
        checked(driver().cuModuleLoadData(ctypes.byref(self._handle), image), "a cubin cannot be loaded")
        self._shared: dict[str, int] = {}  # bytes of shared memory that each entry may have
        self._lock = threading.Lock()

    def function(self, entry: str, shared: int) -> ctypes.c_void_p:
        """Return a kernel that may have this much dynamic shared memory, or as much as was requested earlier."""
        function, static = ctypes.c_void_p(), ctypes.c_int()
        found = driver().cuModuleGetFunction(ctypes.byref(function), self._handle, entry.encode())
        checked(found, f"`{entry}` is not in the cubin")
        checked(driver().cuFuncGetAttribute(ctypes.byref(static), STATIC_SHARED, function), f"`{entry}`")
        if shared + static.value > DEFAULT_SHARED_BYTES:
            with self._lock:
                if shared > self._shared.get(entry, 0):
                    code = driver().cuFuncSetAttribute(function, MOST_SHARED, shared)
                    checked(code, f"`{entry}` cannot have {shared} bytes of shared memory")
                    self._shared[entry] = shared
        return function


_modules: dict[tuple[int, bytes], Module] = {}  # key: context and digest
_loading = threading.Lock()


def loaded(image: bytes) -> Module:
    """Return a cubin's module on the current GPU. Sizes with the same cubin use the same module."""
    context = ctypes.c_void_p()
    checked(driver().cuCtxGetCurrent(ctypes.byref(context)), "the GPU cannot be used")
    key = context.value or 0, hashlib.sha256(image).digest()
    with _loading:
        if key not in _modules:
            _modules[key] = Module(image)
        return _modules[key]


def checked(code: int, what: str) -> None:
    """Raise a DriverError unless the driver's code is 0."""
    if code:
        raise DriverError(code, what)


def _check_residency(launch: BoundLaunch, function: ctypes.c_void_p, sms: int) -> None:
    per_sm, threads = ctypes.c_int(), math.prod(launch.block)
    find = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
    checked(find(ctypes.byref(per_sm), function, threads, ctypes.c_size_t(launch.shared)), f"`{launch.entry}`")
    if math.prod(launch.grid) > sms * per_sm.value:
        message = (
            f"a cooperative grid of {math.prod(launch.grid)} blocks, but only {sms * per_sm.value} can be resident"
        )
        raise RejectedError(Outcome.ILLEGAL, message)


def _tensors(value: Value) -> tuple[str, ...]:
    """Return the tensors whose addresses an argument holds."""
    match value:
        case Pointer(name=name):
            return (name,)
        case Pointers(names=names):
            return names
        case BoundMap(tensor=name):
            return (name,)
    return ()


def _number(value: float, size: int) -> Any:
    """Return the type of a number. An unsigned number has the same bytes as the signed number to which it wraps."""
    if isinstance(value, float):
        return ctypes.c_float if size == 4 else ctypes.c_double
    return ctypes.c_int32 if size == 4 else ctypes.c_int64


def _described(code: int) -> str:
    text = ctypes.c_char_p()
    if driver().cuGetErrorString(code, ctypes.byref(text)) or not text.value:
        return f"error {code} of CUDA's driver"
    return f"{text.value.decode()} (error {code} of CUDA's driver)"

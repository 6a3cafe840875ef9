"""Program of the CUDA device: a loaded cubin and the launches of its plan."""

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from cupy.cuda import runtime
from cupy.cuda.function import Module
from cupy_backends.cuda.api import driver

from archive.kernel import Bound, BoundLaunch, BoundMap, Pointer, Pointers, Value
from archive.records import Outcome, Resources, Traits
from evolve.devices.cuda.compiler import Cubin
from evolve.devices.cuda.tensor_maps import EncodedMap
from evolve.devices.device import RejectedError, check_maps

DEFAULT_SHARED_BYTES = 48 * 1024


class CudaProgram:
    """All launches of a plan, ready to be enqueued."""

    def __init__(self, bound: Bound, cubin: Cubin, sms: int) -> None:
        self.bound = bound
        self.resources: tuple[Resources, ...] = cubin.resources
        self.log = cubin.log
        self._cubin = cubin
        self.module = loaded(cubin.image)
        self.calls = 0
        static = {entry.entry: entry.shared_bytes for entry in cubin.resources}
        self._launches = [
            prepared(self.module, launch, cubin.entries[launch.entry].parameter_bytes, static.get(launch.entry, 0))
            for launch in bound.launches
        ]
        for launch in self._launches:
            if launch.bound.cooperative:
                _check_residency(launch, sms)

    @property
    def traits(self) -> Traits:
        return self._cubin.traits

    def launch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.calls += 1
        for workspace in self.bound.workspace:
            if workspace.zero:
                tensors[workspace.name].zero_()
        check_maps(self.bound, tensors)
        stream = current_stream()
        for launch in self._launches:
            launch.enqueue(lambda name: tensors[name].data_ptr(), stream)

    def set_argument(self, launch: int, position: int, value: float) -> None:
        """Set a number among the arguments of the plan's launch of this index for the calls that follow."""
        for prepared_launch in self._launches:
            if prepared_launch.bound.index == launch:
                prepared_launch.parameters.keep[position].value = value


@dataclass(frozen=True)
class Parameters:
    """Parameter block of one launch: an array of addresses of values, and the pointers to set for each call."""

    addresses: Any
    pointers: tuple[tuple[Any, int, str], ...]  # tuples of slot, index within a list or 0, and tensor
    maps: tuple[EncodedMap, ...]
    keep: tuple[Any, ...]

    @classmethod
    def of(cls, args: tuple[Value, ...], sizes: tuple[int, ...]) -> "Parameters":
        slots: list[Any] = []
        pointers: list[tuple[Any, int, str]] = []
        for value, size in zip(args, sizes, strict=True):
            slot: Any
            match value:
                case Pointer(name=name):
                    slot = (ctypes.c_uint64 * 1)()
                    pointers.append((slot, 0, name))
                case Pointers(names=names):
                    slot = (ctypes.c_uint64 * len(names))()
                    pointers += [(slot, index, name) for index, name in enumerate(names)]
                case BoundMap():
                    slot = EncodedMap(value, _driver())
                case float():
                    slot = (ctypes.c_float if size == 4 else ctypes.c_double)(value)
                case int():
                    slot = (ctypes.c_int32 if size == 4 else ctypes.c_int64)(value)
            slots.append(slot)
        maps = tuple(slot for slot in slots if isinstance(slot, EncodedMap))
        places = [slot.place if isinstance(slot, EncodedMap) else ctypes.addressof(slot) for slot in slots]
        return cls((ctypes.c_void_p * max(1, len(slots)))(*places), tuple(pointers), maps, tuple(slots))


@dataclass(frozen=True)
class Launch:
    """One launch of a plan. It can be enqueued any number of times."""

    bound: BoundLaunch
    function: Any
    parameters: Parameters

    def enqueue(self, address: Callable[[str], int], stream: int) -> None:
        """Enqueue the launch; `address` returns the address of a tensor or workspace by name."""
        for slot, index, name in self.parameters.pointers:
            slot[index] = address(name)
        for one in self.parameters.maps:
            one.point(address(one.tensor))
        launch, addresses = self.bound, ctypes.addressof(self.parameters.addresses)
        sizes = (*launch.grid, *launch.block, launch.shared, stream)
        if launch.cooperative:
            driver.launchCooperativeKernel(self.function.ptr, *sizes, addresses)
        else:
            driver.launchKernel(self.function.ptr, *sizes, addresses, 0)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def current_stream() -> int:
    """Return the address of PyTorch's current stream; `torch.cuda.current_stream` takes 20 times as long."""
    stream: int = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())  # noqa: SLF001
    return stream


def loaded(image: bytes) -> Module:
    """Load a cubin on the current GPU. It stays loaded while the module or one of its functions is referenced."""
    module = Module()
    module.load(image)
    return module


def prepared(module: Module, launch: BoundLaunch, parameter_bytes: tuple[int, ...], static_shared: int) -> Launch:
    """Return a launch that can be enqueued.

    `static_shared` is the size of the shared memory that the entry declares.
    """
    function = module.get_function(launch.entry)
    if launch.shared + static_shared > DEFAULT_SHARED_BYTES:
        driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared)
    return Launch(launch, function, Parameters.of(launch.args, parameter_bytes))


def _check_residency(launch: Launch, sms: int) -> None:
    threads, blocks = math.prod(launch.bound.block), math.prod(launch.bound.grid)
    per_sm = driver.occupancyMaxActiveBlocksPerMultiprocessor(launch.function.ptr, threads, launch.bound.shared)
    resident = sms * per_sm
    if blocks > resident:
        where = f"launch {launch.bound.index}"
        message = f"{where}: a cooperative grid of {blocks} blocks, but only {resident} can be resident at once"
        raise RejectedError(Outcome.ILLEGAL, message)


def bind_context(index: int) -> None:
    """Bind the GPU's context to this thread. CuPy launches through the driver, which needs a context."""
    runtime.setDevice(index)

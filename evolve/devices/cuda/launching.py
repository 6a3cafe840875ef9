"""A cubin's launches, enqueued with raw addresses. Knows nothing of PyTorch, so a process may do without it."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cupy.cuda.function import Module
from cupy_backends.cuda.api import driver

from archive.binding import BoundLaunch, Pointer, Pointers, Value

DEFAULT_SHARED_BYTES = 48 * 1024


@dataclass(frozen=True)
class Parameters:
    """The parameter block of one launch: an array of addresses of values, refilled with each call's pointers."""

    addresses: Any
    pointers: tuple[tuple[Any, int, str], ...]  # (slot, index within a list or 0, tensor)
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
                case float():
                    slot = (ctypes.c_float if size == 4 else ctypes.c_double)(value)
                case int():
                    slot = (ctypes.c_int32 if size == 4 else ctypes.c_int64)(value)
            slots.append(slot)
        addresses = (ctypes.c_void_p * max(1, len(slots)))(*(ctypes.addressof(slot) for slot in slots))
        return cls(addresses, tuple(pointers), tuple(slots))


@dataclass(frozen=True)
class Launch:
    """One launch of a plan, ready to be enqueued any number of times."""

    bound: BoundLaunch
    function: Any
    parameters: Parameters

    def enqueue(self, address: Callable[[str], int], stream: int) -> None:
        """`address` says where the tensor or workspace of a name lies this time."""
        for slot, index, name in self.parameters.pointers:
            slot[index] = address(name)
        launch, addresses = self.bound, ctypes.addressof(self.parameters.addresses)
        sizes = (*launch.grid, *launch.block, launch.shared, stream)
        if launch.cooperative:
            driver.launchCooperativeKernel(self.function.ptr, *sizes, addresses)
        else:
            driver.launchKernel(self.function.ptr, *sizes, addresses, 0)


def loaded(image: bytes) -> Module:
    """The cubin on the current GPU, for as long as the module or a function of it is held."""
    module = Module()
    module.load(image)
    return module


def prepared(module: Module, launch: BoundLaunch, parameter_bytes: tuple[int, ...], static_shared: int) -> Launch:
    """`static_shared` is what the entry takes of shared memory before the plan asks for any."""
    function = module.get_function(launch.entry)
    if launch.shared + static_shared > DEFAULT_SHARED_BYTES:
        driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared)
    return Launch(launch, function, Parameters.of(launch.args, parameter_bytes))

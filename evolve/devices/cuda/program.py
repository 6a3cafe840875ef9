"""A cubin on the GPU: loaded once, launched with raw parameter blocks on PyTorch's current stream."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from cupy.cuda.function import Module
from cupy_backends.cuda.api import driver

from archive.binding import Bound, BoundLaunch, Pointer, Pointers, Value
from archive.records import Outcome, Resources
from evolve.devices.cuda.compiler import Cubin
from evolve.devices.device import RejectedError

DEFAULT_SHARED_BYTES = 48 * 1024


class CudaProgram:
    """Every launch of a plan, ready to be enqueued."""

    def __init__(self, bound: Bound, cubin: Cubin, sms: int) -> None:
        self.bound = bound
        self.resources: tuple[Resources, ...] = cubin.resources
        self.log = cubin.log
        self._module = Module()
        self._module.load(cubin.image)
        static = {entry.entry: entry.shared_bytes for entry in cubin.resources}
        self._launches = [
            self._prepared(launch, cubin.entries[launch.entry].parameter_bytes, static.get(launch.entry, 0), sms)
            for launch in bound.launches
        ]

    def launch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for workspace in self.bound.workspace:
            if workspace.zero:
                tensors[workspace.name].zero_()
        stream = torch.cuda.current_stream().cuda_stream
        for launch in self._launches:
            launch.enqueue(tensors, stream)

    def _prepared(self, launch: BoundLaunch, sizes: tuple[int, ...], static: int, sms: int) -> "_Launch":
        function = self._module.get_function(launch.entry)
        if launch.shared + static > DEFAULT_SHARED_BYTES:
            driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared)
        if launch.cooperative:
            _check_residency(launch, function.ptr, sms)
        return _Launch(launch, function, _Parameters.of(launch.args, sizes))


@dataclass(frozen=True)
class _Parameters:
    """The parameter block of one launch: an array of addresses of values, refilled with each call's pointers."""

    addresses: Any
    pointers: tuple[tuple[Any, int, str], ...]  # (slot, index within a list or 0, tensor)
    keep: tuple[Any, ...]

    @classmethod
    def of(cls, args: tuple[Value, ...], sizes: tuple[int, ...]) -> "_Parameters":
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
class _Launch:
    bound: BoundLaunch
    function: Any
    parameters: _Parameters

    def enqueue(self, tensors: Mapping[str, torch.Tensor], stream: int) -> None:
        for slot, index, name in self.parameters.pointers:
            slot[index] = tensors[name].data_ptr()
        launch, addresses = self.bound, ctypes.addressof(self.parameters.addresses)
        sizes = (*launch.grid, *launch.block, launch.shared, stream)
        if launch.cooperative:
            driver.launchCooperativeKernel(self.function.ptr, *sizes, addresses)
        else:
            driver.launchKernel(self.function.ptr, *sizes, addresses, 0)


def _check_residency(launch: BoundLaunch, function: int, sms: int) -> None:
    threads, blocks = 1, 1
    for size, count in zip(launch.block, launch.grid, strict=True):
        threads, blocks = threads * size, blocks * count
    resident = sms * driver.occupancyMaxActiveBlocksPerMultiprocessor(function, threads, launch.shared)
    if blocks > resident:
        message = f"launch {launch.index}: a cooperative grid of {blocks} blocks; {resident} can be resident at once"
        raise RejectedError(Outcome.ILLEGAL, message)

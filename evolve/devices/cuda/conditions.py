"""The GPU's clocks, heat and power at this moment, as NVIDIA's management library tells them."""

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from archive.records import Conditions

SUCCESS = 0
SM_CLOCK, MEMORY_CLOCK, GPU_TEMPERATURE = 1, 2, 0
# What holds the clocks down; that the GPU is idle, or that a user has set its clocks, is no reason to worry.
THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "clocks kept in step with other GPUs",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class _RefusedError(Exception):
    """The library has no such function, or no answer."""


def conditions(pci_bus_id: str) -> Conditions | None:
    """None where the library is missing, or tells less than all of it."""
    library = _library()
    if library is None:
        return None
    try:
        device = ctypes.c_void_p()
        _ask(library, "nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.encode(), ctypes.byref(device))
        ask = partial(_number, library, device)
        return Conditions(
            sm_mhz=ask("nvmlDeviceGetClockInfo", SM_CLOCK),
            memory_mhz=ask("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            temperature_c=ask("nvmlDeviceGetTemperature", GPU_TEMPERATURE),
            power_w=round(ask("nvmlDeviceGetPowerUsage") / 1000),
            throttled=throttled(ask("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)),
        )
    except _RefusedError:
        return None


def throttled(reasons: int) -> str:
    """The driver's bits as words."""
    return ", ".join(word for bit, word in THROTTLES.items() if reasons & bit)


def _number(
    library: ctypes.CDLL, device: ctypes.c_void_p, name: str, *choice: int, kind: Callable[[], Any] = ctypes.c_uint
) -> int:
    value = kind()
    _ask(library, name, device, *map(ctypes.c_int, choice), ctypes.byref(value))
    return int(value.value)


def _ask(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        status = getattr(library, name)(*arguments)
    except AttributeError as error:
        raise _RefusedError from error
    if status != SUCCESS:
        raise _RefusedError


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        _ask(library, "nvmlInit_v2")
    except (OSError, _RefusedError):
        return None
    return library

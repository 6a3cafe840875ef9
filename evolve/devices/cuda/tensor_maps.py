"""Tensor maps for the driver, which encodes a map in 128 bytes. Exported packages contain a copy of this module."""

import ctypes
from typing import Any

from archive.kernel import BoundMap
from archive.records import Outcome
from evolve.devices.device import RejectedError

BYTES, ALIGNMENT = 128, 128
# CUtensorMapDataType; a copy needs only the size of an element
TYPES = {
    "float64": 8, "float32": 7, "float16": 6, "bfloat16": 9, "float8_e4m3fn": 0, "float8_e5m2": 0,
    "int64": 5, "int32": 3, "int16": 1, "int8": 0, "uint8": 0, "bool": 0,
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle
PLAIN, ZEROS, SECTORS = 0, 0, 2  # not interleaved; zeros beyond the tensor; 128 bytes at a time into the L2 cache


class EncodedMap:
    """The memory of a tensor map, written by the driver whenever the tensor's address changes."""

    def __init__(self, described: BoundMap, driver: Any) -> None:
        self._described = described
        self._driver = driver  # a ctypes.CDLL of CUDA's driver
        self._memory = ctypes.create_string_buffer(BYTES + ALIGNMENT)
        self.place = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT
        self._address = 0  # no address yet
        self._replace = driver.cuTensorMapReplaceAddress
        # created once, because creating it takes longer than the call
        self._given = ctypes.c_void_p(self.place), ctypes.c_void_p()

    @property
    def tensor(self) -> str:
        return self._described.tensor

    def point(self, address: int) -> None:
        """Describe the tensor at this address."""
        if address == self._address:
            return
        if self._address:
            self._given[1].value = address
            code = self._replace(*self._given)
        else:
            code = self._encoded(address)
        if code:
            message = f"tensor map `{self._described.name}`: the driver refuses it (error {code})"
            raise RejectedError(Outcome.LAUNCH_ERROR, message)
        self._address = address

    def _encoded(self, address: int) -> int:
        described, rank = self._described, len(self._described.shape)
        sizes, strides = described.shape[::-1], described.strides[::-1]  # the innermost first
        code: int = self._driver.cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.place), TYPES[described.dtype], ctypes.c_uint32(rank), ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * max(1, rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*described.box[::-1]), (ctypes.c_uint32 * rank)(*[1] * rank),
            PLAIN, SWIZZLES[described.swizzle], SECTORS, ZEROS,
        )  # fmt: skip
        return code

"""What machine code does to memory, and which units it uses, read from the bits of its instructions.

From Volta to Blackwell an instruction has 16 bytes: the low nine bits name the operation, the three above them the
form of its operands, and of an access to memory bits 73 to 75 tell the width.
"""

import re
import struct
from dataclasses import dataclass

WORDS = struct.Struct("<H7xH5x")  # bits 0 to 15 with the operation, bits 72 to 87 with the width
OPERATION, FORM = 0x1FF, 0xFFF
LD, LDG, ST, STG, LDGSTS = 0x180, 0x181, 0x185, 0x186, 0x1AE
LDG_256, STG_256 = 0x17E, 0x17F
ATOM, ATOMG, RED = {0x18A, 0x18B, 0x1A2}, {0x1A3, 0x1A8, 0x1A9}, {0x18E, 0x1A6}
MMA = {0x236, 0x23C, 0x237, 0x23D, 0x23F, 0x27A, 0x47F}  # HMMA on Volta and since, IMMA, BMMA, DMMA, QMMA, OMMA
GROUP_MMA = {0x1F0, 0x1F1, 0x1F2, 0x1F3}  # HGMMA, IGMMA, BGMMA, QGMMA
TENSOR_MEMORY_MMA = {0x1EA}  # UTCHMMA, UTCQMMA, UTCOMMA
ATOMICS = ATOM | ATOMG | RED
ACCESS_BYTES = (1, 1, 2, 2, 4, 8, 16, 16)
BLACKWELL = 100


@dataclass(frozen=True)
class Use:
    """What some code makes use of; widths are those of one thread's widest access."""

    load_bytes: int
    store_bytes: int
    tensor_cores: bool
    atomics: bool


def use(code: bytes, arch: str) -> Use:
    """Of whole instructions, as a cubin's .text section holds them."""
    blackwell = compute_capability(arch) >= BLACKWELL
    loads, stores = {0}, {0}
    tensor_cores = atomics = False
    for word, width in set(WORDS.iter_unpack(code)):
        operation = word & OPERATION
        if operation in (LD, LDG):
            loads.add(_bytes(width))
        elif operation in (ST, STG):
            stores.add(_bytes(width))
        elif operation == LDGSTS:
            loads.add(4 << (width >> 2 & 3) if blackwell else _bytes(width))
        elif operation == LDG_256:
            loads.add(32)
        elif operation == STG_256:
            stores.add(32)
        atomics |= operation in ATOMICS
        tensor_cores |= word & FORM in MMA or operation in GROUP_MMA or operation in TENSOR_MEMORY_MMA
    return Use(max(loads), max(stores), tensor_cores, atomics)


def compute_capability(arch: str) -> int:
    """90 for sm_90a."""
    return int(re.sub(r"\D", "", arch))


def _bytes(width: int) -> int:
    return ACCESS_BYTES[width >> 1 & 7]

"""Memory in front of a page without access: a kernel that reads behind a tensor which ends there faults."""

import ctypes
import mmap

import torch

NO_ACCESS = 0  # PROT_NONE
C_LIBRARY = ctypes.CDLL(None)


def fenced(nbytes: int) -> torch.Tensor | None:
    """Return at least so many bytes that end where access ends; None where the system cannot forbid access."""
    protect = getattr(C_LIBRARY, "mprotect", None)
    if protect is None:
        return None
    usable = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    memory = mmap.mmap(-1, usable + mmap.PAGESIZE)
    tensor = torch.frombuffer(memory, dtype=torch.uint8, count=usable)  # it keeps the mapping
    fence = ctypes.c_void_p(tensor.data_ptr() + usable)
    return None if protect(fence, ctypes.c_size_t(mmap.PAGESIZE), NO_ACCESS) else tensor

"""Device errors: functions that recognise exhausted memory and a failed GPU."""

import torch


def out_of_memory(error: Exception) -> bool:
    """Return whether the host or the GPU ran out of memory."""
    exhausted = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return exhausted or any(words in str(error) for words in ("can't allocate memory", "CUDA error: out of memory"))


def gpu_fault() -> str:
    """Return the first line of the GPU's pending error, or an empty string.

    After such an error, the process can no longer use the GPU. Any later call of the driver may report it, so the cause
    must be queried.
    """
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""

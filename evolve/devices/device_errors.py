"""Device errors: tells a full memory and a failed GPU from other exceptions."""

import torch


def out_of_memory(error: Exception) -> bool:
    """Return whether the host's or the GPU's memory was full."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def gpu_fault() -> str:
    """Return the first line of the GPU's pending error, or an empty string.

    After such an error the process can no longer use the GPU. The driver may report it late, from whichever call
    comes next, so the cause must be asked for.
    """
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""

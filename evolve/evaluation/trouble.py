"""What an error that nobody has raised on purpose says about memory and the GPU."""

import torch


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def gpu_fault() -> str:
    """What has failed on the GPU itself, after which the process can do no more with it; nothing where it is fine.

    The driver may tell of it late, when it has already said that all work was done: in an error of whatever came next.
    """
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""

"""What references compute in where PyTorch, left alone, would round 16-bit numbers at every step."""

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

"""Root mean square norms as models define them."""

import torch
from torch import Tensor, nn

WIDTH = 8


class LlamaNorm(nn.Module):
    """A norm as in Hugging Face's Llama."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH, dtype=dtype))
        self.variance_epsilon = 1e-6

    def forward(self, hidden: Tensor) -> Tensor:
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden.to(dtype)


class MetaNorm(LlamaNorm):
    """A norm as in the original code of Llama."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class DividedNorm(LlamaNorm):
    """A norm with a division and one change of dtype, at the end."""

    def forward(self, x: Tensor) -> Tensor:
        root = torch.sqrt(1e-6 + x.float().square().mean(dim=-1, keepdim=True))
        return (x.float() / root * self.weight.float()).to(x.dtype)

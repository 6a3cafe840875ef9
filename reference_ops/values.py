"""How the inputs of a check are drawn: normal numbers, and what betrays code that is right for those alone.

Everything happens in place, in the tensor's own dtype and without waiting for the GPU: inputs are drawn for each
call that is timed.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType

import torch

NORMAL, LARGE, SHIFTED, MIXED, EXACT = "normal", "large", "shifted", "mixed", "integers"
MOVED = "moved"
COMMON = ("uniform", "large", "heavy_tail", SHIFTED, "constant", "tiny")  # what any op on real numbers stands
OF_PRODUCTS = (*COMMON, "faint")  # and what sums of products stand
OF_BATCHES = (*COMMON, "shifted_columns")  # and what statistics over the first dim stand
LARGEST_INTEGER = 4  # sums of a few products stay below 256, up to which bfloat16 has every integer
FARTHEST = 256.0  # the usual distance of a row's centre from zero; an exponential of the lowest underflows
WIDEST_BITS, FARTHEST_SPREADS = 2.0, 2.0  # of moved numbers: from a quarter to four, and so many of it from zero
NEAR_ZERO_BITS = 8  # "tiny" begins where squares are about as large as the usual eps, 1e-5 and 1e-6
PADDING = 0.25  # of constant rows
CONSTANT_BITS = 6  # squares have twice as many, sums of 4096 of those as many as float32
FAINT, VAST = 2.0**-30, 2.0**20  # products of two such numbers are still far from float32's ends
Draw = Callable[[torch.Tensor, torch.Generator], object]


@dataclass(frozen=True)
class RowGroup:
    """The rows of an output that come from one distribution, and so are judged together."""

    values: str
    start: int = 0
    step: int = 1

    @property
    def exact(self) -> bool:
        """Whether not even a rounding is allowed: nothing is rounded in sums and products of small integers."""
        return self.values == EXACT

    @property
    def alike(self) -> bool:
        """Whether the terms of a sum may be all but equal: then each is rounded the same way."""
        return self.values == "tiny"

    @property
    def rows(self) -> slice | EllipsisType:
        """Indexes an output, one without dims too."""
        return ... if self.step == 1 else slice(self.start, None, self.step)


def fill(tensor: torch.Tensor, values: str, generator: torch.Generator) -> None:
    """Overwrite a floating-point tensor with numbers of this distribution."""
    if tensor.element_size() > 1:
        DRAWS[values](tensor, generator)
        return
    wide = torch.empty(tensor.shape, dtype=torch.float16, device=tensor.device)  # PyTorch draws none of 8 bits
    DRAWS[values](wide, generator)
    largest = torch.finfo(tensor.dtype).max
    tensor.copy_(wide.clamp_(-largest, largest))


def _normal(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return tensor.normal_(generator=generator)


def _uniform(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Between 0 and 1: a mean that is not zero, so that sums grow instead of cancelling."""
    tensor.uniform_(generator=generator)


def _large(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """An exponential of them overflows, in float16 their squares do; products and short sums of them do not."""
    tensor.normal_(std=128 if tensor.dtype == torch.float16 else 1024, generator=generator)


def _heavy_tail(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """A few elements make up most of a sum, so that none may be left out; at most about 12,000."""
    _normal(tensor, generator).pow_(5)


def _shifted(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Normal numbers round another centre in each row, some far below zero: a maximum may not begin at zero."""
    _round_centres(tensor, (len(tensor), *[1] * (tensor.ndim - 1)), generator)


def _shifted_columns(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Round another centre in each column or channel, as statistics over a batch find them."""
    _round_centres(tensor, (1, *tensor.shape[1:2], *[1] * (tensor.ndim - 2)), generator)


def _round_centres(tensor: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> None:
    centres = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    _normal(tensor, generator).add_(centres.normal_(std=FARTHEST, generator=generator))


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Normal numbers whose spread and centre are another each time: nobody gains by knowing where they lie."""
    chance = random.Random(generator.initial_seed())  # on the host: each operation on a GPU takes a timed call longer
    spread = 2 ** chance.uniform(-WIDEST_BITS, WIDEST_BITS)
    tensor.normal_(spread * chance.uniform(-FARTHEST_SPREADS, FARTHEST_SPREADS), spread, generator=generator)


def _integers(tensor: torch.Tensor, generator: torch.Generator) -> None:
    tensor.random_(-LARGEST_INTEGER, LARGEST_INTEGER + 1, generator=generator)


def _constant(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """The same number throughout a row, in some rows zero, as padding is: no variance, nothing but ties.

    Of so few bits that sums of them and of their squares are exact in any order: else a last bit would decide whether
    a row has a variance.
    """
    per_row = torch.empty((len(tensor), *[1] * (tensor.ndim - 1)), dtype=tensor.dtype, device=tensor.device)
    padding = torch.empty_like(per_row, dtype=torch.bool).bernoulli_(PADDING, generator=generator)
    tensor.copy_(few_bits(_normal(per_row, generator).masked_fill_(padding, 0)).expand_as(tensor))


def few_bits(values: torch.Tensor) -> torch.Tensor:
    """The nearest numbers whose products, in sums of thousands, float32 has room for."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp(mantissa.mul_(2**CONSTANT_BITS).round_().div_(2**CONSTANT_BITS), exponent).to(values.dtype)


def _masked(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Half of the entries are -inf, but one of each row, along the last dim, is finite for certain."""
    device, rows = tensor.device, tensor.shape[:-1]
    masked = torch.empty(tensor.shape, dtype=torch.bool, device=device).bernoulli_(0.5, generator=generator)
    kept = torch.randint(tensor.shape[-1], (*rows, 1), generator=generator, device=device)
    masked.scatter_(-1, kept, value=False)
    _normal(tensor, generator).masked_fill_(masked, -math.inf)


def _ties(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """A few distinct values, the greatest of which are zeros of both signs."""
    tensor.normal_(std=0.5, generator=generator).round_().clamp_(max=0)


def _tiny(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """From about 2**-8 down to the smallest subnormal, the very small ones few: an eps matters, a division by a
    sum may become one by zero."""
    limits = torch.finfo(tensor.dtype)
    lowest = math.log2(limits.smallest_normal * limits.eps)
    exponents = torch.empty_like(tensor).uniform_(generator=generator).pow_(4)
    scale = exponents.mul_(lowest + NEAR_ZERO_BITS).sub_(NEAR_ZERO_BITS).exp2_()
    _normal(tensor, generator).mul_(scale)


def _faint(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """As gradients deep inside a network, which nobody has scaled up: with all their digits far below float16's range,
    and in float16, which has none such, normal numbers."""
    _normal(tensor, generator).mul_(1.0 if tensor.dtype == torch.float16 else FAINT)


def _vast(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """As activations that have outgrown float16, where faint ones would vanish beside a bias; in float16 normal."""
    _normal(tensor, generator).mul_(1.0 if tensor.dtype == torch.float16 else VAST)


DRAWS: dict[str, Draw] = {
    NORMAL: _normal,
    "uniform": _uniform,
    LARGE: _large,
    "heavy_tail": _heavy_tail,
    SHIFTED: _shifted,
    MOVED: _moved,
    "shifted_columns": _shifted_columns,
    EXACT: _integers,
    "constant": _constant,
    "masked": _masked,
    "ties": _ties,
    "tiny": _tiny,
    "faint": _faint,
    "vast": _vast,
}

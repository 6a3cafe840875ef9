"""Distributions and extremes of floating-point inputs: functions that draw their numbers.

If checks used only normal numbers, kernels that are wrong for other inputs would pass. Numbers are drawn in place, in
the tensor's own dtype and without waiting for the GPU, because inputs are drawn anew for each timed call.
"""

import math
import random
from collections.abc import Callable

import torch

from reference_ops.op import (
    CLASHING,
    EXACT,
    HEAVY_TAIL,
    INFINITE,
    INFINITE_WEIGHTS,
    LARGE,
    MINUS_INF,
    MINUTE,
    MINUTE_WEIGHTS,
    MOVED,
    NAN,
    NAN_IN_WEIGHTS,
    NORMAL,
    OVERFLOWING,
    SATURATING,
    SHIFTED,
    SHIFTED_COLUMNS,
    SUBNORMAL,
    ZERO,
    ZERO_WEIGHTS,
)  # fmt: skip
from reference_ops.special_values import for_rows, put, scatter, some_rows, sprinkle

LARGEST_INTEGER = 4  # sums of a few products stay below 256, up to which bfloat16 represents every integer
FARTHEST = 256.0  # the usual distance of a row's centre from zero; an exponential of the lowest underflows
WIDEST_BITS, FARTHEST_SPREADS = 2.0, 2.0  # "moved": spread from 1/4 to 4, centre at most two spreads from zero
NEAR_ZERO_BITS = 8  # "tiny" begins where squares are about as large as the usual eps, 1e-5 and 1e-6
PADDING = 0.25  # share of constant rows that are zero
CONSTANT_BITS = 6  # squares have 12 bits, and sums of 4096 squares have 24, as many as float32
OF_WEIGHTS = {NAN_IN_WEIGHTS: math.nan, INFINITE_WEIGHTS: math.inf}
SHARES_OF_ZEROS = (0.5, 0.25)  # shares of the rows and of the columns of a weight that are zero
DEEP, DEEP_IN_FLOAT16 = 2.0**-25, 2.0**-11  # gradients deep in a network; in float16 they are scaled
DEEPER_BITS = 5.0  # the most by which they are smaller: 1e-9
SATURATED = 100.0
FAR_BELOW, FAR_BELOW_IN_FLOAT16 = 2.0**120, 2.0**12  # sums of a few such numbers stay finite
BEYOND_FLOAT16 = 4.0  # in wider dtypes, numbers that overflow float16 are up to so many times its largest
FAINT, VAST = 2.0**-30, 2.0**20  # products of two such numbers are still far from float32's limits
# An arrangement of softmaxes under a mask: NaN in the only visible key of a row, where `nan_spreads` holds as well.
ONLY_KEY_NAN = "NaN_in_the_only_key"
Draw = Callable[[torch.Tensor, torch.Generator], object]


def fill(tensor: torch.Tensor, values: str, generator: torch.Generator) -> None:
    """Overwrite a floating-point tensor with numbers of this distribution or extreme."""
    draw = DRAWS.get(values) or EXTREME_DRAWS[values]
    if tensor.element_size() > 1:
        draw(tensor, generator)
        return
    wide = torch.empty(tensor.shape, dtype=torch.float16, device=tensor.device)  # PyTorch cannot draw 8-bit numbers
    draw(wide, generator)
    largest = torch.finfo(tensor.dtype).max
    tensor.copy_(wide.clamp_(-largest, largest))


def _normal(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return tensor.normal_(generator=generator)


def _uniform(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw between 0 and 1. The mean is not zero, so that sums grow instead of cancelling."""
    tensor.uniform_(generator=generator)


def _large(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw numbers so large that exponentials overflow, and in float16 also squares, but not products or short sums."""
    tensor.normal_(std=128 if tensor.dtype == torch.float16 else 1024, generator=generator)


def _heavy_tail(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw numbers up to about 12,000. A few of them make up most of a sum, so that a kernel must skip none."""
    _normal(tensor, generator).pow_(5)


def _shifted(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw normal numbers with a different centre in each row.

    Some are far below zero: no maximum can start at zero.
    """
    _round_centres(tensor, (len(tensor), *[1] * (tensor.ndim - 1)), generator)


def _shifted_columns(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw normal numbers with a different centre in each column or channel, for statistics over a batch."""
    _round_centres(tensor, (1, *tensor.shape[1:2], *[1] * (tensor.ndim - 2)), generator)


def _round_centres(tensor: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> None:
    centres = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    _normal(tensor, generator).add_(centres.normal_(std=FARTHEST, generator=generator))


def _moved(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw normal numbers whose spread and centre follow from the seed, so that a kernel cannot assume them."""
    # computed on the host, because operations on the GPU would prolong timed calls
    chance = random.Random(generator.initial_seed())
    spread = 2 ** chance.uniform(-WIDEST_BITS, WIDEST_BITS)
    tensor.normal_(spread * chance.uniform(-FARTHEST_SPREADS, FARTHEST_SPREADS), spread, generator=generator)


def _integers(tensor: torch.Tensor, generator: torch.Generator) -> None:
    tensor.random_(-LARGEST_INTEGER, LARGEST_INTEGER + 1, generator=generator)


def _constant(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw one number per row, zero in some rows as in padding. Such rows have no variance and only ties.

    The numbers have so few bits that sums of them and of their squares are exact in any order. With more bits, the last
    bit would decide whether a row has a variance.
    """
    per_row = torch.empty((len(tensor), *[1] * (tensor.ndim - 1)), dtype=tensor.dtype, device=tensor.device)
    padding = torch.empty_like(per_row, dtype=torch.bool).bernoulli_(PADDING, generator=generator)
    tensor.copy_(few_bits(_normal(per_row, generator).masked_fill_(padding, 0)).expand_as(tensor))


def few_bits(values: torch.Tensor) -> torch.Tensor:
    """Round to numbers with so few bits that sums of thousands of their products are exact in float32."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp(mantissa.mul_(2**CONSTANT_BITS).round_().div_(2**CONSTANT_BITS), exponent).to(values.dtype)


def _masked(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw normal numbers and set half or more of each row to -inf: at random places, at the beginning or at the end.

    At least one number stays finite in each row along the last dim. A run of -inf fills whole tiles, as padding does.
    """
    device, rows, size = tensor.device, tensor.shape[:-1], tensor.shape[-1]
    masked = torch.empty(tensor.shape, dtype=torch.bool, device=device).bernoulli_(0.5, generator=generator)
    kept = torch.randint(size, (*rows, 1), generator=generator, device=device)
    masked.scatter_(-1, kept, value=False)
    at = torch.arange(size, device=device)
    half = size // 2
    cut = torch.randint(half, max(size, half + 1), (*rows, 1), generator=generator, device=device)
    turn = torch.arange(math.prod(rows), device=device).view(*rows, 1)
    turn = (turn + torch.randint(3, (1,), generator=generator, device=device)) % 3
    masked = torch.where(turn == 1, at < cut, masked)
    masked = torch.where(turn == 2, at >= size - cut, masked)
    _normal(tensor, generator).masked_fill_(masked, -math.inf)


def _ties(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw a few distinct values, the greatest of which are zeros of both signs."""
    tensor.normal_(std=0.5, generator=generator).round_().clamp_(max=0)


def _tiny(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw from about 2**-8 down to the smallest subnormal, with few very small numbers.

    For such numbers, an eps changes results, and a sum may become zero.
    """
    limits = torch.finfo(tensor.dtype)
    lowest = math.log2(limits.smallest_normal * limits.eps)
    exponents = torch.empty_like(tensor).uniform_(generator=generator).pow_(4)
    scale = exponents.mul_(lowest + NEAR_ZERO_BITS).sub_(NEAR_ZERO_BITS).exp2_()
    _normal(tensor, generator).mul_(scale)


def _faint(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw numbers far below float16's range, like unscaled gradients deep in a network; in float16 normal numbers."""
    _normal(tensor, generator).mul_(1.0 if tensor.dtype == torch.float16 else FAINT)


def _vast(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw numbers far above float16's range, if a bias would hide faint numbers; in float16 normal numbers."""
    _normal(tensor, generator).mul_(1.0 if tensor.dtype == torch.float16 else VAST)


def _far_below(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw numbers below those that models use in place of -inf, so that no running maximum may begin with them."""
    far = FAR_BELOW_IN_FLOAT16 if tensor.dtype == torch.float16 else FAR_BELOW
    _normal(tensor, generator).abs_().add_(1).mul_(-far)


def _zero(tensor: torch.Tensor, _: torch.Generator) -> None:
    tensor.zero_()


def _minute(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw numbers like gradients deep in a network, about 3e-8 or, as the seed decides, down to 1e-9.

    A kernel may take sums of gradients below a limit for zero: sums of a few dozen numbers near 3e-8 exceed 1e-7.
    """
    if tensor.dtype == torch.float16:
        _normal(tensor, generator).mul_(DEEP_IN_FLOAT16)
    else:
        deeper = 2 ** random.Random(generator.initial_seed()).uniform(-DEEPER_BITS, 0)
        _normal(tensor, generator).mul_(DEEP * deeper)


def _subnormal(tensor: torch.Tensor, generator: torch.Generator) -> None:
    _normal(tensor, generator).mul_(torch.finfo(tensor.dtype).smallest_normal / 8)


def _saturating(tensor: torch.Tensor, generator: torch.Generator) -> None:
    _normal(tensor, generator).mul_(SATURATED)


def _overflowing(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw finite numbers that exceed float16's range, or in float16 reach it, as their sums and products do."""
    most = torch.finfo(torch.float16).max * (1 if tensor.dtype == torch.float16 else BEYOND_FLOAT16)
    tensor.uniform_(-1, 1, generator=generator).mul_(most)


def change_weight(tensor: torch.Tensor, values: str, generator: torch.Generator, *, dtype: str) -> None:
    """Change a weight as required by an arrangement of weights; `dtype` is that of results, which may be narrower."""
    if values == MINUTE_WEIGHTS:
        # this changes no sign, so that a variance stays positive
        tensor.mul_(DEEP_IN_FLOAT16 if dtype == "float16" else DEEP)
    elif values == ZERO_WEIGHTS:
        _zero_in_parts(tensor, generator)
    elif values in OF_WEIGHTS:
        sprinkle(tensor, OF_WEIGHTS[values], generator)


def _zero_in_parts(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Set a number or half of a vector to zero, or about half of the rows and a quarter of the columns of a tensor.

    A kernel may divide by a weight, or by the largest weight of a row or column.
    """
    for axis, share in zip((0, -1)[: max(1, tensor.ndim)], SHARES_OF_ZEROS, strict=False):
        shape = [size if at == axis % tensor.ndim else 1 for at, size in enumerate(tensor.shape)]
        zero = torch.empty(shape, dtype=torch.bool, device=tensor.device).bernoulli_(share, generator=generator)
        tensor.masked_fill_(zero, 0)


def _nan(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw normal numbers, with at most one NaN in a row. Its sign bit varies, because -x and 0 / 0 on a CPU set it."""
    _normal(tensor, generator)
    scatter(tensor, math.nan, generator)


def _infinite(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw normal numbers with infinities of both signs, at most one in a row."""
    _normal(tensor, generator)
    scatter(tensor, math.inf, generator)


def _clashing(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw normal numbers; some rows get two of +inf, -inf and NaN at different places, or +inf twice.

    A maximum that is infinite must not hide NaN, and two infinities may give another result than one. In every other
    row, the two are neighbours, so that a window or a tile holds both.
    """
    rows = _normal(tensor, generator).view(len(tensor) if tensor.ndim else 1, -1)
    own = for_rows(len(rows), generator)
    chosen = some_rows(len(rows), own)
    first, step = torch.rand((2, len(rows), 1), generator=own, device=own.device)
    width = rows.shape[1]
    place = first.mul_(width).long().clamp_(max=width - 1)
    index = torch.arange(len(rows), device=own.device)
    beside = (index + index // 4).view(-1, 1) % 2 == torch.randint(2, (1,), generator=own, device=own.device)
    next_or_previous = torch.where(step < 0.5, 0, max(width - 2, 0))
    anywhere = step.mul(width - 1).long().clamp_(max=max(width - 2, 0))
    other = (place + 1 + torch.where(beside, next_or_previous, anywhere)) % width
    turn = index + torch.randint(4, (1,), generator=own, device=own.device)
    pairs = torch.tensor(((math.nan, math.inf), (math.inf, math.inf), (-math.nan, -math.inf), (math.inf, -math.inf)))
    values = pairs.to(own.device)[turn % len(pairs)]
    for at, value in ((other, values[:, 1:]), (place, values[:, :1])):
        put(rows, chosen, at, value)


def _minus_inf_rows(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw normal numbers, and some rows along the last dim that are entirely -inf."""
    shape = tensor.shape[:-1]
    _normal(tensor, generator)  # first, so that the generator differs from that of the tensor before
    own = for_rows(math.prod(shape), generator)
    chosen = some_rows(math.prod(shape), own).reshape(*shape, *[1] * min(tensor.ndim, 1))
    tensor.masked_fill_(chosen.to(tensor.device, non_blocking=True), -math.inf)


DRAWS: dict[str, Draw] = {
    NORMAL: _normal,
    "uniform": _uniform,
    LARGE: _large,
    HEAVY_TAIL: _heavy_tail,
    SHIFTED: _shifted,
    MOVED: _moved,
    SHIFTED_COLUMNS: _shifted_columns,
    EXACT: _integers,
    "constant": _constant,
    "masked": _masked,
    "ties": _ties,
    "tiny": _tiny,
    "faint": _faint,
    "vast": _vast,
    "far_below": _far_below,
}
EXTREME_DRAWS: dict[str, Draw] = {
    ZERO: _zero,
    MINUTE: _minute,
    SUBNORMAL: _subnormal,
    SATURATING: _saturating,
    OVERFLOWING: _overflowing,
    NAN: _nan,
    INFINITE: _infinite,
    CLASHING: _clashing,
    MINUS_INF: _minus_inf_rows,
}

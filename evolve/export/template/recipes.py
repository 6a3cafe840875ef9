"""Random calls of functions with PyTorch's signatures: ranks, dims, shapes, strides, dtypes, flags and gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evolve.export.template.calls import ALIGNMENT
from evolve.export.template.drawn import SIZES, Draw, Drawn, call

Recipe = Callable[[Draw], Drawn]


def _alike(tensors: int, **options: Sequence[Any]) -> Recipe:
    """Return calls with this number of tensors of one shape."""

    def recipe(draw: Draw) -> Drawn:
        given, shape = {name: draw.choice(values) for name, values in options.items()}, draw.shape(0)
        return call(*[draw.tensor(*shape) for _ in range(tensors)], **given)

    return recipe


def _along(low: float = -2.0, high: float = 2.0) -> Recipe:
    """Return calls along a dim, with numbers drawn from a range."""

    def recipe(draw: Draw) -> Drawn:
        shape = draw.shape()
        return call(draw.tensor(*shape, low=low, high=high), draw.dim(len(shape)), **_dtype(draw))

    return recipe


def _dtype(draw: Draw) -> dict[str, Any]:
    """Return the dtype of a result as an argument, if one is given."""
    return draw.choice([{}, {}, {}, {"dtype": None}, {"dtype": torch.float32}])  # type: ignore[no-any-return]


def _reduced(draw: Draw) -> Drawn:
    shape = draw.shape(0)
    dim = draw.dim(len(shape)) if shape else 0
    dims = [dim, dim, (dim,), [dim], None, (), tuple(range(len(shape)))]
    return call(draw.tensor(*shape), draw.choice(dims), draw.choice([False, True]), **_dtype(draw))


def _extreme(draw: Draw) -> Drawn:
    shape = draw.shape()
    return call(draw.distinct(*shape), draw.dim(len(shape)), draw.choice([False, True]))


def _norm(draw: Draw) -> Drawn:
    shape = draw.shape()
    order, dim = draw.choice([2, 2, 2.0, 1, 0, float("inf")]), draw.dim(len(shape))
    return call(draw.tensor(*shape), order, draw.choice([dim, dim, (dim,), None]), draw.choice([False, True]))


def _normalize(draw: Draw) -> Drawn:
    shape = draw.shape()
    given = draw.choice([{}, {}, {"p": 1.0}, {"eps": 1.0}, {"p": 2, "eps": 1e-12}])
    return call(draw.tensor(*shape), dim=draw.dim(len(shape)), **given)


def _topk(draw: Draw) -> Drawn:
    shape = draw.shape()
    dim = draw.dim(len(shape))
    shape[dim] = draw.choice([8, 16, 33])
    flags = draw.choice([(), (), (True,), (True, True), (False,), (True, False)])
    k = draw.choice([1, 4, 8, shape[dim], 0])
    return call(draw.distinct(*shape), k, dim, *(flags if k and all(flags) else flags[:1]))


def _sort(draw: Draw) -> Drawn:
    shape = draw.shape()
    stable = draw.choice([{}, {}, {"stable": True}])
    return call(draw.distinct(*shape), draw.dim(len(shape)), draw.choice([False, False, True]), **stable)


def _gather(draw: Draw) -> Drawn:
    shape = draw.shape()
    dim = draw.dim(len(shape))
    at = list(shape)
    at[dim] = draw.choice(SIZES)
    return call(draw.tensor(*shape), dim, draw.integers(max(1, shape[dim]), *at))


def _pair(draw: Draw) -> Drawn:
    shape = draw.shape()
    return call(draw.tensor(*shape), draw.tensor(*shape), draw.dim(len(shape)), draw.choice([1e-8, 1e-4]))


def _norm_shape(draw: Draw) -> tuple[list[int], list[int]]:
    shape = draw.shape(1)
    return shape, shape[-draw.choice([1, 1, min(2, len(shape))]) :]


def _layer_norm(draw: Draw) -> Drawn:
    shape, normalized = _norm_shape(draw)
    weight, bias = draw.tensor(*normalized), draw.tensor(*normalized)
    affine = draw.choice([(weight, bias)] * 3 + [(None, None), (weight, None), (None, bias)])
    return call(draw.tensor(*shape), normalized, *affine, draw.choice([1e-5, 1e-3, 1.0]))


def _rms_norm(draw: Draw) -> Drawn:
    shape, normalized = _norm_shape(draw)
    return call(draw.tensor(*shape), normalized, draw.tensor(*normalized), draw.choice([1e-6, 1e-3, 1.0, None]))


def _images(draw: Draw, channels: int) -> list[int]:
    return [draw.choice([1, 2, 3]), channels, *draw.choice([(5,), (4, 6), (7, 3), (2, 3, 4)])]


def _group_norm(draw: Draw) -> Drawn:
    groups, each = draw.choice([1, 2, 4]), draw.choice([1, 3])
    channels = groups * each
    weight, bias = draw.tensor(channels), draw.tensor(channels)
    affine = draw.choice([(weight, bias)] * 3 + [(None, None), (weight, None)])
    return call(draw.tensor(*_images(draw, channels)), groups, *affine, draw.choice([1e-5, 1e-3]))


def _instance_norm(draw: Draw) -> Drawn:
    channels = draw.choice([1, 3, 8])
    affine = draw.tensor(channels, dtype=torch.float32), draw.tensor(channels, dtype=torch.float32)
    return call(draw.tensor(*_images(draw, channels), dtype=torch.float32), None, None, *affine)


def _batch_norm(draw: Draw) -> Drawn:
    channels = draw.choice([1, 3, 8])
    # If elements of running statistics shared an address, the order of writes would be undefined.
    kept = [draw.tensor(channels, dtype=torch.float32, low=low).contiguous() for low in (-2.0, 0.5)]
    affine = [draw.tensor(channels, dtype=torch.float32) for _ in range(2)]
    shape = draw.choice([_images(draw, channels), [5, channels]])
    return call(
        draw.tensor(*shape, dtype=torch.float32),
        *kept,
        *affine,
        draw.choice([False, True]),
        draw.choice([0.1, 0.3, 0.0, 1.0]),
    )


def _local(draw: Draw) -> Drawn:
    return call(
        draw.tensor(*_images(draw, 7)), draw.choice([3, 5]), draw.choice([1e-4, 1e-2]), 0.75, draw.choice([1.0, 2.0])
    )


def _kl(draw: Draw) -> Drawn:
    shape = draw.shape(1)
    log_probs, target = (torch.softmax(draw.tensor(*shape).float(), -1) for _ in range(2))
    reduction = draw.choice(["batchmean", "batchmean", "sum", "mean", "none"])
    log_target = draw.choice([False, False, False, True])
    target = target.log() if log_target else target
    return call(log_probs.log().to(draw.dtype), target.to(draw.dtype), reduction=reduction, log_target=log_target)


def _cross_entropy(draw: Draw) -> Drawn:
    classes, shape = draw.choice([2, 7, 33]), draw.choice([[], [4], [3, 5], [2, 3, 2]])
    target = draw.integers(classes, *shape)
    ignored = draw.choice([-100, 1])
    if shape:
        target.view(-1)[0] = 0
    logits = draw.tensor(*shape[:1], classes, *shape[1:])
    given: dict[str, Any] = {
        "ignore_index": ignored if shape else -100,
        "label_smoothing": draw.choice([0.0, 0.1, 1.0]),
    }
    if draw.choice([True, False, False]):
        given["reduction"] = draw.choice(["none", "sum", "mean"])
    if not draw.choice(range(6)):
        given["weight"] = draw.tensor(classes, low=0.1)
    if not draw.choice(range(6)):  # probabilities
        target = torch.softmax(draw.tensor(*logits.shape).float(), len(shape) and 1).to(logits.dtype)
        given["ignore_index"] = -100
    return call(logits, target, **given)


def _conv(rank: int) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        groups = draw.choice([1, 1, 1, 2]) if rank == 2 else 1
        channels, filters, taps = groups * draw.choice([1, 3]), groups * draw.choice([1, 4]), draw.choice([1, 3])
        x = draw.tensor(draw.choice([1, 3]), channels, *(draw.choice([5, 8]) for _ in range(rank)))
        weight = draw.tensor(filters, channels // groups, *[taps] * rank)
        bias = draw.choice([None, draw.tensor(filters)])
        if rank == 2 and draw.choice([True, False, False]):
            x, weight = (one.contiguous(memory_format=torch.channels_last) for one in (x, weight))
        return call(x, weight, bias, draw.choice([1, 2]), draw.choice([0, 1]), draw.choice([1, 1, 2]), groups)

    return recipe


def _of_each_channel(draw: Draw) -> Drawn:
    channels, taps, dilation = draw.choice([2, 5]), draw.choice([1, 3, 4]), draw.choice([1, 1, 2])
    x, weight = draw.tensor(draw.choice([1, 3]), channels, draw.choice([9, 16])), draw.tensor(channels, 1, taps)
    bias, padding = draw.choice([None, draw.tensor(channels)]), draw.choice([0, (taps - 1) * dilation, 1])
    return call(x, weight, bias, draw.choice([1, 1, 1, 2]), padding, dilation, channels)


def _depthwise(draw: Draw) -> Drawn:
    channels = draw.choice([2, 5])
    x, weight = draw.tensor(2, channels, 6, 7), draw.tensor(channels, 1, 3, 3)
    return call(x, weight, draw.tensor(channels), draw.choice([1, 2]), 1, 1, channels)


def _conv_transpose(rank: int) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        x = draw.tensor(2, 3, *(draw.choice([3, 4]) for _ in range(rank)))
        weight = draw.tensor(3, draw.choice([1, 4]), *[draw.choice([2, 3])] * rank)
        return call(x, weight, None, draw.choice([2, 8]), draw.choice([0, 1]), draw.choice([0, 1]))

    return recipe


def _pool(rank: int) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        x = draw.distinct(*draw.choice([(2, 3), (2, 3), (1, 1), (3,)]), *(draw.choice([6, 8, 9]) for _ in range(rank)))
        kernel, stride, padding = draw.choice([(2, None, 0), (3, 2, 1), (4, 4, 0), (2, 2, 0), (2, 1, 1), (1, 3, 0)])
        others = draw.choice([{}, {}, {"ceil_mode": True}, {"ceil_mode": False}])
        return call(x, draw.choice([kernel, (kernel,) * rank, [kernel] * rank]), stride, padding, **others)

    return recipe


def _adaptive(rank: int) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        x = draw.tensor(2, 3, *(draw.choice([6, 8, 9]) for _ in range(rank)))
        return call(x, draw.choice([1, (1,) * rank, 2, (None,) * rank]))

    return recipe


def _interpolate(draw: Draw) -> Drawn:
    x = draw.tensor(2, 3, draw.choice([3, 8]), draw.choice([4, 9]))
    if draw.choice([True, False]):
        others = draw.choice([{}, {}, {}, {"align_corners": False}, {"size": (8, 9)}])
        return call(
            x,
            **others,
            scale_factor=draw.choice([2, 3.0, 1.5, (2, 3), 1]),
            mode=draw.choice(["nearest"] * 3 + ["area"]),
        )
    corners = draw.choice([False, False, False, True, None])
    mode = draw.choice(["bilinear"] * 4 + ["bicubic"])
    return call(x, size=draw.choice([(16, 18), (11, 26), 5, (1, 1)]), mode=mode, align_corners=corners)


def _grid_sample(draw: Draw) -> Drawn:
    x = draw.tensor(2, 3, 5, 6, dtype=torch.float32)
    others = draw.choice([{}, {}, {"mode": "nearest"}, {"padding_mode": "border"}, {"padding_mode": "zeros"}])
    return call(x, draw.tensor(2, 4, 3, 2, dtype=torch.float32, low=-1.2, high=1.2), align_corners=False, **others)


def _affine_grid(draw: Draw) -> Drawn:
    return call(draw.tensor(2, 2, 3), [2, 3, draw.choice([4, 8]), 5], align_corners=False)


def _linear(draw: Draw) -> Drawn:
    k, n = draw.choice(SIZES), draw.choice(SIZES)
    return call(draw.tensor(*draw.shape(0, 2), k), draw.tensor(n, k), draw.choice([None, None, draw.tensor(n)]))


def _matmul(draw: Draw) -> Drawn:
    m, k, n = (draw.choice(SIZES) for _ in range(3))
    batch = draw.shape(0, 2)
    other = draw.choice([(k,), (k, n), (*batch, k, n), (k, n)])
    b = draw.tensor(*other)
    if len(other) == 2 and draw.choice([True, False]):
        b = draw.tensor(n, k).contiguous().mT
    first = draw.choice([(*batch, m, k)] * 4 + [(k,), (2, 1, m, k)])
    return call(draw.tensor(*first), b)


def _product(first: str, second: str) -> Recipe:
    """Return products of tensors with these dims, one for each letter."""

    def recipe(draw: Draw) -> Drawn:
        size = {dim: draw.choice(SIZES if len(first) < 3 else SIZES[:6]) for dim in "bmkn"}
        return call(*[draw.tensor(*[size[dim] for dim in dims]) for dims in (first, second)])

    return recipe


def _attention(draw: Draw) -> Drawn:
    heads, shared = draw.choice([(2, 2), (4, 2), (3, 1)])
    length, dim = draw.choice([1, 7, 33]), draw.choice([8, 16])
    keys = draw.choice([length, length, 5])
    causal = draw.choice([True, False])
    sizes = (heads, length), (shared, keys), (shared, keys)
    tensors = [_aligned(draw.tensor(2, count, size, dim)) for count, size in sizes]
    if not causal and not draw.choice(range(4)):
        mask = draw.choice([draw.integers(2, length, keys).bool(), draw.tensor(length, keys)])
        return call(*tensors, attn_mask=mask, enable_gqa=heads != shared)
    scale = draw.choice([None, None, 1.0, 0.25])
    return call(*tensors, is_causal=causal, enable_gqa=heads != shared, scale=scale)


def _aligned(x: Tensor) -> Tensor:
    """Return the tensor at an aligned address: at others, PyTorch's own attention in float32 ends the GPU's context."""
    return x.clone() if x.storage_offset() * x.itemsize % ALIGNMENT else x


def _embedding(draw: Draw) -> Drawn:
    vocab = draw.choice([3, 17])
    others = draw.choice([{}, {}, {}, {"padding_idx": 1}, {"scale_grad_by_freq": True}])
    return call(draw.integers(vocab, *draw.shape(0, 3)), draw.tensor(vocab, draw.choice(SIZES)), **others)


def _index_add(draw: Draw) -> Drawn:
    rows, count, rest = draw.choice([3, 8]), draw.choice([1, 5, 17]), draw.choice([(4,), (7,), (2, 3)])
    alpha = draw.choice([{}, {}, {"alpha": 2}, {"alpha": 1.0}])
    return call(draw.tensor(rows, *rest), 0, draw.integers(rows, count), draw.tensor(count, *rest), **alpha)


def _recurrent(gates: int, states: int) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        time, batch, inputs, hidden = draw.choice([1, 5]), draw.choice([1, 3]), draw.choice([4, 7]), draw.choice([4, 8])
        first, layers, both = draw.choice([False, True]), draw.choice([1, 1, 2]), draw.choice([False, False, True])
        x = draw.tensor(*((batch, time) if first else (time, batch)), inputs, dtype=torch.float32)
        count, wide = layers * (1 + both), gates * hidden
        hx = tuple(draw.tensor(count, batch, hidden, dtype=torch.float32) for _ in range(states))
        params = []
        for layer in range(count):
            width = inputs if layer <= both else hidden * (1 + both)
            shapes = ((wide, width), (wide, hidden), (wide,), (wide,))
            params += [draw.tensor(*shape, dtype=torch.float32, low=-0.5, high=0.5).contiguous() for shape in shapes]
        return call(x, hx if states > 1 else hx[0], params, True, layers, 0.0, False, both, first)

    return recipe


def _cell(gates: int, states: int) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        batch, inputs, hidden = draw.choice([1, 3]), draw.choice([4, 7]), draw.choice([4, 8])
        hx = tuple(draw.tensor(batch, hidden, dtype=torch.float32) for _ in range(states))
        wide = gates * hidden
        shapes = ((wide, inputs), (wide, hidden), (wide,), (wide,))
        params = [draw.tensor(*shape, dtype=torch.float32, low=-0.5, high=0.5) for shape in shapes]
        x = draw.tensor(batch, inputs, dtype=torch.float32)
        return call(x, hx if states > 1 else hx[0], *params)

    return recipe


def _ctc(draw: Draw) -> Drawn:
    time, batch, classes, length = 12, draw.choice([1, 3]), 5, 4
    log_probs = draw.tensor(time, batch, classes, dtype=torch.float32).log_softmax(-1)
    targets = 1 + draw.integers(classes - 1, batch, length)
    lengths = torch.full((batch,), time), 1 + draw.integers(length, batch)
    flags = {"reduction": draw.choice(["none", "mean", "sum"]), "zero_infinity": draw.choice([False, True])}
    return call(log_probs, targets, *lengths, **flags)


RECIPES: dict[str, Recipe] = {
    **{name: _alike(1) for name in ("sigmoid", "tanh")},
    **{name: _alike(1, inplace=(*[False] * 7, True)) for name in ("relu", "silu", "mish", "hardswish")},
    "softplus": _alike(1, beta=(1.0, 1, 2.0), threshold=(20.0, 20, 1.0)),
    "elu": _alike(1, alpha=(1.0, 0.5, 0.0, -1.0)),
    "leaky_relu": _alike(1, negative_slope=(0.01, 0.3, 0.0, -0.0, 1.0, 1, -2.0)),
    "gelu": _alike(1, approximate=("none", "tanh")),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum"), _along()),
    "cumprod": _along(0.8, 1.2),
    **dict.fromkeys(("sum", "mean"), _reduced),
    **dict.fromkeys(("argmax", "max"), _extreme),
    "vector_norm": _norm,
    "normalize": _normalize,
    "topk": _topk,
    "sort": _sort,
    "gather": _gather,
    "cosine_similarity": _pair,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "local_response_norm": _local,
    "mse_loss": _alike(2, reduction=("mean", "mean", "sum", "none")),
    "huber_loss": _alike(2, delta=(1.0, 0.5, 1), reduction=("mean", "mean", "sum", "none")),
    "kl_div": _kl,
    "cross_entropy": _cross_entropy,
    "ctc_loss": _ctc,
    "conv1d": lambda draw: draw.choice([_conv(1), _of_each_channel])(draw),
    "conv2d": lambda draw: draw.choice([_conv(2), _conv(2), _depthwise])(draw),
    "conv3d": _conv(3),
    **{f"conv_transpose{rank}d": _conv_transpose(rank) for rank in (1, 2, 3)},
    **{f"{kind}_pool{rank}d": _pool(rank) for rank in (1, 2, 3) for kind in ("avg", "max")},
    **{f"adaptive_avg_pool{rank}d": _adaptive(rank) for rank in (1, 2, 3)},
    "interpolate": _interpolate,
    "grid_sample": _grid_sample,
    "affine_grid": _affine_grid,
    "linear": _linear,
    "matmul": _matmul,
    **{name: _product(*of) for name, of in {"mm": ("mk", "kn"), "bmm": ("bmk", "bkn"), "mv": ("mk", "k")}.items()},
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
    "index_add": _index_add,
    **{name: _recurrent(*of) for name, of in {"lstm": (4, 2), "gru": (3, 1), "rnn_tanh": (1, 1)}.items()},
    **{name: _cell(*of) for name, of in {"lstm_cell": (4, 2), "gru_cell": (3, 1)}.items()},
}

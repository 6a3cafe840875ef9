"""Random calls of functions with PyTorch's signatures: ranks, dims, shapes, strides, dtypes, flags and gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from evolve.export.template.drawn import SIZES, Draw, Drawn

Recipe = Callable[[Draw], Drawn]


def call(*arguments: Any, **named: Any) -> Drawn:
    return Drawn(arguments, named)


def _pointwise(**options: Sequence[Any]) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        given = {name: draw.choice(values) for name, values in options.items()}
        return call(draw.tensor(*draw.shape(0)), **given)

    return recipe


def _along(draw: Draw) -> Drawn:
    shape = draw.shape()
    return call(draw.tensor(*shape), draw.dim(len(shape)))


def _factors(draw: Draw) -> Drawn:
    shape = draw.shape()
    return call(draw.tensor(*shape, low=0.8, high=1.2), draw.dim(len(shape)))


def _reduced(draw: Draw) -> Drawn:
    shape = draw.shape()
    dim = draw.dim(len(shape))
    return call(draw.tensor(*shape), draw.choice([dim, (dim,)]), draw.choice([False, True]))


def _extreme(draw: Draw) -> Drawn:
    shape = draw.shape()
    return call(draw.distinct(*shape), draw.dim(len(shape)), draw.choice([False, True]))


def _norm(draw: Draw) -> Drawn:
    shape = draw.shape()
    return call(draw.tensor(*shape), 2, draw.dim(len(shape)), draw.choice([False, True]))


def _normalize(draw: Draw) -> Drawn:
    shape = draw.shape()
    return call(draw.tensor(*shape), dim=draw.dim(len(shape)))


def _topk(draw: Draw) -> Drawn:
    shape = draw.shape()
    dim = draw.dim(len(shape))
    shape[dim] = draw.choice([8, 16, 33])
    return call(draw.distinct(*shape), draw.choice([1, 4, 8]), dim)


def _sort(draw: Draw) -> Drawn:
    shape = draw.shape()
    return call(draw.distinct(*shape), draw.dim(len(shape)), draw.choice([False, False, True]))


def _gather(draw: Draw) -> Drawn:
    shape = draw.shape()
    dim = draw.dim(len(shape))
    at = list(shape)
    at[dim] = draw.choice(SIZES)
    return call(draw.tensor(*shape), dim, draw.integers(shape[dim], *at))


def _pair(draw: Draw) -> Drawn:
    shape = draw.shape()
    return call(draw.tensor(*shape), draw.tensor(*shape), draw.dim(len(shape)), draw.choice([1e-8, 1e-4]))


def _norm_shape(draw: Draw) -> tuple[list[int], list[int]]:
    shape = draw.shape(1)
    return shape, shape[-draw.choice([1, 1, min(2, len(shape))]) :]


def _layer_norm(draw: Draw) -> Drawn:
    shape, normalized = _norm_shape(draw)
    affine = [draw.tensor(*normalized), draw.tensor(*normalized)]
    return call(
        draw.tensor(*shape), normalized, *draw.choice([affine, affine, [None, None]]), draw.choice([1e-5, 1e-3])
    )


def _rms_norm(draw: Draw) -> Drawn:
    shape, normalized = _norm_shape(draw)
    return call(draw.tensor(*shape), normalized, draw.tensor(*normalized), draw.choice([1e-6, 1e-3, None]))


def _images(draw: Draw, channels: int) -> list[int]:
    return [draw.choice([1, 2, 3]), channels, *draw.choice([(5,), (4, 6), (7, 3), (2, 3, 4)])]


def _group_norm(draw: Draw) -> Drawn:
    groups, each = draw.choice([1, 2, 4]), draw.choice([1, 3])
    channels = groups * each
    affine = draw.tensor(channels), draw.tensor(channels)
    return call(draw.tensor(*_images(draw, channels)), groups, *affine, draw.choice([1e-5, 1e-3]))


def _instance_norm(draw: Draw) -> Drawn:
    channels = draw.choice([1, 3, 8])
    affine = draw.tensor(channels, dtype=torch.float32), draw.tensor(channels, dtype=torch.float32)
    return call(draw.tensor(*_images(draw, channels), dtype=torch.float32), None, None, *affine)


def _batch_norm(draw: Draw) -> Drawn:
    channels = draw.choice([1, 3, 8])
    kept = [draw.tensor(channels, dtype=torch.float32), draw.tensor(channels, dtype=torch.float32, low=0.5)]
    affine = [draw.tensor(channels, dtype=torch.float32) for _ in range(2)]
    shape = draw.choice([_images(draw, channels), [5, channels]])
    return call(
        draw.tensor(*shape, dtype=torch.float32), *kept, *affine, draw.choice([False, True]), draw.choice([0.1, 0.3])
    )


def _local(draw: Draw) -> Drawn:
    return call(
        draw.tensor(*_images(draw, 7)), draw.choice([3, 5]), draw.choice([1e-4, 1e-2]), 0.75, draw.choice([1.0, 2.0])
    )


def _loss(**options: Sequence[Any]) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        shape = draw.shape(0)
        given = {name: draw.choice(values) for name, values in options.items()}
        return call(draw.tensor(*shape), draw.tensor(*shape), **given)

    return recipe


def _kl(draw: Draw) -> Drawn:
    shape = draw.shape(1)
    log_probs, target = (torch.softmax(draw.tensor(*shape).float(), -1) for _ in range(2))
    return call(log_probs.log().to(draw.dtype), target.to(draw.dtype), reduction=draw.choice(["batchmean", "sum"]))


def _cross_entropy(draw: Draw) -> Drawn:
    classes, shape = draw.choice([2, 7, 33]), draw.choice([[], [4], [3, 5], [2, 3, 2]])
    target = draw.integers(classes, *shape)
    ignored = draw.choice([-100, 1])
    if shape:
        target.view(-1)[0] = 0
    logits = draw.tensor(*shape[:1], classes, *shape[1:])
    return call(logits, target, ignore_index=ignored if shape else -100, label_smoothing=draw.choice([0.0, 0.1]))


def _conv(rank: int) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        groups = draw.choice([1, 1, 1, 2]) if rank == 2 else 1
        channels, filters = groups * draw.choice([1, 3]), groups * draw.choice([1, 4])
        taps = draw.choice([1, 3])
        x = draw.tensor(draw.choice([1, 3]), channels, *(draw.choice([5, 8]) for _ in range(rank)))
        weight = draw.tensor(filters, channels // groups, *[taps] * rank)
        bias = draw.choice([None, draw.tensor(filters)])
        return call(x, weight, bias, draw.choice([1, 2]), draw.choice([0, 1]), draw.choice([1, 1, 2]), groups)

    return recipe


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
        x = draw.distinct(2, 3, *(draw.choice([6, 8, 9]) for _ in range(rank)))
        kernel, stride, padding = draw.choice([(2, None, 0), (3, 2, 1), (4, 4, 0), (2, 2, 0), (2, 1, 1)])
        return call(x, draw.choice([kernel, (kernel,) * rank]), stride, padding)

    return recipe


def _adaptive(rank: int) -> Recipe:
    def recipe(draw: Draw) -> Drawn:
        x = draw.tensor(2, 3, *(draw.choice([6, 8, 9]) for _ in range(rank)))
        return call(x, draw.choice([1, (1,) * rank]))

    return recipe


def _interpolate(draw: Draw) -> Drawn:
    x = draw.tensor(2, 3, draw.choice([3, 8]), draw.choice([4, 9]))
    if draw.choice([True, False]):
        return call(x, scale_factor=draw.choice([2, 3.0, 1.5]), mode="nearest")
    return call(x, size=draw.choice([(16, 18), (11, 26), 5]), mode="bilinear", align_corners=False)


def _grid_sample(draw: Draw) -> Drawn:
    x = draw.tensor(2, 3, 5, 6, dtype=torch.float32)
    return call(x, draw.tensor(2, 4, 3, 2, dtype=torch.float32, low=-1.2, high=1.2), align_corners=False)


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
    return call(draw.tensor(*batch, m, k), b)


def _mm(draw: Draw) -> Drawn:
    m, k, n = (draw.choice(SIZES) for _ in range(3))
    return call(draw.tensor(m, k), draw.tensor(k, n))


def _bmm(draw: Draw) -> Drawn:
    batch, m, k, n = (draw.choice(SIZES[:6]) for _ in range(4))
    return call(draw.tensor(batch, m, k), draw.tensor(batch, k, n))


def _mv(draw: Draw) -> Drawn:
    m, k = draw.choice(SIZES), draw.choice(SIZES)
    return call(draw.tensor(m, k), draw.tensor(k))


def _attention(draw: Draw) -> Drawn:
    heads, shared = draw.choice([(2, 2), (4, 2), (3, 1)])
    length, dim = draw.choice([1, 7, 33]), draw.choice([8, 16])
    keys = draw.choice([length, length, 5])
    causal = draw.choice([True, False])
    tensors = [draw.tensor(2, count, size, dim) for count, size in ((heads, length), (shared, keys), (shared, keys))]
    return call(*tensors, is_causal=causal, enable_gqa=heads != shared)


def _embedding(draw: Draw) -> Drawn:
    vocab = draw.choice([3, 17])
    return call(draw.integers(vocab, *draw.shape(0, 3)), draw.tensor(vocab, draw.choice(SIZES)))


def _index_add(draw: Draw) -> Drawn:
    rows, count, rest = draw.choice([3, 8]), draw.choice([1, 5, 17]), draw.choice([(4,), (7,), (2, 3)])
    return call(draw.tensor(rows, *rest), 0, draw.integers(rows, count), draw.tensor(count, *rest))


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
    return call(log_probs, targets, *lengths, reduction=draw.choice(["none", "mean", "sum"]))


RECIPES: dict[str, Recipe] = {
    **{name: _pointwise() for name in ("relu", "silu", "mish", "hardswish", "sigmoid", "tanh", "softplus")},
    "elu": _pointwise(alpha=(1.0, 0.5)),
    "leaky_relu": _pointwise(negative_slope=(0.01, 0.3)),
    "gelu": _pointwise(approximate=("none", "tanh")),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum"), _along),
    "cumprod": _factors,
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
    "mse_loss": _loss(reduction=("mean", "mean", "sum")),
    "huber_loss": _loss(delta=(1.0, 0.5)),
    "kl_div": _kl,
    "cross_entropy": _cross_entropy,
    "ctc_loss": _ctc,
    "conv1d": _conv(1),
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
    "mm": _mm,
    "bmm": _bmm,
    "mv": _mv,
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
    "index_add": _index_add,
    "lstm": _recurrent(4, 2),
    "gru": _recurrent(3, 1),
    "rnn_tanh": _recurrent(1, 1),
    "lstm_cell": _cell(4, 2),
    "gru_cell": _cell(3, 1),
}

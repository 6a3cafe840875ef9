"""Decode attention: one query per sequence attends to a long cache of keys and values."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch.nn import functional

from reference_ops.arrangements import filled, then
from reference_ops.attention._plain import FARTHEST, TOLERANCE, VALUES
from reference_ops.op import Op, Tensors, rotated, tensors, workloads
from reference_ops.precision import wide
from reference_ops.scores import of_keys_ahead, of_scores


def decode_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    grouped = q.unflatten(1, (k.shape[1], -1))  # the number of queries that share a head of the keys
    scores = (wide(grouped) @ wide(k).mT) * q.shape[-1] ** -0.5
    cached = torch.arange(k.shape[2], device=k.device) < lengths[:, None, None, None]
    weights = torch.softmax(scores.masked_fill_(~cached, -torch.inf), -1)
    values = wide(v).masked_fill(~cached.mT, 0)  # memory without keys may hold NaN
    # The weights are rounded, as for tensor cores, and multiplied in float32, because cuBLAS might round partial sums.
    return (wide(weights.to(v.dtype)) @ values).to(v.dtype).flatten(1, 2)


def of_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    if not q.is_cuda:
        return decode_attention(q, k, v, lengths)
    grouped = q.unflatten(1, (k.shape[1], -1))
    cached = torch.arange(k.shape[2], device=k.device) < lengths[:, None, None, None]
    return functional.scaled_dot_product_attention(grouped, k, v, cached).flatten(1, 2)


def draw(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw lengths in pairs whose sum is one more than the number of keys, so that the bytes to read are fixed."""
    lengths, keys = inputs["lengths"], inputs["k"].shape[2]
    half = len(lengths) // 2
    lengths.random_(1, keys + 1, generator=generator)
    lengths[half:].fill_(keys)
    lengths[len(lengths) - half :] = keys + 1 - lengths[:half]
    lengths.copy_(lengths[torch.randperm(len(lengths), generator=generator, device=lengths.device)])
    for name in ("q", "k"):
        inputs[name].clamp_(-FARTHEST, FARTHEST)


def use_every_key(inputs: Tensors) -> None:
    inputs["lengths"].fill_(inputs["k"].shape[2])


def full_lengths(inputs: Tensors, _: torch.Generator, __: Mapping[str, int]) -> None:
    use_every_key(inputs)


def one_key_and_nan(inputs: Tensors, generator: torch.Generator, _: Mapping[str, int]) -> None:
    """Leave one key, and put NaN into the queries of every other sequence and into that key of the others."""
    inputs["lengths"].fill_(1)
    first = int(generator.initial_seed() % 2)
    inputs["q"][first::2, :, -1] = torch.nan
    inputs["k"][1 - first :: 2, :, 0, -1] = torch.nan


def stale_cache(inputs: Tensors, _: torch.Generator, known: Mapping[str, int]) -> None:
    """Fill the cache with NaN after each sequence's length, like memory without keys."""
    behind = torch.arange(known["keys"], device=inputs["k"].device) >= inputs["lengths"][:, None]
    for name in ("k", "v"):
        inputs[name].masked_fill_(behind[:, None, :, None], torch.nan)


def cached_keys(dims: Mapping[str, int]) -> int:
    """Return the number of cached keys of all sequences, which `draw` keeps fixed."""
    batch, keys = dims["batch"], dims["keys"]
    return batch // 2 * (keys + 1) + batch % 2 * keys


def read(dims: Mapping[str, int]) -> int:
    return cached_keys(dims) * dims["kv_heads"] * dims["dim"]


def at(batch: int, heads: int, kv_heads: int, keys: int, dim: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "kv_heads": kv_heads, "keys": keys, "dim": dim}


op = Op(
    name="decode_attention",
    note="Head h of the queries attends to head h // (heads // kv_heads) of the cache, sequence b to its first "
    "lengths[b] keys, from 1 to all; later entries have no effect, even if they are NaN. scores[j] = sum over dim of "
    "q * k[j], times dim ** -0.5; out = sum over j of softmax(scores)[j] * v[j].",
    reference=decode_attention,
    baseline=of_torch,
    inputs=tensors(
        q="batch heads dim", k="batch kv_heads keys dim", v="batch kv_heads keys dim", lengths="int32[batch]"
    ),
    outputs=tensors(out="batch heads dim"),
    gpu=(
        *workloads("bfloat16 float32 float16", at(32, 32, 8, 4096, 128)),
        *workloads("bfloat16", at(8, 64, 8, 16384, 128), at(64, 12, 12, 2048, 64), at(2, 28, 4, 65521, 128)),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", at(4, 4, 2, 200, 32)),
        *workloads("float32 bfloat16", at(3, 6, 1, 130, 64), at(2, 2, 2, 77, 128)),
    ),
    awkward=rotated(
        "float32 bfloat16 float16",
        at(1, 1, 1, 1, 8), at(2, 3, 1, 31, 8), at(3, 4, 4, 33, 40), at(1, 8, 2, 257, 72), at(7, 2, 1, 2, 16),
        at(2, 5, 5, 1009, 8),
    ),
    valid=lambda known: known["heads"] % known["kv_heads"] == 0 and known["dim"] % 8 == 0 and known["dim"] <= 128,
    draw=draw,
    arranged={
        "lengths_of_one": filled(lengths=1),
        "lengths_of_one_and_NaN": one_key_and_nan,
        "full_lengths": full_lengths,
        "stale_cache": stale_cache,
        **of_scores("q", "k"),
        **then(of_keys_ahead("q", "k", "v"), use_every_key),
    },
    values=VALUES,
    touched={"k": read, "v": read},
    flops=lambda dims: 3 * cached_keys(dims) * dims["heads"],
    matrix_flops=lambda dims: 4 * cached_keys(dims) * dims["heads"] * dims["dim"],
    # Where all scores are almost equal, a result is the mean of tens of thousands of values.
    tolerance=replace(TOLERANCE, sums="keys"),
)  # fmt: skip

"""Workloads with another number of rows, the first dim of the inputs: few for slow tools, many for wide indices."""

from collections.abc import Iterator
from dataclasses import replace

from reference_ops.op import Number, Op, Workload

KEPT_BITS = 24  # differences of fewer bytes do not matter
LARGE_MULTIPLE = 4096  # multiple of rows, for kernels whose `when` requires whole tiles
FEW_ROWS = (3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # for tools that are a hundred times slower


def beyond(op: Op, elements: int) -> tuple[Workload, ...]:
    """Return listed workloads with so many rows that a tensor has more elements than this, fewest bytes first.

    Rows are the first dim of the inputs. Their number is odd, or a multiple that kernels may require. Of workloads with
    equal bytes, those with the longest rows come first, because they have the fewest rows.
    """
    found: dict[Workload, tuple[int, int]] = {}
    for near in op.listed:
        size = dict(near.dims).get(op.varied[0].dims[0] if op.varied[0].dims else "")
        if size is None:
            continue
        several = elements * size // op.largest_tensor(near) + 1
        for count in (several | 1, -(-several // LARGE_MULTIPLE) * LARGE_MULTIPLE):
            tried = with_rows(op, near, count)
            if op.is_valid(tried) and op.largest_tensor(tried) > elements:
                found[tried] = op.nbytes(tried) >> KEPT_BITS, count
    return tuple(sorted(found, key=found.__getitem__))


def with_rows(op: Op, near: Workload, count: int) -> Workload:
    """Return the workload with another number of rows, the first dim of its inputs."""
    rows = op.varied[0].dims[0]
    return replace(near, dims=tuple((name, count if name == rows else size) for name, size in near.dims))


def without_rows(op: Op, workload: Workload) -> tuple[tuple[str, Number], ...]:
    """Return all sizes and parameters except the number of rows."""
    rows = op.varied[0].dims[:1]
    return (*(size for size in workload.dims if size[0] not in rows), *workload.parameters)


def thinned(op: Op, near: Workload) -> Iterator[Workload]:
    """Yield the workload with few rows, then with more rows, for kernels that accept only certain numbers of rows."""
    size = dict(near.dims).get("".join(op.varied[0].dims[:1]), 1)
    for count in FEW_ROWS:
        if count < size and op.is_valid(tried := with_rows(op, near, count)):
            yield tried

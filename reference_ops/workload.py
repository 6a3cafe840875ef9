"""How an op's tensors and workloads are declared: names, symbolic dims and the points at which it is measured."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

Number = int | float

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
        "int64", "int32", "int16", "int8", "uint8", "bool",
    )
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor with symbolic dims; without a dtype of its own it has the workload's."""

    name: str
    dims: tuple[str, ...]
    dtype: str = ""

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(int(dim) if dim.isdigit() else sizes[dim] for dim in self.dims)


@dataclass(frozen=True)
class Workload:
    """One point at which an op is measured."""

    dtype: str
    dims: tuple[tuple[str, int], ...]
    parameters: tuple[tuple[str, Number], ...] = ()

    @property
    def key(self) -> str:
        """The workload's name in tables and in the archive."""
        return " ".join([*(f"{name}={value}" for name, value in (*self.dims, *self.parameters)), self.dtype])


def tensors(**declared: str) -> tuple[TensorSpec, ...]:
    """Declare tensors by their dims, as in `tensors(values="rows k", indices="int64[rows k]")`."""
    specs = []
    for name, text in declared.items():
        match = re.fullmatch(r"(?:(\w+)\[(.*)\]|([^\[\]]*))", text.strip())
        dtype = (match.group(1) or "") if match else "?"
        if match is None or (dtype and dtype not in DTYPES):
            raise ValueError(f"tensor {name}: cannot read {text!r}; write 'rows cols' or 'int64[rows k]'")
        specs.append(TensorSpec(name, tuple((match.group(2) or match.group(3) or "").split()), dtype))
    return tuple(specs)


def workloads(dtypes: str, *points: Mapping[str, int], **parameters: Number) -> tuple[Workload, ...]:
    """Every point at every dtype, as in `workloads("float32 bfloat16", dict(rows=8, cols=32), eps=1e-6)`."""
    return tuple(_workload(dtype, point, parameters) for point, dtype in itertools.product(points, dtypes.split()))


def rotated(dtypes: str, *points: Mapping[str, int], **parameters: Number) -> tuple[Workload, ...]:
    """Each point at one dtype, the dtypes in turn: as many shapes for a third of the compilations."""
    names = itertools.cycle(dtypes.split())
    return tuple(_workload(dtype, point, parameters) for point, dtype in zip(points, names, strict=False))


def _workload(dtype: str, point: Mapping[str, int], parameters: Mapping[str, Number]) -> Workload:
    return Workload(dtype, tuple(point.items()), tuple(parameters.items()))

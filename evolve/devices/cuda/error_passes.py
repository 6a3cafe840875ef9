"""Errors of an output in two passes over GPU memory, without storing them. PyTorch's operations need a dozen passes."""

import ctypes
import math
from collections.abc import Sequence

import torch

from evolve.devices.cuda.memory import function, launch
from evolve.devices.error_passes import Allowance, Results

THREADS, BLOCKS_PER_SM = 256, 8
MOST_ELEMENTS = 2**32 - 1  # the kernels count elements in 32 bits
KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
FIGURES, MOST_ALLOWANCES = 6, 2
SOURCE = r"""
struct Values { const void* at; long long row_stride; int kind; };
struct Allowance { double constant, of_result, of_excess; };

__device__ double load(const Values& values, unsigned row, unsigned column)
{
    long long at = row * values.row_stride + column;
    if (values.kind == 3) return static_cast<const double*>(values.at)[at];
    if (values.kind == 0) return static_cast<const float*>(values.at)[at];
    unsigned short bits = static_cast<const unsigned short*>(values.at)[at];
    if (values.kind == 2) return __uint_as_float(static_cast<unsigned>(bits) << 16);
    float half;
    asm("cvt.f32.f16 %0, %1;" : "=f"(half) : "h"(bits));
    return half;
}

struct Element { double result, off, own, excess; bool skipped; };

__device__ bool finite(double value) { return fabs(value) <= 1.7976931348623157e308; }
__device__ bool same(double a, double b) { return a == b || (a != a && b != b); }

__device__ Element element(const Values& actual, const Values& pytorch, const Values& expected, unsigned cols,
                           double rounding, unsigned i)
{
    unsigned row = i / cols, column = i - row * cols;
    double right = load(expected, row, column), result = fabs(right);
    double got = load(actual, row, column), of_pytorch = load(pytorch, row, column);
    if (!finite(right) && same(got, right) && same(of_pytorch, right)) return {0.0, 0.0, 0.0, 0.0, true};
    double own = fabs(of_pytorch - right);
    return {result, fabs(got - right), own, fmax(own - rounding * result, 0.0), false};
}

__device__ void add_up(double value, double* total)
{
    for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(total, value);
}

// The bits of doubles that are not negative are in the order of the numbers; NaN comes last.
__device__ void keep_largest(unsigned long long bits, double* largest)
{
    for (int offset = 16; offset; offset /= 2) {
        unsigned long long other = __shfl_xor_sync(~0u, bits, offset);
        bits = other > bits ? other : bits;
    }
    if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<unsigned long long*>(largest), bits);
}

__device__ unsigned long long ordered(double value)
{
    return static_cast<unsigned long long>(__double_as_longlong(fabs(value)));
}

extern "C" __global__ void squares(Values actual, Values pytorch, Values expected, unsigned count, unsigned cols,
                                   double rounding, double* found)
{
    double sums[5] = {};
    unsigned long long largest = 0;
    unsigned step = gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        Element one = element(actual, pytorch, expected, cols, rounding, static_cast<unsigned>(i));
        sums[0] += one.result * one.result;
        sums[1] += one.off * one.off;
        sums[2] += one.own * one.own;
        sums[3] += one.excess * one.excess;
        sums[4] += one.skipped;
        unsigned long long bits = ordered(one.result);
        largest = bits > largest ? bits : largest;
    }
    for (int i = 0; i < 5; ++i) add_up(sums[i], found + i);
    keep_largest(largest, found + 5);
}

extern "C" __global__ void largest_ratios(Values actual, Values pytorch, Values expected, unsigned count, unsigned cols,
                                          double rounding, Allowance first, Allowance second, double* found)
{
    unsigned long long largest[2] = {};
    unsigned step = gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        Element one = element(actual, pytorch, expected, cols, rounding, static_cast<unsigned>(i));
        for (int j = 0; j < 2; ++j) {
            const Allowance& allowed = j ? second : first;
            double most = allowed.constant + allowed.of_result * one.result + allowed.of_excess * one.excess;
            unsigned long long bits = ordered(one.off / most);
            largest[j] = bits > largest[j] ? bits : largest[j];
        }
    }
    for (int j = 0; j < 2; ++j) keep_largest(largest[j], found + j);
}
"""


class _Values(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("row_stride", ctypes.c_longlong), ("kind", ctypes.c_int))


class _Allowance(ctypes.Structure):
    _fields_ = (("constant", ctypes.c_double), ("of_result", ctypes.c_double), ("of_excess", ctypes.c_double))


class CudaErrorPasses:
    """Two of the evaluator's own kernels.

    They read an output, PyTorch's result and the float64 result, and store no errors.
    """

    def __init__(self, arch: str, sms: int) -> None:
        self._squares, self._ratios = (function(SOURCE, name, arch) for name in ("squares", "largest_ratios"))
        self._blocks = BLOCKS_PER_SM * sms

    def takes(self, results: Results) -> bool:
        """Return whether the results are of dtypes and strides that the kernels read."""
        return all(
            values.is_cuda and values.dtype in KINDS and 0 < values.numel() <= MOST_ELEMENTS and _row_stride(values) > 0
            for values in results
        )

    def norms(self, groups: Sequence[Results], rounding: float) -> list[list[float]]:
        found = torch.zeros((len(groups), FIGURES), dtype=torch.float64, device=groups[0][0].device)
        for turn, results in enumerate(groups):
            self._launch(self._squares, results, (ctypes.c_double(rounding),), found[turn])
        norms = []
        for *squares, skipped, largest in found.tolist():
            roots = (math.sqrt(square) if square >= 0 else math.nan for square in squares)
            norms.append([*roots, largest, skipped])
        return norms

    def worst(
        self, groups: Sequence[Results], rounding: float, allowances: Sequence[Sequence[Allowance]]
    ) -> list[list[float]]:
        """Return the largest relative errors; each group has at most two allowances."""
        found = torch.zeros((len(groups), MOST_ALLOWANCES), dtype=torch.float64, device=groups[0][0].device)
        for turn, (results, own) in enumerate(zip(groups, allowances, strict=True)):
            both = [_Allowance(one.constant, one.of_result, one.of_excess) for one in (*own, *own)]
            self._launch(self._ratios, results, (ctypes.c_double(rounding), *both[:MOST_ALLOWANCES]), found[turn])
        ratios: list[list[float]] = found.tolist()
        return [of_group[: len(own)] for of_group, own in zip(ratios, allowances, strict=True)]

    def _launch(self, kernel: object, results: Results, values: tuple[object, ...], found: torch.Tensor) -> None:
        count = results[0].numel()
        cols = count // len(results[0]) if results[0].ndim else 1
        packed = [_Values(one.data_ptr(), _row_stride(one), KINDS[one.dtype]) for one in results]
        sizes = ctypes.c_uint32(count), ctypes.c_uint32(cols)
        blocks = min(self._blocks, -(-count // THREADS))
        launch(kernel, blocks, THREADS, (*packed, *sizes, *values, ctypes.c_void_p(found.data_ptr())))


def _row_stride(values: torch.Tensor) -> int:
    """Return the distance between rows along the first dim, in elements; 0 if a row is not contiguous."""
    if not values.ndim:
        return 1
    row = values[0]
    return values.stride(0) if row.is_contiguous() and values.stride(0) >= row.numel() else 0

"""A kernel's state, found among the symbols of its object file."""

import pytest

from archive.records import Outcome
from evolve.devices import state
from evolve.devices.device import RejectedError


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("counter", "counter"),
        ("_ZL4last", "last"),
        ("_ZN5outer4heldE", "outer::held"),
        ("_ZN5outer5cacheIiEE", "outer::cache"),
        ("_ZN4AxisILi31ELi4EE4EVENE", "Axis::EVEN"),
        ("_ZN4PairI6__halfN5outer4kindELin1EE4EACHE", "Pair::EACH"),
        ("_ZN4KeepIL4Mode2ELb0ENS_4ModeEE3oneE", "Keep::one"),
        ("_ZZ10test_entryE5calls", "calls"),
        ("_ZZ10test_entryE7buf_128_1", "buf_128"),
        ("_ZZN5outer4nextIfEEiT_E4turn", "turn"),
        ("_ZN12_GLOBAL__N_16hiddenE", "hidden"),
        ("$__kept__28", "$__kept__28"),
    ],
)
def test_variables_are_named_as_in_the_source(symbol: str, name: str) -> None:
    assert state.readable(symbol) == name


@pytest.mark.parametrize("symbol", ["malloc", "free", "_Znwm", "_ZnamSt11align_val_t", "_ZdaPv"])
def test_every_allocation_function_is_refused(symbol: str) -> None:
    with pytest.raises(RejectedError, match="allocates memory") as caught:
        state.check_compiled([], ["vprintf", symbol])
    assert caught.value.outcome is Outcome.KEEPS_STATE


@pytest.mark.parametrize(
    "source",
    [
        "__device__ const float zeros[4] = {0};",
        "constexpr __device__ int zeros[2] = {};",
        "static const float\n    zeros[4] = {};",
        "__constant__ float zeros[4] = {0.0f, 0.0f};",
        "constexpr float most = 1.0f, zeros = 0.0f;",
        "const float a = 1, b = -2.5f, zeros[2] = {};",
        "constexpr int width = 16 / sizeof(x_t), zeros = past * width;",
        "constexpr int most = min(a, max(b, c)) * 2, zeros = 0;",
        "template <int N> struct Axis { static constexpr bool one = N == 1, zeros = N > 9; };",
    ],
)
def test_zeros_declared_constant_are_accepted(source: str) -> None:
    state.check_compiled(["zeros"], [], source)


@pytest.mark.parametrize(
    "source",
    [
        "__device__ float zeros[4];",
        "__device__ const float* zeros;",
        "// const float zeros[4]\n__device__ float zeros[4];",
        "const int n = 4; __device__ float zeros[n];",
        "const float *a = p, zeros[4] = {};",
        "__device__ int zeros; void f() { const int turn = max(0, zeros); }",
        "__device__ int zeros; void f() { const int turn = max(0, min(1, zeros)), next = turn + 1; }",
        "const float f() { return 1; } __device__ float zeros[4];",
        "__device__ const float zeros_too[4] = {}; __device__ float zeros[4];",
    ],
)
def test_zeros_that_only_look_constant_are_refused(source: str) -> None:
    with pytest.raises(RejectedError, match="`zeros` keeps its value"):
        state.check_compiled(["zeros"], [], source)

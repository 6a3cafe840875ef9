"""Plans on every device: constants, arguments, launches and grids are as the plan declares."""

import pytest
import torch
from device_kernels import EVERY_DEVICE, bound, made, out_of, rejected, run, single

from archive.records import Outcome
from evolve.devices.device import Device

I32, I64 = torch.int32, torch.int64


@pytest.fixture(scope="module", params=EVERY_DEVICE)
def device(request: pytest.FixtureRequest) -> Device:
    return made(request.param)


def test_specialised_values_are_compile_time_constants(device: Device) -> None:
    body = 'static_assert(wide == 21474836480, "");\nint held[cols];\nheld[3] = (int)(wide >> 31);\ny[0] = held[3];'
    top = 'specialize = ["cols", "wide"]\n[let]\nwide = "cols * 3067833782 + 6"'
    assert out_of(device, single(body, "int* y", block="[1]", top=top), 1, cols=7) == [10]


def test_knobs_are_macros(device: Device) -> None:
    body = "#if WARPS == 4\ny[threadIdx.x / 32] = WARPS * 10;\n#endif"
    kernel = single(body, "int* y", block='["32 * WARPS"]', top="[knobs]\nWARPS = [4, 2]")
    assert out_of(device, kernel, 4) == [40] * 4


def test_integer_arguments_are_passed_in_both_widths(device: Device) -> None:
    body = "y[0] = a; y[1] = b; y[2] = (long long)c;"
    kernel = single(body, "long long* y, int a, long long b, unsigned c", block="[1]")
    assert out_of(device, kernel, 3, I64, a=-5, b=-(2**40), c=2**32 - 1) == [-5, -(2**40), 2**32 - 1]


def test_float_arguments_are_passed_in_both_widths(device: Device) -> None:
    values = out_of(
        device,
        single("y[0] = a; y[1] = b;", "double* y, float a, double b", block="[1]"),
        2,
        torch.float64,
        a=0.5,
        b=0.1,
    )
    assert values == [0.5, 0.1]


def test_a_list_of_tensors_is_passed_by_value(device: Device) -> None:
    text = """/*---
op = "test"
[[launch]]
entry = "sum_all"
grid = [1]
block = [32]
args = [["a", "b", "c"], "y", "n"]
---*/
extern "C" __global__ void sum_all(List<const float*, 3> inputs, float* y, int n) {
    float sum = 0.f;
    for (int i = 0; i < 3; ++i) sum += inputs[i][threadIdx.x];
    y[threadIdx.x] = sum * n;
}
"""
    tensors = {name: torch.randn(32) for name in "abc"} | {"y": torch.zeros(32)}
    run(device, text, tensors, {"n": 2})
    assert torch.allclose(tensors["y"], 2 * (tensors["a"] + tensors["b"] + tensors["c"]))


TWO_STEPS = """/*---
op = "test"
[workspace]
scratch = {{ shape = ["n"], dtype = "float32" }}
count = {{ shape = [1], dtype = "int32", zero = true }}
[[launch]]
entry = "first"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "scratch", "count", "n"]
[[launch]]
entry = "nothing"
grid = ["n - {n}"]
block = [64]
args = ["y"]
[[launch]]
entry = "second"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["scratch", "count", "y", "n"]
---*/
extern "C" __global__ void first(const float* x, scratch_t* scratch, int* count, int n) {{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) {{ scratch[i] = x[i] * 2; atomicAdd(count, 1); }}
}}
extern "C" __global__ void nothing(float* y) {{ y[threadIdx.x] = -1; }}
extern "C" __global__ void second(const scratch_t* scratch, const int* count, float* y, int n) {{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) y[i] = scratch[n - 1 - i] + *count;
}}
"""


def test_launches_run_in_order_share_the_workspace_and_skip_an_empty_grid(device: Device) -> None:
    x, y = torch.randn(100), torch.zeros(100)
    run(device, TWO_STEPS.format(n=100), {"x": x, "y": y}, {"n": 100})
    assert torch.equal(y, x.flip(0) * 2 + 100)


def test_a_zeroed_workspace_is_zeroed_at_every_launch(device: Device) -> None:
    x, y = torch.randn(100), torch.zeros(100)
    plan = bound(TWO_STEPS.format(n=100), {"x": x, "y": y}, {"n": 100})
    program = device.compile(plan)
    there = {name: tensor.to(device.torch_device) for name, tensor in {"x": x, "y": y}.items()}
    there["scratch"] = torch.zeros(100, device=device.torch_device)
    there["count"] = torch.full((1,), 9, dtype=I32, device=device.torch_device)
    for _ in range(3):
        device.run(program, there)
    assert there["count"].item() == 100


GRID_BARRIER = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void test_entry(int* y, int* total) {
    cg::grid_group grid = cg::this_grid();
    for (int round = 0; round < 5; ++round) {
        if (threadIdx.x == 0) atomicAdd(total, 1);
        grid.sync();
        if (threadIdx.x == 0) y[round * gridDim.x + blockIdx.x] = *(volatile int*)total;
        grid.sync();
    }
}
"""


SPIN_BARRIER = """
__device__ void wait_for_grid(int* counter, int target) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(counter, 1);
        while (*(volatile int*)counter < target) {}
        __threadfence();
    }
    __syncthreads();
}
extern "C" __global__ void test_entry(int* y, int* total, int* counter) {
    for (int round = 0; round < 5; ++round) {
        if (threadIdx.x == 0) atomicAdd(total, 1);
        wait_for_grid(counter, (2 * round + 1) * gridDim.x);
        if (threadIdx.x == 0) y[round * gridDim.x + blockIdx.x] = *(volatile int*)total;
        wait_for_grid(counter, (2 * round + 2) * gridDim.x);
    }
}
"""


def cooperative(source: str, args: str, grid: int) -> str:
    return (
        f'/*---\nop = "test"\n[workspace]\ncounter = {{ shape = [1], dtype = "int32", zero = true }}\n[[launch]]\n'
        f'entry = "test_entry"\ngrid = [{grid}]\nblock = [64]\nargs = {args}\ncooperative = true\n---*/\n{source}'
    )


def test_the_blocks_of_a_cooperative_grid_wait_for_each_other_at_grid_barriers(device: Device) -> None:
    y, total = torch.zeros(5 * 8, dtype=I32), torch.zeros(1, dtype=I32)
    run(device, cooperative(GRID_BARRIER, '["y", "total"]', 8), {"y": y, "total": total})
    assert y.view(5, 8).tolist() == [[8 * (round_ + 1)] * 8 for round_ in range(5)]


def test_a_cooperative_grid_may_spin_on_an_atomic_counter(device: Device) -> None:
    y, total = torch.zeros(5 * 4, dtype=I32), torch.zeros(1, dtype=I32)
    run(device, cooperative(SPIN_BARRIER, '["y", "total", "counter"]', 4), {"y": y, "total": total})
    assert y.view(5, 4).tolist() == [[4 * (round_ + 1)] * 4 for round_ in range(5)]


def test_a_cooperative_grid_that_cannot_be_resident_is_illegal(device: Device) -> None:
    tensors = {"y": torch.zeros(1, dtype=I32), "total": torch.zeros(1, dtype=I32)}
    error = rejected(device, cooperative(GRID_BARRIER, '["y", "total"]', 100_000), tensors)
    assert error.outcome == Outcome.ILLEGAL


def test_time_is_positive(device: Device) -> None:
    y = torch.zeros(1, dtype=I32, device=device.torch_device)
    program = device.compile(bound(single("y[0] = 1;", "int* y"), {"y": y}))
    assert device.time(lambda: program.launch({"y": y})) > 0


def test_a_program_can_run_again_with_other_tensors(device: Device) -> None:
    kernel = single("y[threadIdx.x] += threadIdx.x;", "int* y")
    program = device.compile(bound(kernel, {"y": torch.zeros(32, dtype=I32)}))
    first, second = (torch.zeros(32, dtype=I32, device=device.torch_device) for _ in range(2))
    device.run(program, {"y": first})
    device.run(program, {"y": second})
    device.run(program, {"y": second})
    assert (first.tolist(), second.tolist()) == (list(range(32)), list(range(0, 64, 2)))

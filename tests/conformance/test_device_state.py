"""Kernel state in variables or shared memory, which no device may preserve from one call to the next."""

import pytest
import torch
from device_kernels import EVERY_DEVICE, bound, made, out_of, rejected, run, single

from archive.records import Outcome
from evolve.devices.device import Device, RejectedError

F32, I32 = torch.float32, torch.int32
MAGIC = 123456789


@pytest.fixture(scope="module", params=EVERY_DEVICE)
def device(request: pytest.FixtureRequest) -> Device:
    return made(request.param)


def with_globals(declared: str, kernel: str) -> str:
    return kernel.replace('extern "C" __global__', f'{declared}\nextern "C" __global__')


@pytest.mark.parametrize(
    ("declared", "body", "name"),
    [
        ("__device__ int counter;", "y[0] = counter++;", "counter"),
        ("__device__ int counter = 0;", "y[0] = atomicAdd(&counter, 1);", "counter"),
        ("static __device__ float last[64];", "y[0] = last[3]; last[3] = y[1];", "last"),
        ("namespace { __device__ unsigned hidden; }", "y[0] = hidden++;", "hidden"),
        ("namespace outer { __device__ double held[2]; }", "y[0] = outer::held[1]; outer::held[1] = 1;", "outer::held"),
        ("template <class T> __device__ T cache;", "y[0] = cache<int>; cache<int> = 5;", "cache"),
        ("", "static int calls; y[0] = calls++;", "calls"),
        ("__device__ int next() { static int turn = 0; return turn++; }", "y[0] = next();", "turn"),
        ("__device__ const int* seen;", "y[0] = seen == y; seen = y;", "seen"),
    ],
)
def test_a_variable_that_outlives_the_call_is_refused_by_name(
    device: Device, declared: str, body: str, name: str
) -> None:
    error = rejected(device, with_globals(declared, single(body, "int* y")), {"y": torch.zeros(64, dtype=I32)})
    assert error.outcome is Outcome.KEEPS_STATE
    assert f"`{name}`" in error.log
    assert "[workspace]" in error.log


@pytest.mark.parametrize(
    "body",
    [
        "int* kept = (int*)malloc(64); kept[threadIdx.x % 16] = n; y[0] = kept[n];",
        "int* kept = new int[16]; kept[threadIdx.x % 16] = n; y[0] = kept[n];",
    ],
    ids=["malloc", "new"],
)
def test_allocating_memory_is_refused(device: Device, body: str) -> None:
    error = rejected(device, single(body, "int* y, int n"), {"y": torch.zeros(32, dtype=I32)}, n=3)
    assert error.outcome is Outcome.KEEPS_STATE
    assert "allocates memory" in error.log


@pytest.mark.parametrize(
    ("declared", "within"),
    [
        ("__device__ const float t[4] = {1, 2, 3, 4};", ""),
        ("__device__ float t[4] = {1, 2, 3, 4};", ""),
        ("constexpr float t[4] = {1, 2, 3, 4};", ""),
        ("__constant__ float t[4] = {1, 2, 3, 4};", ""),
        ("static const float t[4] = {1, 2, 3, 4};", ""),
        ("namespace { constexpr float t[4] = {1, 2, 3, 4}; }", ""),
        ("", "static const float t[4] = {1, 2, 3, 4};"),
        ("", "constexpr float t[4] = {1, 2, 3, 4};"),
        ("__device__ const float z[4] = {0, 0, 0, 0};", "float t[4]; for (int j = 0; j < 4; ++j) t[j] = j + 1 + z[j];"),
    ],
)  # fmt: skip
def test_tables_of_constants_are_not_state(device: Device, declared: str, within: str) -> None:
    body = f'{within}\ny[threadIdx.x] = t[(threadIdx.x + n) % 4];\nif (n > 9) printf("%d", n);'
    y = torch.zeros(32)
    kernel = with_globals(declared, single(body, "float* y, int n"))
    program = device.compile(bound(kernel, {"y": y}, {"n": 1}))
    there = y.to(device.torch_device)
    for _ in range(2):
        device.run(program, {"y": there})
    assert there.tolist() == [2.0, 3.0, 4.0, 1.0] * 8


CHANGED_TABLE = with_globals(
    "__device__ float table[4] = {1, 2, 3, 4};",
    single("y[threadIdx.x] += table[threadIdx.x % 4]; if (y[0] > 2.5f) table[2] = -1;", "float* y"),
)


def test_a_table_that_the_kernel_changes_counts_as_state(device: Device) -> None:
    error = rejected(device, CHANGED_TABLE, {"y": torch.full((32,), 5.0)})
    assert error.outcome is Outcome.KEEPS_STATE
    assert "`table`" in error.log


def test_a_table_that_a_later_call_changes_is_found_at_that_call(device: Device) -> None:
    y = torch.zeros(32, device=device.torch_device)
    program = device.compile(bound(CHANGED_TABLE, {"y": y}))
    for _ in range(2):
        device.run(program, {"y": y})
    with pytest.raises(RejectedError, match="`table`") as caught:
        device.run(program, {"y": y})
    assert caught.value.outcome is Outcome.KEEPS_STATE


def test_a_table_that_only_a_timed_call_changes_counts_as_state_too(device: Device) -> None:
    y = torch.zeros(32, device=device.torch_device)
    program = device.compile(bound(CHANGED_TABLE, {"y": y}))
    device.run(program, {"y": y})
    y.fill_(7.0)
    with pytest.raises(RejectedError, match="`table`"):
        device.time(lambda: program.launch({"y": y}))


def test_a_changed_table_has_its_declared_values_in_the_kernels_next_program(device: Device) -> None:
    rejected(device, CHANGED_TABLE, {"y": torch.full((32,), 5.0)})
    y = torch.zeros(32)
    run(device, CHANGED_TABLE, {"y": y})
    assert y.tolist() == [1.0, 2.0, 3.0, 4.0] * 8


SHARED_MEMORY = {
    "dynamic": ("", "extern __shared__ int s[];"),
    "static": ("", "__shared__ int s[4096];"),
    "outside functions": ("__shared__ int s[4096];", ""),
    "by a macro": ("#define HELD __shared__ int s[4096]", "HELD;"),
}


@pytest.mark.parametrize("where", SHARED_MEMORY)
def test_shared_memory_contains_nothing_from_the_last_call(device: Device, where: str) -> None:
    declared, within = SHARED_MEMORY[where]
    body = f"""{within}
    volatile int* held = s;
    y[blockIdx.x * 1024 + threadIdx.x] = held[threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.x; i < 4096; i += 1024) held[i] = {MAGIC};"""
    kernel = with_globals(declared, single(body, "int* y", block="[1024]", grid="[300]", more="shared = 16384"))
    y = torch.zeros(300 * 1024, dtype=I32, device=device.torch_device)
    program = device.compile(bound(kernel, {"y": y}))
    for _ in range(3):
        device.run(program, {"y": y})
        assert int((y.view(300, 1024)[:4] == MAGIC).sum()) == 0  # each of these four blocks is the first on its SM


def test_shared_memory_differs_from_call_to_call(device: Device) -> None:
    body = "extern __shared__ int s[];\ny[threadIdx.x] = ((volatile int*)s)[threadIdx.x];"
    kernel = single(body, "int* y", more="shared = 128")
    y = torch.zeros(32, dtype=I32, device=device.torch_device)
    program = device.compile(bound(kernel, {"y": y}))
    found = set()
    for _ in range(5):
        device.run(program, {"y": y})
        found.add(tuple(y.tolist()))
    assert len(found) > 1


def test_uninitialised_shared_memory_makes_a_sum_wrong(device: Device) -> None:
    body = """
    __shared__ float sum[2];
    atomicAdd(&sum[threadIdx.x % 2], 1.0f);
    __syncthreads();
    y[threadIdx.x] = sum[threadIdx.x % 2];"""
    values = torch.tensor(out_of(device, single(body, "float* y"), 32, F32))
    assert not (values < 1e30).any()

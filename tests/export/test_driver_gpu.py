"""Launches through the driver by ctypes on a GPU: behaviour that a made-up driver cannot show."""

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from archive.kernel import Bound, BoundLaunch, Pointer, Pointers, Value
from evolve.devices.cuda.translation import PRELUDE
from evolve.devices.device import RejectedError
from evolve.export.template.driver import DriverError, Program, despite_captures, driver, program, use_context
from evolve.export.template.launching import Gpus
from evolve.export.template.nvrtc import nvrtc

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

FILL = 'extern "C" __global__ void f(float* out, int n, float value) { if (threadIdx.x < n) out[threadIdx.x] = value; }'
SHARED = """
extern "C" __global__ void f(int* out, int n) {
    extern __shared__ int kept[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = i;
    __syncthreads();
    int wrong = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) wrong += kept[n - 1 - i] != n - 1 - i;
    atomicAdd(out, wrong ? 1000 : 1);
}
"""
NUMBERS = """
extern "C" __global__ void f(double* out, int a, long long b, float c, double d, unsigned e, List<double*, 2> list) {
    out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; list[1][5] = list[0] == list[1];
}
"""
MEETING = """
extern "C" __global__ void f(int* met) {
    if (threadIdx.x == 0) atomicAdd(met, 1);
    while (atomicAdd(met, 0) < gridDim.x) { }
}
"""


def present() -> Any:
    return Gpus().info(torch.device("cuda", torch.cuda.current_device()))


def image(code: str, arch: str = "") -> bytes:
    return nvrtc().compiled(PRELUDE + code, arch or present().arch)


def bound(code: str, *launches: BoundLaunch) -> Bound:
    kernel: Any = SimpleNamespace(source=code)
    return Bound(kernel, (), (), (), launches)


def launch(*args: Value, grid: int = 1, threads: int = 64, shared: int = 0, cooperative: bool = False) -> BoundLaunch:
    return BoundLaunch(0, "f", (grid, 1, 1), (threads, 1, 1), shared, args, cooperative)


def loaded(code: str, *launches: BoundLaunch) -> Program:
    torch.cuda.init()
    with despite_captures():
        use_context(torch.cuda.current_device())
        return program(bound(code, *launches), [image(code)], present().sms)


def enqueue(made: Program, *tensors: torch.Tensor) -> None:
    made.enqueue([x.data_ptr() for x in tensors], torch.cuda.current_device())


def fill(value: float, *, code: str = FILL) -> Program:
    return loaded(code, launch(Pointer("out"), 8, value))


def in_a_thread(work: Callable[[], object]) -> None:
    """Run work in a new thread, and raise its error here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def test_numbers_of_every_size_are_passed_to_the_kernel() -> None:
    args = (Pointer("out"), -7, 2**40, 0.25, 1e-300, 3_000_000_000, Pointers(("out", "out")))
    out = torch.zeros(6, dtype=torch.float64, device="cuda")
    made = loaded(NUMBERS, launch(*args, threads=1))
    assert made.block.names == ["out", "out", "out"]
    enqueue(made, out, out, out)
    assert out.tolist() == [-7.0, float(2**40), 0.25, 1e-300, 3e9, 1.0]


def test_a_number_is_read_when_a_launch_is_enqueued_and_not_later() -> None:
    made, outs = fill(1.0), [torch.zeros(8, device="cuda") for _ in range(3)]
    torch.cuda._sleep(20_000_000)
    for value, out in enumerate(outs):
        made.block.set(0, 2, float(value))
        enqueue(made, out)
    assert [out.tolist() for out in outs] == [[float(value)] * 8 for value in range(3)]


def test_a_kernel_gets_more_shared_memory_than_48_kb_and_keeps_it() -> None:
    large, small = (loaded(SHARED, launch(Pointer("out"), size // 4, shared=size)) for size in (100_000, 60_000))
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for made in (small, large, small, large):
        enqueue(made, out)
    assert out.item() == 4 * 64


def test_the_blocks_of_a_cooperative_grid_wait_for_each_other() -> None:
    met = torch.zeros(1, dtype=torch.int32, device="cuda")
    enqueue(loaded(MEETING, launch(Pointer("met"), grid=present().sms, cooperative=True)), met)
    assert met.item() == present().sms


def test_a_cooperative_grid_that_is_too_large_is_refused() -> None:
    with pytest.raises(RejectedError, match="can be resident"):
        loaded(MEETING, launch(Pointer("met"), grid=100 * present().sms, cooperative=True))


def test_after_a_cubin_for_another_gpu_the_next_one_is_loaded() -> None:
    fill(0.0)
    images = [image(FILL, "sm_100" if present().arch == "sm_80" else "sm_80"), image(FILL)]
    made = program(bound(FILL, launch(Pointer("out"), 8, 2.0)), images, present().sms)
    out = torch.zeros(8, device="cuda")
    enqueue(made, out)
    assert out.tolist() == [2.0] * 8


def test_a_launch_that_the_driver_refuses_is_an_error_and_the_next_one_works() -> None:
    out = torch.zeros(8, device="cuda")
    with pytest.raises(DriverError, match="a kernel cannot be launched"):
        enqueue(loaded(SHARED, launch(Pointer("out"), 8, shared=48 * 1024, grid=2**31 - 1, threads=1025)), out)
    enqueue(fill(3.0), out)
    assert out.tolist() == [3.0] * 8


def test_a_new_thread_without_a_context_launches() -> None:
    made, out = fill(4.0), torch.zeros(8, device="cuda")

    def work() -> None:
        context = ctypes.c_void_p()
        driver().cuCtxGetCurrent(ctypes.byref(context))
        assert not context.value
        enqueue(made, out)

    in_a_thread(work)
    torch.cuda.synchronize()
    assert out.tolist() == [4.0] * 8


def test_a_new_thread_without_a_context_loads() -> None:
    out = torch.zeros(8, device="cuda")
    in_a_thread(lambda: enqueue(fill(5.0, code=FILL + "// loaded in a thread"), out))
    torch.cuda.synchronize()
    assert out.tolist() == [5.0] * 8


def test_the_thread_of_autograd_launches() -> None:
    made = fill(6.0)
    threads = []

    class Filled(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            threads.append(threading.get_ident())
            out = torch.empty_like(grad)
            enqueue(made, out)
            return out

    x = torch.zeros(8, device="cuda", requires_grad=True)
    apply: Any = Filled.apply
    apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0] * 8
    assert threads != [threading.get_ident()]


def test_a_launch_is_on_the_current_stream() -> None:
    made, out, side = fill(7.0), torch.zeros(8, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        enqueue(made, out)
    assert out.tolist() == [0.0] * 8
    side.synchronize()
    assert out.tolist() == [7.0] * 8


def test_a_module_is_loaded_and_launched_while_a_graph_is_captured() -> None:
    out, graph = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        enqueue(fill(8.0, code=FILL + "// loaded in a capture"), out)
    assert out.tolist() == [0.0] * 8
    graph.replay()
    assert out.tolist() == [8.0] * 8


def test_a_module_with_much_shared_memory_is_loaded_while_a_graph_is_captured() -> None:
    out, graph = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        enqueue(loaded(SHARED + "// in a capture", launch(Pointer("out"), 25_000, shared=100_000)), out)
    graph.replay()
    assert out.item() == 64


def test_a_cooperative_grid_is_captured() -> None:
    met, graph = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.cuda.CUDAGraph()
    made = loaded(MEETING, launch(Pointer("met"), grid=present().sms, cooperative=True))
    with torch.cuda.graph(graph):
        met.zero_()
        enqueue(made, met)
    graph.replay()
    graph.replay()
    assert met.item() == present().sms


def test_a_module_is_loaded_while_another_thread_captures_a_graph() -> None:
    out, other, graph = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()
    side, made = torch.cuda.Stream(), fill(9.0)
    with torch.cuda.graph(graph):
        enqueue(made, out)

        def work() -> None:
            with torch.cuda.stream(side):
                enqueue(fill(10.0, code=FILL + "// loaded beside a capture"), other)

        in_a_thread(work)
    graph.replay()
    torch.cuda.synchronize()
    assert (out.tolist(), other.tolist()) == ([9.0] * 8, [10.0] * 8)


def test_a_second_gpu_has_its_own_module() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    outs = []
    for device in (0, 1, 0):
        with torch.cuda.device(device):
            outs.append(torch.zeros(8, device="cuda"))
            enqueue(fill(float(device)), outs[-1])
    assert [out.tolist() for out in outs] == [[0.0] * 8, [1.0] * 8, [0.0] * 8]

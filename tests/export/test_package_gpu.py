"""An exported package on a GPU. Its measurements are made up, so that kernels are chosen.

The kernels run on the GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_records import LONGER, exported

from archive.records import DeviceInfo

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

BEGIN = """
import threading, torch, warnings
import primitives_on_gpu as primitives

torch.manual_seed(0)

def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)

def kernel(name, *arguments, **named):
    return primitives.explain(name, *arguments, **named).kernel
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a package whose kernels win at any size."""
    return package(tmp_path_factory.mktemp("package"), "softmax", "rms_norm", "topk", longer=LONGER)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a package whose kernels are so short that the host's time counts."""
    names = ("softmax", "softmax_backward", "batch_norm", "batch_norm_backward")
    return package(tmp_path_factory.mktemp("short"), *names, longer=1.0)


def package(folder: Path, *names: str, longer: float) -> Path:
    properties = torch.cuda.get_device_properties(0)
    limits = (properties.multi_processor_count, properties.shared_memory_per_block)
    device = DeviceInfo("cuda", properties.name, f"sm_{properties.major}{properties.minor}", *limits)
    exported(folder, *names, package="primitives_on_gpu", device=device, longer=longer)
    return folder / "out"


def run(folder: Path, code: str) -> None:
    """Run the code in its own process, so that a GPU fault stays there."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", BEGIN + code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_a_kernel_agrees_with_pytorch(folder: Path, dtype: str) -> None:
    run(
        folder,
        f"""
x, weight = rows(8192, 4096, dtype=torch.{dtype}), rows(4096, dtype=torch.{dtype})
assert kernel("softmax", x, -1) and kernel("rms_norm", x, (4096,), weight, 1e-6)
torch.testing.assert_close(primitives.softmax(x, -1), torch.softmax(x, -1))
torch.testing.assert_close(
    primitives.rms_norm(x, (4096,), weight, 1e-6), torch.nn.functional.rms_norm(x, (4096,), weight, 1e-6)
)
""",
    )


def test_a_kernel_with_two_outputs_agrees_with_pytorch(folder: Path) -> None:
    run(
        folder,
        """
x = rows(512, 1024, dtype=torch.float32)
assert kernel("topk", x, k=8)
values, indices = primitives.topk(x, k=8)
assert torch.equal(values, torch.topk(x, 8).values) and torch.equal(x.gather(1, indices), values)
""",
    )


def test_sizes_that_were_not_measured_are_computed_by_the_nearest_kernel(folder: Path) -> None:
    run(
        folder,
        """
for shape in ((1, 1), (31, 33), (7, 257), (300, 5000)):
    x = rows(*shape)
    assert kernel("softmax", x, -1)
    torch.testing.assert_close(primitives.softmax(x, -1), torch.softmax(x, -1))
""",
    )


def test_a_kernel_runs_on_the_current_stream(folder: Path) -> None:
    run(
        folder,
        """
x = rows(4096, 4096)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    primitives.softmax(x.mul(2), -1)  # compiles the kernel and caches memory, so that later calls do not wait
torch.cuda.synchronize()
with torch.cuda.stream(side):
    torch.cuda._sleep(200_000_000)
    late = x.mul(2)  # on any other stream, the kernel would read this before it is written
    out = primitives.softmax(late, -1)
    assert not side.query()
side.synchronize()
torch.testing.assert_close(out, torch.softmax(x.mul(2), -1))
""",
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("rows(0, 512)", "empty"),
        ("rows(256, 512, dtype=torch.float64)", "measured at float64"),
    ],
)
def test_pytorch_runs_if_no_kernel_can(folder: Path, make: str, reason: str) -> None:
    run(
        folder,
        f"""
x = {make}
explanation = primitives.explain("softmax", x, -1)
assert not explanation.kernel and "{reason}" in explanation.reason, explanation
assert torch.equal(primitives.softmax(x, -1), torch.softmax(x, -1))
""",
    )


@pytest.mark.parametrize(
    "make",
    [
        "rows(256, 512).t()",
        "rows(1 + 256 * 512)[1:].view(256, 512)",
        "rows(256, 512).requires_grad_()",
        "rows(2, 256, 512)",
    ],
)
def test_a_kernel_handles_strides_any_alignment_gradients_and_more_dims(folder: Path, make: str) -> None:
    run(
        folder,
        f"""
x = {make}
assert kernel("softmax", x, -1)
torch.testing.assert_close(primitives.softmax(x, -1), torch.softmax(x, -1))
""",
    )


def test_gradients_are_computed_through_a_kernel(folder: Path) -> None:
    run(
        folder,
        """
x = rows(256, 512, dtype=torch.float32).requires_grad_()
primitives.softmax(x, -1)[:, 0].sum().backward()
assert x.grad is not None
with torch.no_grad():
    assert kernel("softmax", x, -1)
""",
    )


def test_a_short_call_with_gradients_is_tried_and_has_the_gradients_of_pytorch(short: Path) -> None:
    run(
        short,
        """
for _ in range(4):
    x, grad = (rows(512, 1024, dtype=torch.float32) for _ in range(2))
    x.requires_grad_()
    got, exact = (torch.autograd.grad(f(x, -1), x, grad)[0] for f in (primitives.softmax, torch.softmax))
    torch.testing.assert_close(got, exact)
found = primitives.explain("softmax", x, -1)
assert found.kernel or "host's time" in found.reason, found
""",
    )


def test_the_trial_of_a_batch_norm_leaves_its_statistics_alone(short: Path) -> None:
    run(
        short,
        """
ours, theirs = ([torch.zeros(32, device="cuda"), torch.ones(32, device="cuda")] for _ in range(2))
weight, bias = (rows(32, dtype=torch.float32).requires_grad_() for _ in range(2))
for _ in range(4):
    x, grad = (rows(16, 32, 28, 28, dtype=torch.float32) for _ in range(2))
    x.requires_grad_()
    exact = torch.nn.functional.batch_norm(x, *theirs, weight, bias, True)
    out = primitives.batch_norm(x, *ours, weight, bias, True)
    torch.testing.assert_close(out, exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours, theirs)
    got, expected = (torch.autograd.grad(one, (x, weight, bias), grad) for one in (out, exact))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
""",
    )


def test_a_cuda_graph_captures_the_kernel(folder: Path) -> None:
    run(
        folder,
        """
x = rows(1024, 4096)
primitives.softmax(x, -1)
warnings.simplefilter("error")  # a warning would say that PyTorch is captured instead
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = primitives.softmax(x, -1)
x.copy_(rows(1024, 4096))
graph.replay()
torch.testing.assert_close(out, torch.softmax(x, -1))
""",
    )


def test_a_first_call_under_capture_captures_the_kernel(folder: Path) -> None:
    run(
        folder,
        """
x = rows(1024, 4096)
torch.softmax(x, -1)
warnings.simplefilter("error")  # a warning would say that PyTorch is captured instead
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = primitives.softmax(x, -1)
    assert kernel("softmax", x, -1)
x.copy_(rows(1024, 4096))
graph.replay()
torch.testing.assert_close(out, torch.softmax(x, -1))
assert kernel("softmax", x, -1)
""",
    )


def test_threads_share_a_kernel(folder: Path) -> None:
    run(
        folder,
        """
inputs = [rows(128, 512 + 8 * (i % 2)) for i in range(8)]
outputs = [[] for _ in inputs]

def work(i):
    with torch.cuda.stream(torch.cuda.Stream()):
        outputs[i] = [primitives.softmax(inputs[i], -1) for _ in range(200)]

torch.cuda.synchronize()
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
torch.cuda.synchronize()
for x, outs in zip(inputs, outputs, strict=True):
    assert len(outs) == 200
    for out in outs:
        torch.testing.assert_close(out, torch.softmax(x, -1))
""",
    )


def test_torch_compile_traces_one_graph(folder: Path) -> None:
    run(
        folder,
        """
warnings.simplefilter("ignore")
x = rows(256, 512)
compiled = torch.compile(primitives.softmax, fullgraph=True)
torch.testing.assert_close(compiled(x, -1), torch.softmax(x, -1))
""",
    )

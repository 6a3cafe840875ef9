"""A small op with kernels, verdicts and requests, for tests of prompts, replies and reports."""

from collections.abc import Mapping

import torch

from archive.kernel import Kernel, parse
from archive.records import DeviceInfo, Evaluation, Measurement, Outcome, Resources
from evolve.prompting.kernel_format import EXAMPLE
from evolve.request import Candidate, Request
from reference_ops.op import Op, tensors, workloads

GPU = DeviceInfo(
    "cuda", "NVIDIA H200", "sm_90a", 132, 232_448, 52_428_800, copy_gb_s=4270.0, tflops=(("bfloat16", 715.0),)
)
EMULATOR = DeviceInfo("emulated", "emulated", "host", 4, 49_152)


def center_rows(x: torch.Tensor, shift: float) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True) + shift


def flops(dims: Mapping[str, int]) -> int:
    return 3 * dims["rows"] * dims["cols"]


OP = Op(
    name="center_rows",
    reference=center_rows,
    inputs=tensors(x="rows cols"),
    outputs=tensors(out="rows cols"),
    gpu=workloads("float32 bfloat16", {"rows": 8192, "cols": 1024}, shift=0.5),
    emulated=workloads("float32", {"rows": 4, "cols": 64}, shift=0.5),
    awkward=workloads("float32", {"rows": 1, "cols": 33}, shift=0.5),
    flops=flops,
    note="Every row minus its mean.",
)
KERNEL_TEXT = EXAMPLE
KERNEL = parse(KERNEL_TEXT)
SLOW_TEXT = """\
/*---
op = "center_rows"
note = "one thread per row"

[[launch]]
entry = "center"
grid = ["ceil_div(rows, 64)"]
block = [64]
args = ["x", "out", "rows", "cols", "shift"]
---*/
extern "C" __global__ void center(const x_t* x, out_t* out, int rows, int cols, float shift) {
    const int row = blockIdx.x * 64 + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = 0; i < cols; ++i) sum += float(x[row * cols + i]);
    for (int i = 0; i < cols; ++i) out[row * cols + i] = out_t(float(x[row * cols + i]) - sum / cols + shift);
}
"""
BROKEN_TEXT = SLOW_TEXT.replace("one thread per row", "one thread per row, hastily").replace("float sum = 0.0f", "")
COMPILE_ERROR = 'kernel.cu(15): error: identifier "sum" is undefined'


def passed(kernel: Kernel, device: DeviceInfo = GPU) -> Candidate:
    """Return the kernel with an evaluation that passed on one workload; it does not accept the others."""
    timed, *others = OP.workloads(device.kind)
    measurement = Measurement(timed.key, 21.5, 21.0, 22.0, 50, eager_us=64.0, compile_us=40.25, floor_us=15.75)
    evaluation = Evaluation(
        kernel.id,
        OP.name,
        device,
        Outcome.PASSED,
        "",
        measurements=(measurement,),
        skipped=tuple(workload.key for workload in others),
        resources=(Resources(kernel.plan.launches[0].entry, 40, 0, 16),),
    )
    return Candidate(kernel, evaluation)


def failed(kernel: Kernel, device: DeviceInfo = GPU, log: str = COMPILE_ERROR) -> Candidate:
    return Candidate(kernel, Evaluation(kernel.id, OP.name, device, Outcome.COMPILE_ERROR, log))


def request(
    wanted: int = 4,
    seed: int = 0,
    parents: tuple[Candidate, ...] = (),
    failures: tuple[Candidate, ...] = (),
    device: DeviceInfo = GPU,
) -> Request:
    return Request(
        OP,
        device,
        wanted,
        seed,
        run="run-1",
        population=parents,
        parents=parents,
        failures=failures,
        known=frozenset(candidate.kernel.id for candidate in (*parents, *failures)),
    )

"""Peak memory of an evaluation, which matters because large ops barely fit on a GPU."""

import random
from collections import deque
from collections.abc import Callable, Mapping

import pytest
import torch
from scripted_device import INFO, ScriptedDevice, ScriptedProgram
from torch.profiler import ProfilerActivity, profile

from archive.binding import bind
from archive.kernel import parse
from evolve.devices.device import Program, RejectedError
from evolve.evaluation import buffers, op_check, timing, truth
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.buffers import Arena, bytes_held
from evolve.evaluation.check import Inspector
from evolve.evaluation.op_check import blind_spots
from evolve.op_on_device import point
from reference_ops.op import Op, tensors, workloads

ROWS, COLUMNS = 1024, 768
BASELINES = Baselines(2000.0, None, None)


def made(reference: Callable[..., torch.Tensor], inputs: Mapping[str, str], output: str) -> Op:
    sizes = {"rows": ROWS, "columns": COLUMNS}
    return Op(
        name=reference.__name__,
        reference=reference,
        inputs=tensors(**inputs),
        outputs=tensors(out=output),
        gpu=workloads("float32", sizes),
        emulated=workloads("float32", sizes),
        awkward=(),
        flops=lambda dims: dims["rows"] * dims["columns"],
    )


def rectified(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def summed(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def spread(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:, None] * y


WHOLE = "rows columns"
OPS = [
    made(rectified, {"x": WHOLE}, WHOLE),
    made(summed, {"x": WHOLE}, "rows"),
    made(added, {"x": WHOLE, "y": WHOLE}, WHOLE),
    made(spread, {"x": "rows", "y": "columns"}, WHOLE),
]
QUICK = OPS[1:3]  # the quick run tests a reduction and an op of two tensors
ops = pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name, marks=[] if op in QUICK else pytest.mark.exhaustive) for op in OPS]
)


def a_little_off(op: Op) -> Program:
    """Return a program whose small, reproducible error makes a comparison go through all its steps."""

    def work(given: Mapping[str, torch.Tensor]) -> None:
        right = op.call({spec.name: given[spec.name] for spec in op.inputs}, op.gpu[0])[0]
        noise = torch.randn(right.shape, generator=torch.Generator().manual_seed(0))
        given["out"].copy_(right * (1 + 3e-7 * noise))

    return program(op, work)


def exact(op: Op) -> Program:
    """Return a program that computes the same as PyTorch."""

    def work(given: Mapping[str, torch.Tensor]) -> None:
        given["out"].copy_(op.call({spec.name: given[spec.name] for spec in op.inputs}, op.gpu[0])[0])

    return program(op, work)


def program(op: Op, work: Callable[[Mapping[str, torch.Tensor]], None]) -> Program:
    text = f'/*---\nop = "{op.name}"\n[[launch]]\nentry = "k"\ngrid = [1]\nblock = [1]\nargs = ["out"]\n---*/\n'
    return ScriptedProgram(bind(parse(text + "extern void k(float* out);"), point(op, op.gpu[0], INFO)), work)


def checked(op: Op) -> None:
    with pytest.raises(RejectedError, match=r"off by more than|root mean square"):
        inspector().check(a_little_off(op), op, op.gpu[0], closely=True)


def timed(op: Op) -> None:
    with pytest.raises(RejectedError, match="when timed"):
        timing.measure(inspector(), a_little_off(op), op, op.gpu[0], BASELINES)


def checked_exact(op: Op) -> None:
    checks = inspector()
    checks.check(exact(op), op, op.gpu[0], closely=True)
    checks.check_on(exact(op), op, op.gpu[0], op.extremes)


def timed_exact(op: Op) -> None:
    timing.measure(inspector(), exact(op), op, op.gpu[0], BASELINES)


def looked_at(op: Op) -> None:
    assert blind_spots(op, op.gpu[0], 1, "cpu", quick=True) == ()


def inspector() -> Inspector:
    device = ScriptedDevice(clock=lambda: 2000.0, runs=deque(maxlen=0))  # recorded runs would keep tensors in memory
    return Inspector(device, Arena("cpu"), random.Random(1), [], lambda _phase: None)


def out_of_memory(_: truth.Truth) -> None:
    raise torch.OutOfMemoryError


def most_held(work: Callable[[Op], None], op: Op) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work(op)
    events = seen.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


@pytest.mark.parametrize("work", [checked, pytest.param(looked_at, marks=pytest.mark.exhaustive)])
@ops
def test_an_evaluation_holds_no_more_memory_than_its_bound(op: Op, work: Callable[[Op], None]) -> None:
    assert 0 < most_held(work, op) <= bytes_held(op, op.gpu[0]) + 2**20


@pytest.mark.parametrize("work", [checked_exact, timed_exact, looked_at])
@ops
def test_an_evaluation_of_a_huge_workload_holds_far_less(
    monkeypatch: pytest.MonkeyPatch, op: Op, work: Callable[[Op], None]
) -> None:
    monkeypatch.setattr(buffers, "HUGE_BYTES", 0)
    monkeypatch.setattr(truth, "MOST_AT_ONCE", ROWS * COLUMNS // 16)
    monkeypatch.setattr(op_check, "AT_ONCE", ROWS * COLUMNS // 16)
    # without memory for perturbed inputs, as on a GPU, errors are not explained
    monkeypatch.setattr(truth.Truth, "_perturbed", out_of_memory)
    assert 0 < most_held(work, op) <= bytes_held(op, op.gpu[0]) + 2**20

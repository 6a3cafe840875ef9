"""Champions on tensors with more elements than a number of bits can count: few bits here, 31 on a GPU."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from device_kernels import made

from archive.kernel import Kernel, parse
from archive.library import shipped
from archive.records import Check, Evaluation, Outcome
from evolve.devices.choose import policy_of
from evolve.devices.device import Device, RejectedError
from evolve.devices.emulated.device import EmulatedDevice
from evolve.evaluation import evaluate as evaluation
from evolve.evaluation.buffers import Arena
from evolve.evaluation.check import Inspector
from evolve.evaluation.confirm import Beyond, _repeated, check_beyond, repeats_rows
from evolve.evaluation.evaluate import evaluate
from evolve.evaluation.evaluator import Evaluator
from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload
from reference_ops.rows import beyond, with_rows

ROWS, COLUMNS_SUMMED = catalog.load("sum"), catalog.load("sum_columns")
SMALL = Beyond(elements=2**16, memory_bytes=2**30, repeated=2**12)
PLAN = """/*---
op = "{op}"
{when}

[[launch]]
entry = "summed"
grid = ["{grid}"]
block = [64]
args = ["x", "out", "rows", "cols"]
---*/
extern "C" __global__ void summed(const x_t* x, out_t* out, long long rows, long long cols) {{
    const long long i = (long long)blockIdx.x * 64 + threadIdx.x;
    {body}
}}
"""
SUM = "if (i >= rows) return; double sum = 0; for (int c = 0; c < cols; ++c) sum += float(x[{at}]); "
SUM += "out[i] = out_t(float(sum));"
FAR, WRAPS = SUM.format(at="i * cols + c"), SUM.format(at="(i * cols + c) & {mask}")
COLUMNS = "if (i >= cols) return; double sum = 0; for (long long r = 0; r < rows; ++r) sum += float(x[{at}]); "
COLUMNS += "out[i] = out_t(float(sum));"


def rows_kernel(body: str = FAR, when: str = "") -> Kernel:
    return parse(PLAN.format(op="sum", grid="ceil_div(rows, 64)", body=body, when=when))


def columns_kernel(at: str) -> Kernel:
    body = COLUMNS.format(at=at)
    return parse(PLAN.format(op="sum_columns", grid="ceil_div(cols, 64)", body=body, when=""))


def checked(
    kernel: Kernel,
    op: Op = ROWS,
    limits: Beyond = SMALL,
    device: Device | None = None,
    checks: list[Check] | None = None,
) -> tuple[Workload, ...]:
    device, found = device or made("emulated"), [] if checks is None else checks
    arena = Arena(device.torch_device)
    return check_beyond(Inspector(device, arena, random.Random(5), found, lambda _phase: None), kernel, op, limits)


def test_a_kernel_that_counts_in_64_bits_is_checked_beyond_31_bits() -> None:
    checks: list[Check] = []
    (found,) = checked(rows_kernel(), checks=checks)
    assert ROWS.largest_tensor(found) > SMALL.elements
    assert {check.workload for check in checks} == {found.key}


def test_a_kernel_whose_index_wraps_is_wrong_beyond_31_bits() -> None:
    with pytest.raises(RejectedError, match=r"`out`.*off by more than") as caught:
        checked(rows_kernel(WRAPS.format(mask="0xffff")))
    assert caught.value.outcome is Outcome.WRONG


def test_an_index_that_wraps_where_rows_are_summed_is_wrong_too() -> None:
    assert not repeats_rows(COLUMNS_SUMMED, COLUMNS_SUMMED.gpu[0])
    assert checked(columns_kernel("r * cols + i"), COLUMNS_SUMMED)
    with pytest.raises(RejectedError):
        checked(columns_kernel("(r * cols + i) & 0xffff"), COLUMNS_SUMMED)


def test_gradients_of_a_mean_are_checked_as_a_whole() -> None:
    op = catalog.load("cross_entropy_backward")
    plain = next(kernel for kernel in shipped(op.name) if kernel.plan.note.startswith("a first launch of one block"))
    (found,) = checked(plain, op)
    assert not repeats_rows(op, found)


def test_results_of_repeated_rows_are_repeated() -> None:
    for op in map(catalog.load, catalog.names()):
        for workload in (op.emulated[0], op.emulated[-1]):
            few, many = with_rows(op, workload, 3), with_rows(op, workload, 7)
            if not repeats_rows(op, workload) or not op.is_valid(many):
                continue
            rows, repeated = inputs_at(op, few, 1, "cpu"), inputs_at(op, many, 2, "cpu")
            for name, at, values in _repeated(op, rows, 7):
                repeated[name][at].copy_(values)
            for one, all_rows in zip(op.call_in_float64(rows, few), op.call_in_float64(repeated, many), strict=True):
                torch.testing.assert_close(all_rows, torch.cat([one] * 3)[:7], equal_nan=True, msg=op.name)


@pytest.mark.parametrize("when", ["rows * cols <= 65536", "rows < 8 and cols < 1000"])
def test_a_kernel_that_claims_a_bound_is_not_checked_beyond_it(when: str) -> None:
    assert checked(rows_kernel(WRAPS.format(mask="0xffff"), f'when = "{when}"')) == ()


def test_a_kernel_for_multiples_is_checked_at_a_multiple() -> None:
    (found,) = checked(rows_kernel(when='when = "rows % 256 == 0 and cols % 8 == 0"'))
    assert dict(found.dims)["rows"] % 256 == 0


def test_a_parameter_too_narrow_for_the_size_is_a_bound() -> None:
    limits = replace(SMALL, elements=2**33, memory_bytes=2**50)
    narrow = rows_kernel().text.replace("long long rows, long long cols", "short rows, long long cols")
    assert checked(parse(narrow), replace(ROWS, gpu=ROWS.gpu[:1], emulated=(), awkward=()), limits) == ()


def test_a_tensor_that_does_not_fit_into_memory_is_not_checked() -> None:
    assert checked(rows_kernel(WRAPS.format(mask="0xffff")), limits=replace(SMALL, memory_bytes=2**16)) == ()


def test_a_kernel_that_would_take_seconds_is_not_checked() -> None:
    slow = replace(SMALL, measured=((ROWS.emulated[0], 1.0),))
    assert checked(rows_kernel(WRAPS.format(mask="0xffff")), limits=slow) == ()
    assert checked(rows_kernel(), limits=replace(SMALL, measured=((ROWS.emulated[0], 1e-3),)))


@pytest.mark.parametrize(
    ("extra", "outcome"),
    [
        ("if (i == 0) const_cast<x_t*>(x)[rows * cols - 1] = x_t(7.0f);", Outcome.CHANGED_INPUT),
        ("if (i == 0) out[rows] = out_t(7.0f);", Outcome.OUT_OF_BOUNDS),
        ("if (i == rows - 1) out[i] = out_t(7.0f);", Outcome.WRONG),
    ],
)
def test_other_faults_beyond_31_bits_are_named(extra: str, outcome: Outcome) -> None:
    with pytest.raises(RejectedError) as caught:
        checked(rows_kernel(FAR + extra), limits=replace(SMALL, elements=2**20))
    assert caught.value.outcome is outcome


def test_most_ops_repeat_rows_and_every_workload_beyond_31_bits_is_valid() -> None:
    ops = [catalog.load(name) for name in catalog.names()]
    places = {op.name: beyond(op, 2**31) for op in ops}
    for op in ops:
        assert all(op.is_valid(one) and op.largest_tensor(one) > 2**31 for one in places[op.name])
    by_rows = [op.name for op in ops if places[op.name] and repeats_rows(op, places[op.name][0])]
    assert len(by_rows) > len(ops) / 2


def confirmed_on_the_emulated_device(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    def policy(kind: str) -> object:
        return replace(policy_of(kind), beyond_elements=2**20)

    monkeypatch.setattr(evaluation, "policy_of", policy)
    # the usual 2**25 numbers take seconds on a CPU
    monkeypatch.setattr(evaluation, "Beyond", partial(Beyond, repeated=2**16))
    device = EmulatedDevice()
    device.tools = replace(device.tools, memory_bytes=2**30)
    made_here = Evaluator(device, lambda _phase: None)
    return evaluate(kernel, ROWS, made_here, shapes_seed=1, bars={}, confirm=True)


def test_the_envelope_of_a_champion_includes_the_check_beyond_31_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = confirmed_on_the_emulated_device(rows_kernel(), monkeypatch)
    assert found.passed, found.log
    assert found.envelope
    assert found.envelope.elements > 2**20


def test_a_champion_that_is_wrong_beyond_31_bits_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = confirmed_on_the_emulated_device(rows_kernel(WRAPS.format(mask="0xfffff")), monkeypatch)
    assert found.outcome is Outcome.WRONG
    assert found.confirmed is None


LARGE = Beyond(elements=2**31, memory_bytes=2**36)


@pytest.mark.gpu
@pytest.mark.parametrize("dtypes", ['["bfloat16"]', '["float32"]'])
def test_a_gpu_checks_beyond_31_bits(dtypes: str) -> None:
    device = made("cuda")
    limits = replace(LARGE, memory_bytes=torch.cuda.get_device_properties(0).total_memory)
    when = f"dtypes = {dtypes}"
    assert checked(rows_kernel(when=when), limits=limits, device=device)
    with pytest.raises(RejectedError):
        checked(rows_kernel(WRAPS.format(mask="0x7fffffff"), when), limits=limits, device=device)


def test_small_steps_of_a_sequence_take_time_one_after_the_other() -> None:
    op = catalog.load("ctc_loss")
    known = op.gpu[0]  # 800 steps
    limits = Beyond(2**31, 2**40, ((known, 0.5e-3),))
    small = next(workload for workload in op.awkward if op.nbytes(workload) < 2**20)
    assert limits.allows(op, with_rows(op, known, 200_000))
    assert not limits.allows(op, with_rows(op, small, 3_000_000))

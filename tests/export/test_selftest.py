"""Self-test of a package: it finds faults, and says what it left out."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulated_machine import Emulated, EmulatedMachine, primitives

from evolve.export.families import forms
from evolve.export.template import checks, drawn, extent, selftest
from evolve.export.template.extent import Setting
from evolve.export.template.functions import Functions
from evolve.export.template.manifest import ShippedCubin
from evolve.export.template.selftest import FAILED, LEFT_OUT, PASSED, Result, results

CPU = Setting(torch.device("cpu"), calls=6, seed=0)
NAMES = ["silu", "softmax"]
NAMES_OF_ALL = ["silu", "silu_backward", "softmax"]
NUMBERS = itertools.count()


@pytest.fixture
def functions(tmp_path: Path) -> Functions:
    ops = primitives(["silu", "silu_backward", "softmax"], tmp_path, EmulatedMachine())
    namespace = f"selftested_kernels_{next(NUMBERS)}"  # PyTorch never deletes the ops of a namespace
    return Functions([form for form in forms() if form.name in NAMES], ops, namespace)


def outcomes(functions: Functions, check: str, setting: Setting = CPU) -> dict[str, str]:
    return {one.subject: one.outcome for one in results(functions, NAMES, setting, [check])}


@pytest.mark.parametrize(
    "check", ["random calls", "gradients", "differences", "empty inputs", "every kernel", "opaque op"]
)
def test_right_kernels_pass(functions: Functions, check: str) -> None:
    assert outcomes(functions, check) == {"silu": PASSED, "softmax": PASSED}


@pytest.mark.parametrize("check", ["another stream", "capture and replay", "second device"])
def test_checks_that_need_a_gpu_are_left_out_without_one(functions: Functions, check: str) -> None:
    assert set(outcomes(functions, check).values()) == {LEFT_OUT}


def test_the_calls_that_ran_kernels_are_counted(functions: Functions) -> None:
    given = [checks.drawn(functions["silu"], number)[0] for number in range(CPU.calls)]
    ran = [bool(functions["silu"].explain(one.arguments, one.named).kernel) for one in given]
    assert any(ran)
    assert checks.random_calls(functions["silu"], CPU) == f"{sum(ran)} of {CPU.calls} calls by kernels"


@pytest.mark.parametrize(("device", "tried"), [("cpu", True), ("cuda", False)])
def test_a_gpu_gets_no_index_of_an_empty_tensor_because_it_would_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, tried: bool
) -> None:
    called = list[int]()

    def index_add(x: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        called.append(len(x))
        return torch.index_add(x, *others, **named)

    form = next(form for form in forms() if form.name == "index_add")
    ops = primitives(["scatter_add"], tmp_path, EmulatedMachine())
    functions = Functions([replace(form, pytorch=index_add)], ops, f"selftested_kernels_{next(NUMBERS)}")
    monkeypatch.setattr(checks, "placed", lambda x, **_: x)  # there need not be a GPU
    checks.empty_inputs(functions["index_add"], replace(CPU, device=torch.device(device)))
    assert (0 in called) is tried


def broken(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    launch = Emulated.launch

    def changed(self: Emulated, *arguments: Any) -> Any:
        return tuple(change(out) for out in launch(self, *arguments))

    monkeypatch.setattr(Emulated, "launch", changed)


def test_wrong_results_and_wrong_gradients_fail(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda out: out * 1.1)
    for check in ("random calls", "gradients", "every kernel"):
        assert outcomes(functions, check) == {"silu": FAILED, "softmax": FAILED}, check


def test_a_kernel_with_different_results_in_two_runs_fails(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, lambda out: out + 1e-6 * torch.rand(()))
    assert outcomes(functions, "every kernel") == {"silu": FAILED, "softmax": FAILED}


def test_the_test_ends_when_a_failure_has_made_the_gpu_unusable(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(monkeypatch, lambda out: out * 1.1)
    monkeypatch.setattr(selftest, "_is_usable", lambda _device: False)
    assert selftest.main(functions, ["--device", "cpu", "--seconds", "0"]) == 1
    said = capsys.readouterr().out
    assert "after this failure cpu cannot be used any more" in said
    assert "NOT REACHED: 2 of 3 functions: silu_backward, softmax" in said


def test_the_exit_code_says_whether_anything_failed(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["softmax", "--calls", "2", "--device", "cpu", "--check", "random calls"]
    assert selftest.main(functions, given) == 0
    broken(monkeypatch, lambda out: -out)
    assert selftest.main(functions, given) == 1
    assert "FAILED, random calls: softmax: AssertionError" in capsys.readouterr().out
    assert selftest.main(functions, ["sofmax"]) == 2


def test_a_test_reports_each_function_as_it_ends(functions: Functions, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(functions, ["--calls", "2", "--device", "cpu", "--seconds", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["silu", "silu_backward", "softmax"]
    assert "passed" in lines[1]
    assert "NOT REACHED" not in lines[-1]


def test_a_test_whose_time_is_up_names_the_functions_that_it_did_not_reach(
    functions: Functions, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selftest.main(functions, ["--device", "cpu", "--seconds", "1e-9"]) == 0
    assert "NOT REACHED: 3 of 3 functions: silu, silu_backward, softmax" in capsys.readouterr().out


def run_with_clock(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, seconds: float, each_s: dict[str, float]
) -> selftest.Test:
    """Run a test of some seconds with a clock that advances by these seconds at each random call of a function."""
    now = [0.0]
    monkeypatch.setattr(selftest, "monotonic", lambda: now[0])
    monkeypatch.setattr(extent, "monotonic", lambda: now[0])
    draw = checks.drawn

    def drawn(function: Any, number: int) -> Any:
        now[0] += each_s[function.form.name]
        return draw(function, number)

    monkeypatch.setattr(checks, "drawn", drawn)
    test = selftest.Test(functions, replace(CPU, until=seconds), ["random calls", "gradients", "opaque op"])
    test.lines = []  # type: ignore[attr-defined]
    test.run(list(functions), test.lines.append)  # type: ignore[attr-defined]
    return test


def test_each_function_is_called_once_before_one_is_called_twice(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = run_with_clock(functions, monkeypatch, 17.5, dict.fromkeys(functions, 1.0))
    labels = [line.rpartition("(")[2] for line in test.lines]  # type: ignore[attr-defined]
    assert labels[:6] == ["once)"] * 3 + ["briefly)"] * 3
    assert test.reached == set(functions)
    assert not test.finished
    lines = [*selftest._unreached(NAMES_OF_ALL, test)]
    assert "tested only briefly: 3 functions; --seconds 0 tests all in full" in lines
    assert "NOT REACHED, opaque op: all functions" in lines


def test_a_slow_function_takes_no_time_from_the_others(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "SHARES", 1)
    test = run_with_clock(functions, monkeypatch, 30.0, {**dict.fromkeys(functions, 0.1), "silu": 10.5})
    # its share is 10 s, so that its gradients wait for the next round
    assert test.reached == set(functions)
    assert ("gradients", "silu") in {(one.check, one.subject) for one in test.found if one.detail != extent.TIME_IS_UP}
    first = test.lines[0]  # type: ignore[attr-defined]
    assert first.split()[0] == "silu"
    assert "1 passed, 1 left out (once)" in first


def test_checks_that_were_not_reached_are_named(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    test = run_with_clock(functions, monkeypatch, 30.0, {**dict.fromkeys(functions, 0.1), "softmax": 100.0})
    assert "NOT REACHED, gradients: 1 functions or ops: softmax" in selftest._unreached(NAMES_OF_ALL, test)
    assert "the time limit was reached" not in selftest.table(test.found)


def test_a_kernel_is_first_tested_at_a_size_that_needs_no_compilation(functions: Functions) -> None:
    primitive = functions._primitives["softmax"]
    op, (shipped,) = primitive.op, primitive.entry.kernels
    first = replace(CPU, is_first=True)
    assert extent.sizes_of_kernel(primitive, shipped, first) == extent.sizes(op, first)[:1]
    least = min(op.gpu, key=op.largest_tensor)
    measured = tuple(one for one in shipped.measured if one.times.workload == least.key)
    with_cubin = replace(shipped, cubins=(ShippedCubin("sm_90a", "", "", ""),), measured=measured)
    assert extent.sizes_of_kernel(primitive, with_cubin, first) == [least]
    assert extent.sizes_of_kernel(primitive, with_cubin, CPU) == extent.sizes(op, CPU)


def test_a_failure_in_the_brief_round_remains_a_failure(functions: Functions) -> None:
    test = selftest.Test(functions, CPU, ["gradients"])
    for outcome in (FAILED, PASSED):
        test._keep(Result("gradients", "silu", outcome, ""))
    assert [one.outcome for one in test.found] == [FAILED]


@pytest.mark.parametrize("error", [0.0, 0.05])
def test_a_kernel_may_add_in_another_order_than_pytorch_and_be_as_exact(error: float) -> None:
    """Sums near zero have large relative errors."""
    x = 300 * torch.randn(5003, 64, generator=torch.Generator().manual_seed(1))
    x -= x.mean(0)
    in_another_order = x.flip(0).cumsum(0)[-1] + error
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(in_another_order, x.sum(0), rtol=2e-4, atol=2e-5)
    spec = SimpleNamespace(name="out")
    summed = SimpleNamespace(
        op=SimpleNamespace(outputs=(spec,), baseline_free=(), tf32=False), pytorch=lambda inputs, _: (inputs[0].sum(0),)
    )
    workload: Any = SimpleNamespace(key="rows=5003", dtype="float32")
    primitive: Any = _Callable(summed, in_another_order)
    with pytest.raises(AssertionError, match="rows=5003") if error else nullcontext():
        checks._compared(primitive, (x,), {}, workload)


class _Callable:
    """A primitive whose kernel returns these outputs."""

    def __init__(self, described: Any, *outputs: torch.Tensor) -> None:
        self.op, self.pytorch, self._outputs = described.op, described.pytorch, outputs

    def __call__(self, *_: Any) -> tuple[torch.Tensor, ...]:
        return self._outputs


def test_a_difference_is_not_described_element_by_element() -> None:
    calls = itertools.count()

    def fourth_power(x: torch.Tensor) -> torch.Tensor:
        next(calls)
        return x.detach() ** 3 * x  # its gradient is a quarter of the true one

    assert not checks._differences_agree(fourth_power, drawn.call(torch.rand(10, 20) + 1.5))
    assert next(calls) <= checks.FAST_CALLS


def test_a_call_that_pytorch_refuses_has_no_differences(tmp_path: Path) -> None:
    ops = primitives(["adaptive_avg_pool1d"], tmp_path, EmulatedMachine(by_reference=True))
    form = next(form for form in forms() if form.name == "adaptive_avg_pool1d")
    function = Functions([form], ops)["adaptive_avg_pool1d"]
    assert not checks._differences_agree(function.form.pytorch, drawn.call(torch.randn(1, 2, 5), (None,)))


def test_each_reason_of_checks_that_are_left_out_is_printed_once() -> None:
    found = [Result("capture", name, LEFT_OUT, "there is no GPU") for name in ("a", "b", "c", "d", "e")]
    assert "left out, capture: a, b, c and 2 more: there is no GPU" in selftest.table(found)


def test_a_tensor_is_placed_with_its_strides_and_its_offset() -> None:
    x = torch.arange(24.0).view(4, 6)[1:, ::2].t()
    placed = drawn.placed(x, torch.device("cpu"))
    assert torch.equal(placed, x)
    assert (placed.stride(), placed.storage_offset()) == (x.stride(), x.storage_offset())
    assert placed.data_ptr() != x.data_ptr()


def test_an_erased_tensor_may_share_memory_among_its_elements() -> None:
    x = torch.ones(3, 1).expand(3, 4)
    assert not drawn.erased(x).any()


def test_a_seed_gives_the_same_call_again(functions: Functions) -> None:
    first, second = (checks.drawn(functions["silu"], 5)[0].arguments[0] for _ in range(2))
    assert torch.equal(first, second)

"""Random calls of functions in graphs of torch.compile with symbolic sizes and numbers agree with PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from each import sampled
from emulated_machine import EmulatedMachine, primitives

from evolve.export.families import forms
from evolve.export.template import checks
from evolve.export.template.comparing import close
from evolve.export.template.drawn import copied
from evolve.export.template.extent import Setting
from evolve.export.template.functions import Function, Functions
from evolve.export.template.opaque_costs import Costs
from evolve.export.template.unrolled import REFUSALS
from reference_ops import catalog

# PyTorch unrolls the steps of recurrent layers in a graph, which takes a minute.
FORMS = {form.name: form for form in forms() if form.name not in ("gru", "lstm", "rnn_tanh")}
NUMBER = 100
SETTING = Setting(torch.device("cpu"), 1, 0)
QUICK = ("leaky_relu", "max_pool2d", "softmax")


@pytest.fixture(autouse=True)
def without_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a graph contain an opaque op wherever a kernel wins in eager code: random calls are too small otherwise."""
    monkeypatch.setattr(Costs, "us", 0.0)


class InAGraph(Function):
    """A function whose calls are compiled, either the package's or PyTorch's."""

    def __init__(self, function: Function, called: Callable[..., Any]) -> None:
        torch._dynamo.reset()
        self.form, self.primitives = function.form, function.primitives
        self._compiled = torch.compile(
            lambda *arguments, **named: called(*arguments, **named),  # noqa: PLW0108 - it may be a builtin function
            backend="aot_eager", fullgraph=True, dynamic=True,
        )  # fmt: skip

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._compiled(*arguments, **named)


def compared(function: Function, called: Callable[..., Any], number: int) -> None:
    """Compare a random call and its gradients with PyTorch's; PyTorch may refuse the call."""
    given, dtype = checks.drawn(function, number)
    ours, theirs = copied(given), copied(given)
    with torch.no_grad():
        try:
            expected = function.form.pytorch(*theirs.arguments, **theirs.named)
        except REFUSALS:
            return
        close(InAGraph(function, called)(*ours.arguments, **ours.named), expected, dtype)
    close(ours.arguments, theirs.arguments, dtype)  # tensors changed in place, such as running statistics
    compiled = InAGraph(function, called)
    checks._gradients_agree(compiled, copied(given), dtype, (str(number), SETTING))


@pytest.mark.parametrize("name", sampled(sorted(FORMS), quick=QUICK))
def test_random_calls_and_their_gradients_agree_in_graphs(name: str, tmp_path: Path) -> None:
    backward = [one for op in FORMS[name].ops for one in catalog.load(op).backward]
    known = primitives(dict.fromkeys([*FORMS[name].ops, *backward]), tmp_path, EmulatedMachine(by_reference=True))
    function = Functions([FORMS[name]], known, f"random_{name}_kernels")[name]
    try:
        compared(function, function, NUMBER)
    except Exception:  # noqa: BLE001 - whatever the compiler raises
        with pytest.raises(Exception):  # noqa: B017, PT011 - PyTorch cannot compile its own function either
            compared(function, function.form.pytorch, NUMBER)


def test_an_integer_for_a_float_is_accepted_in_graphs(tmp_path: Path) -> None:
    machine = EmulatedMachine(by_reference=True)
    known = primitives(["leaky_relu", "leaky_relu_backward"], tmp_path, machine)
    function = Functions([FORMS["leaky_relu"]], known, "integers_kernels")["leaky_relu"]

    def with_an_integer(x: torch.Tensor) -> Any:
        return function(x, 2)

    x = torch.randn(4, 8)
    found = torch.compile(with_an_integer, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(found, torch.where(x > 0, x, 2 * x))
    assert machine.launched

"""Calls under autocast: kernels get the dtype that PyTorch's functions would, including calls that were seen before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from each import sampled
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor
from torch.nn import functional

from evolve.export.families import forms
from evolve.export.template.checks import drawn
from evolve.export.template.comparing import close
from evolve.export.template.drawn import copied, tensors
from evolve.export.template.functions import Function
from evolve.export.template.unrolled import guards_tell

FORMS = {form.name: form for form in forms()}
BACKWARD = ("conv2d_backward_data", "conv2d_backward_weight")


def tried(folder: Path, name: str, *ops: str) -> tuple[Function, EmulatedMachine]:
    machine = EmulatedMachine()
    return Function(FORMS[name], primitives(ops, folder, machine)), machine


def test_autocast_gives_a_kernel_the_dtype_that_pytorch_would(tmp_path: Path) -> None:
    linear, machine = tried(tmp_path, "linear", "skinny_gemm")
    x, weight = torch.randn(5, 16), torch.randn(8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        close(linear(x, weight), functional.linear(x, weight), torch.bfloat16)
    assert len(machine.launched) == 1


def test_a_function_of_unknown_autocast_leaves_the_call_to_pytorch(tmp_path: Path) -> None:
    norm, machine = tried(tmp_path, "rms_norm", "rms_norm")
    x, weight = torch.randn(5, 16), torch.ones(16)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            torch.testing.assert_close(norm(x, (16,), weight, 1e-6), functional.rms_norm(x, (16,), weight, 1e-6))
        explanation = norm.explain((x, (16,), weight, 1e-6), {})
    assert explanation.reason == "autocast is on, and may choose another dtype"
    assert not machine.launched


def test_a_known_call_gets_the_dtype_of_the_current_autocast(tmp_path: Path) -> None:
    linear, machine = tried(tmp_path, "linear", "skinny_gemm")
    weight, planned = torch.randn(8, 16), []
    for dtype in (torch.bfloat16, torch.float16, None) * 2:
        x, before = torch.randn(5, 16), len(machine.planned_launches)
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            got, expected = (function(x, weight) for function in (linear, functional.linear))
        assert got.dtype == expected.dtype == (dtype or torch.float32)
        close(got, expected, got.dtype)
        planned.append(len(machine.planned_launches) - before)
    assert planned == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("name", sampled(sorted(FORMS), quick=["softmax", "mv", "affine_grid", "lstm_cell"]))
@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_each_function_gives_the_dtypes_that_pytorch_gives(tmp_path: Path, name: str, to: torch.dtype) -> None:
    machine = EmulatedMachine(by_reference=True)
    function = Function(FORMS[name], primitives(dict.fromkeys(FORMS[name].ops), tmp_path, machine))
    for number in range(16):
        given = drawn(function, number)[0]
        found: list[list[torch.dtype | str]] = []
        for called in (FORMS[name].pytorch, function):
            own = copied(given)
            with torch.no_grad(), torch.autocast("cpu", to):
                try:
                    found.append([x.dtype for x in tensors([called(*own.arguments, **own.named)])])
                except (RuntimeError, TypeError) as error:
                    found.append([str(error)])
        assert found[0] == found[1], given


def test_guards_are_tried_without_the_autocast_of_the_first_call() -> None:
    guards_tell.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert guards_tell()


def in_autocast(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return function(*arguments)


@pytest.mark.parametrize("inside", [False, True], ids=["after it", "within it"])
def test_gradients_are_those_of_pytorch_in_the_dtype_of_their_inputs(tmp_path: Path, inside: bool) -> None:
    conv2d, machine = tried(tmp_path, "conv2d", "conv2d", *BACKWARD)
    for _ in range(4):
        x, weight = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
        outs = [in_autocast(function, x, weight, None, 1, 1) for function in (conv2d, functional.conv2d)]
        assert [out.dtype for out in outs] == [torch.bfloat16] * 2
        grad = torch.randn(outs[0].shape).bfloat16()
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            got, expected = (torch.autograd.grad(out, (x, weight), grad) for out in outs)
        assert [one.dtype for one in got] == [torch.float32] * 2
        close(got, expected, torch.bfloat16)
    # The forward runs its plan from the second call on, and the backward runs its plans from the third call on.
    assert len(machine.planned_launches) == 3 + 2 * 2
    assert len(machine.launched) == 4 * 3

"""Arrays of other frameworks as arguments and results, without copies where the memory is shared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulated_machine import EmulatedMachine, primitives

from evolve.export.families import forms
from evolve.export.template.functions import Functions

NAMES = ("softmax", "rms_norm", "topk")
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)


@pytest.fixture
def machine() -> EmulatedMachine:
    return EmulatedMachine()


@pytest.fixture
def functions(tmp_path: Path, machine: EmulatedMachine) -> Functions:
    return Functions([form for form in forms() if form.name in NAMES], primitives(NAMES, tmp_path, machine))


def test_an_array_gives_an_array_by_a_kernel(functions: Functions, machine: EmulatedMachine) -> None:
    found = functions["softmax"](X, -1)
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, torch.softmax(torch.from_numpy(X), -1).numpy(), rtol=1e-5)
    assert len(machine.launched) == 1


def test_several_results_are_arrays(functions: Functions) -> None:
    values, indices = functions["topk"](X, 2)
    assert (values[0] == X[0][[7, 6]]).all()
    assert (indices == [7, 6]).all()


def test_arrays_are_accepted_by_name_and_together_with_tensors(functions: Functions) -> None:
    weight = np.ones(8, dtype=np.float32)
    found = functions["rms_norm"](X, (8,), weight=weight, eps=1e-6)
    expected = functions["rms_norm"](torch.from_numpy(X), (8,), weight=torch.ones(8), eps=1e-6)
    np.testing.assert_allclose(found, expected.numpy())


class Array:
    """An array of a framework that shares its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @staticmethod
    def __array_namespace__() -> Any:
        return Array

    @staticmethod
    def from_dlpack(tensor: Any) -> "Array":
        return Array(tensor)

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def test_results_have_the_kind_of_the_first_argument(functions: Functions) -> None:
    assert type(functions["softmax"](Array(torch.from_numpy(X)), -1)) is Array

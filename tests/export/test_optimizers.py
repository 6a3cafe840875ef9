"""Optimizers update large parameters with kernels and leave the rest to PyTorch, with PyTorch's results and state."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor, nn

from evolve.export.template import optimizers

STEPS = 4


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat small parameters as large ones."""
    monkeypatch.setattr(optimizers, "LEAST_ELEMENTS", 64)


def kinds(folder: Path, machine: EmulatedMachine) -> dict[str, Any]:
    ops = primitives(["adamw", "sgd_momentum"], folder, machine)
    return {
        name: type(name, (getattr(optimizers, name),), {"primitives": ops, "__module__": __name__})
        for name in ("AdamW", "SGD")
    }


def fast(ours_us: float = 5.0, theirs_us: float = 9.0) -> EmulatedMachine:
    taken = itertools.cycle((ours_us, theirs_us))
    return EmulatedMachine(device_us=lambda *_: next(taken))


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(*shape)) for shape in ((8, 16), (3,), (100,))]


def trained(optimizer: torch.optim.Optimizer, params: list[nn.Parameter]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()
    return [param.detach() for param in params]


SETTINGS = [
    ("AdamW", {"lr": 1e-2, "weight_decay": 0.1}),
    ("AdamW", {"lr": 1e-3, "betas": (0.8, 0.95), "eps": 1e-6}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}),
]


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_steps_by_kernels_give_the_parameters_and_the_state_of_pytorch(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    machine = fast()
    ours, theirs = parameters(), parameters()
    places = [param.data_ptr() for param in ours]
    by_kernels = kinds(tmp_path, machine)[kind](ours, **settings)
    by_pytorch = getattr(torch.optim, kind)(theirs, **settings)
    for got, expected in zip(trained(by_kernels, ours), trained(by_pytorch, theirs), strict=True):
        torch.testing.assert_close(got, expected)
    first = kind == "SGD"  # SGD's first step creates the momentum and runs no kernel
    assert len(machine.launched) >= 2 * (STEPS - first)
    assert [param.data_ptr() for param in ours] == places
    got, expected = by_kernels.state_dict(), by_pytorch.state_dict()
    assert got["param_groups"] == expected["param_groups"]
    for at, state in expected["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(got["state"][at][name], value)


def test_a_state_of_pytorch_is_loaded_and_continued(tmp_path: Path) -> None:
    theirs = parameters()
    by_pytorch = torch.optim.AdamW(theirs, lr=1e-2)
    trained(by_pytorch, theirs)
    ours = copy.deepcopy(theirs)
    by_kernels = kinds(tmp_path, fast())["AdamW"](ours, lr=1e-2)
    by_kernels.load_state_dict(copy.deepcopy(by_pytorch.state_dict()))
    for got, expected in zip(trained(by_kernels, ours), trained(by_pytorch, theirs), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "settings", [{"amsgrad": True}, {"maximize": True}, {"lr": torch.tensor(1e-2)}, {"fused": True}]
)
def test_options_that_the_kernels_lack_are_left_to_pytorch(tmp_path: Path, settings: dict[str, Any]) -> None:
    machine = fast()
    ours, theirs = parameters(), parameters()
    got = trained(kinds(tmp_path, machine)["AdamW"](ours, **settings), ours)
    expected = trained(torch.optim.AdamW(theirs, **settings), theirs)
    assert not machine.launched
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_a_kernel_that_takes_longer_than_pytorch_does_not_step(tmp_path: Path) -> None:
    machine = fast(ours_us=9.0, theirs_us=5.0)
    ours, theirs = parameters(), parameters()
    got = trained(kinds(tmp_path, machine)["AdamW"](ours, lr=1e-2), ours)
    assert len(machine.launched) == 2  # one trial for each size
    expected = trained(torch.optim.AdamW(theirs, lr=1e-2), theirs)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_the_trial_of_a_size_changes_neither_parameters_nor_state(tmp_path: Path) -> None:
    (param, *_), calls = parameters(), []
    before = param.detach().clone()
    param.grad = torch.zeros_like(param)

    def timed(call: Any, device: torch.device) -> float:
        assert device == param.device
        call()
        calls.append(torch.equal(param, before))
        return float(len(calls))

    kinds(tmp_path, EmulatedMachine(device_us=timed))["AdamW"]([param], lr=1e-2).step()
    assert calls == [True, True]


def test_schedules_and_hooks_run_once_for_each_step(tmp_path: Path) -> None:
    params = parameters()
    optimizer = kinds(tmp_path, fast())["AdamW"](params, lr=1e-2)
    torch.optim.AdamW(parameters(), lr=1e-2).step()  # PyTorch wraps the class's own step at the first use
    seen: list[int] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    trained(optimizer, params)
    assert len(seen) == STEPS

"""Choices that consider the host's time: a kernel whose launch takes longer than PyTorch's call does not run."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from emulated_machine import EmulatedMachine, portable, primitives, winning
from gpu_records import duel, times
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from evolve.export.families import forms
from evolve.export.template import cached
from evolve.export.template.dispatch import Primitive, gradients_of
from evolve.export.template.functions import Function
from evolve.export.template.options import options
from reference_ops import catalog

SOFTMAX = catalog.load("softmax")
X = torch.randn(4, 8)


def host(ours_us: float, theirs_us: float) -> EmulatedMachine:
    """Return a machine with these times on the host: `ours_us` for a kernel's call, then `theirs_us` for PyTorch's."""
    taken = iter((ours_us, theirs_us))
    return EmulatedMachine(host_us=lambda _: next(taken))


def softmax(folder: Path, machine: EmulatedMachine, median_us: float, rows: int = 1) -> Primitive:
    """Return an op whose kernel was measured at this number of rows with this time."""
    entry = winning(SOFTMAX, portable("softmax"), folder)
    (shipped,) = entry.kernels
    measured = []
    for one in shipped.measured:
        taken = times(one.times.workload, median_us)
        measured.append(replace(one, times=taken, duel=duel(taken), dims={"rows": rows, "cols": X.shape[1]}))
    return Primitive(SOFTMAX, replace(entry, kernels=(replace(shipped, measured=tuple(measured)),)), folder, machine)


@pytest.mark.parametrize(
    ("ours_us", "theirs_us", "runs"),
    [
        (50.0, 10.0, True),  # less than the 100 us of PyTorch's kernel on the GPU
        (120.0, 10.0, False),
        (120.0, 150.0, True),  # PyTorch's call takes even longer on the host
    ],
)
def test_a_short_kernel_runs_if_the_host_launches_it_in_less_time(
    tmp_path: Path, ours_us: float, theirs_us: float, runs: bool
) -> None:
    op = softmax(tmp_path, host(ours_us, theirs_us), median_us=20.0)
    assert bool(op.explain((X,), {}).kernel) == runs


def test_a_long_kernel_is_not_timed_on_the_host(tmp_path: Path) -> None:
    op = softmax(tmp_path, host(500.0, 10.0), median_us=80.0)
    assert op.explain((X,), {}).kernel


def test_a_kernel_that_is_long_only_at_larger_sizes_is_timed_on_the_host(tmp_path: Path) -> None:
    op = softmax(tmp_path, host(500.0, 10.0), median_us=80.0, rows=8 * len(X))
    assert not op.explain((X,), {}).kernel


def tried(*taken_us: float) -> EmulatedMachine:
    """Return a machine on which calls that are tried take these times. It makes each call once."""
    taken = iter(taken_us)

    def device_us(call: Callable[[], object], _device: torch.device) -> float:
        call()
        return next(taken)

    return EmulatedMachine(device_us=device_us)


def function(folder: Path, name: str, machine: EmulatedMachine, *ops: str) -> Function:
    form = {form.name: form for form in forms()}[name]
    return Function(form, primitives(ops or form.ops, folder, machine))


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize(("ours_us", "runs"), [(90.0, True), (500.0, False)])
def test_a_batch_norm_is_tried_once_and_its_statistics_are_those_of_pytorch(
    tmp_path: Path, ours_us: float, runs: bool, learns: bool
) -> None:
    machine = tried(ours_us, 100.0)
    norm = function(tmp_path, "batch_norm", machine, "batch_norm", "batch_norm_backward")
    ours, theirs = ([torch.zeros(6), torch.ones(6)] for _ in range(2))
    planned = []
    for _ in range(3):
        x, weight, bias = (torch.randn(shape, requires_grad=learns) for shape in ((4, 6, 5, 5), (6,), (6,)))
        exact = functional.batch_norm(x, theirs[0], theirs[1], weight, bias, True)
        out = norm(x, *ours, weight, bias, True)
        torch.testing.assert_close(out, exact, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, theirs)
        planned.append(len(machine.planned_launches))
    assert (planned[2] > planned[1]) == runs


@pytest.mark.parametrize(("ours_us", "runs"), [(90.0, True), (500.0, False)])
def test_a_short_kernel_with_gradients_runs_if_that_takes_less_time_with_the_backward(
    tmp_path: Path, ours_us: float, runs: bool
) -> None:
    machine = tried(ours_us, 100.0)
    called = function(tmp_path, "softmax", machine, "softmax", "softmax_backward")
    launched = []
    for _ in range(3):
        x = torch.randn(4, 8, requires_grad=True)
        before, grad = len(machine.launched), torch.randn(4, 8)
        got, exact = (torch.autograd.grad(out, x, grad)[0] for out in (called(x, -1), torch.softmax(x, -1)))
        torch.testing.assert_close(got, exact)
        launched.append(len(machine.launched) - before)
    assert launched[1:] == ([2, 2] if runs else [0, 0])
    reason = called.explain((x, -1), {}).reason
    assert ("took longer than PyTorch" in reason) == (not runs)
    assert called.explain((x.detach(), -1), {}).kernel


@pytest.mark.parametrize(("rows", "ours_us", "runs"), [((2, 1), 500.0, False), ((1, 2), 90.0, True)])
def test_a_trial_also_tells_for_larger_calls_if_it_is_won_and_for_smaller_ones_if_it_is_lost(
    tmp_path: Path, rows: tuple[int, int], ours_us: float, runs: bool
) -> None:
    machine = tried(ours_us, 100.0)  # of one trial
    forward = softmax(tmp_path, machine, median_us=20.0, rows=8)
    backward = primitives(["softmax_backward"], tmp_path, machine)["softmax_backward"]
    found = {"softmax": forward, "softmax_backward": backward}
    forward.gradients = gradients_of(SOFTMAX, {name: one.op for name, one in found.items()}, found, machine)
    form = {form.name: form for form in forms()}["softmax"]
    called, planned = Function(form, found), []
    for count in rows:
        for _ in range(2):
            x = torch.randn(count, 8, requires_grad=True)
            torch.testing.assert_close(called(x, -1), torch.softmax(x, -1))
        planned.append(len(machine.planned_launches))
    assert (planned[1] > planned[0]) == runs


def test_a_call_whose_backward_fails_in_pytorch_runs_its_kernel(tmp_path: Path) -> None:
    machine = tried(90.0)

    def fails(*_: object) -> torch.Tensor:
        raise RuntimeError("does not have a deterministic implementation")

    called = function(tmp_path, "softmax", machine, "softmax", "softmax_backward")
    called = Function(replace(called.form, pytorch=fails), called.primitives)
    for _ in range(2):
        x = torch.randn(4, 8, requires_grad=True)
        torch.testing.assert_close(called(x, -1), torch.softmax(x, -1))
    assert machine.planned_launches


def test_nothing_is_tried_while_hooks_take_the_tensors_that_are_saved(tmp_path: Path) -> None:
    called = function(tmp_path, "softmax", tried(), "softmax", "softmax_backward")
    saved = list[torch.Tensor]()

    def save(x: torch.Tensor) -> torch.Tensor:
        saved.append(x)
        return x

    with saved_tensors_hooks(save, lambda x: x):
        called(torch.randn(4, 8, requires_grad=True), -1)
    assert len(saved) == 1


def test_the_reason_names_both_times(tmp_path: Path) -> None:
    op = softmax(tmp_path, host(120.0, 10.0), median_us=20.0)
    assert "takes 120 us of the host's time, and PyTorch 100 us" in op.explain((X,), {}).reason


def test_every_new_choice_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    op = primitives(["softmax"], tmp_path, EmulatedMachine())["softmax"]
    with caplog.at_level(logging.DEBUG, "evolve.export.template.dispatch"):
        op((X,), {})
        op((X,), {})
    (record,) = [one for one in caplog.records if one.name.endswith("dispatch")]
    assert record.getMessage().startswith("softmax: kernel ")


def test_options_change_the_choice_only_within_their_block(tmp_path: Path) -> None:
    machine = EmulatedMachine()
    op = primitives(["softmax"], tmp_path, machine)["softmax"]
    with options(allow=()):
        op((X,), {})
    assert not machine.launched
    op((X,), {})
    assert len(machine.launched) == 1


@dataclass(frozen=True)
class Capturing(EmulatedMachine):
    """A machine on which a CUDA graph may be captured."""

    now: list[bool] = field(default_factory=lambda: [True])

    def capturing(self, _device: torch.device) -> bool:
        return self.now[0]


def never(*_: object) -> float:
    raise AssertionError("nothing can be timed while a graph is captured")


def test_a_first_call_while_a_graph_is_captured_runs_the_kernel_without_timing_it(tmp_path: Path) -> None:
    machine = Capturing(host_us=never)
    op = softmax(tmp_path, machine, median_us=20.0)
    for _ in range(2):
        (out,) = op((X,), {})
        torch.testing.assert_close(out, torch.softmax(X, -1))
    assert len(machine.launched) == 2


def test_a_decision_of_a_capture_does_not_count_afterwards(tmp_path: Path) -> None:
    taken = iter((120.0, 10.0))
    machine = Capturing(host_us=lambda _: next(taken))
    op = softmax(tmp_path, machine, median_us=20.0)
    found = []
    for machine.now[0] in (True, False, True):
        found.append(bool(op.explain((X,), {}).kernel))
    assert found == [True, False, True]


def test_autotuning_waits_until_nothing_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path / "cache"))
    machine = Capturing(host_us=never, device_us=never)
    with options(autotune=True):
        assert softmax(tmp_path, machine, median_us=20.0).explain((X,), {}).kernel

"""Choices that consider the host's time: a kernel whose launch takes longer than PyTorch's call does not run."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from emulated_machine import EmulatedMachine, portable, primitives, winning
from gpu_records import duel, times
from torch.nn import functional

from evolve.export.template import cached
from evolve.export.template.dispatch import Primitive
from evolve.export.template.functions import Function
from evolve.export.template.functions_normalization import FORMS
from evolve.export.template.options import options
from reference_ops import catalog

SOFTMAX = catalog.load("softmax")
X = torch.randn(4, 8)


def host(ours_us: float, theirs_us: float) -> EmulatedMachine:
    """Return a machine with these times on the host: `ours_us` for a kernel's call, then `theirs_us` for PyTorch's."""
    taken = iter((ours_us, theirs_us))
    return EmulatedMachine(host_us=lambda _: next(taken))


def softmax(folder: Path, machine: EmulatedMachine, median_us: float) -> Primitive:
    entry = winning(SOFTMAX, portable("softmax"), folder)
    (shipped,) = entry.kernels
    rows = []
    for one in shipped.measured:
        taken = times(one.times.workload, median_us)
        rows.append(replace(one, times=taken, duel=duel(taken)))
    return Primitive(SOFTMAX, replace(entry, kernels=(replace(shipped, measured=tuple(rows)),)), folder, machine)


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


@pytest.mark.parametrize(("ours_us", "runs"), [(90.0, True), (500.0, False)])
def test_a_call_that_changes_tensors_counts_the_time_to_lower_it(tmp_path: Path, ours_us: float, runs: bool) -> None:
    taken = iter((5.0, 5.0, ours_us, 10.0))  # of the launch, which suffices for the decision, and of the whole call

    def host_us(call: Callable[[], object]) -> float:
        call()
        return next(taken)

    machine = EmulatedMachine(host_us=host_us)
    form = {form.name: form for form in FORMS}["batch_norm"]
    norm = Function(form, primitives(form.ops, tmp_path, machine))
    ours, theirs = ([torch.zeros(6), torch.ones(6)] for _ in range(2))
    launched = []
    for _ in range(3):
        x, weight, bias = torch.randn(4, 6, 5, 5), torch.rand(6), torch.rand(6)
        exact = functional.batch_norm(x, theirs[0], theirs[1], weight, bias, True)
        torch.testing.assert_close(norm(x, *ours, weight, bias, True), exact)
        torch.testing.assert_close(ours, theirs)
        launched.append(len(machine.launched))
    assert (launched[2] > launched[0]) == runs


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

"""Calls in training where only the backward has a kernel that wins.

PyTorch or a kernel as fast computes the forward.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor, fx
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional

from evolve.export.families import forms
from evolve.export.template.functions import Functions
from evolve.export.template.manifest import ExportedEntry
from evolve.export.template.redirecting import GraphPass, enabled

OPS = ("embedding", "embedding_backward", "rms_norm", "rms_norm_backward")
INDICES = torch.tensor([[1, 0, 5], [5, 5, 2]])


@pytest.fixture
def machine() -> EmulatedMachine:
    return EmulatedMachine(by_reference=True)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def timed(entry: ExportedEntry, median_us: float, eager_us: float = 100.0) -> ExportedEntry:
    """Return an entry with these times of its kernels and of eager PyTorch; PyTorch's best time is 101 us."""

    def slower(measured: object) -> object:
        times = replace(measured.times, median_us=median_us, high_us=median_us, eager_us=eager_us)  # type: ignore[attr-defined]
        speedup = times.baseline_us / median_us
        duel = replace(measured.duel, speedup=speedup, low=speedup * 0.98, high=speedup * 1.02)  # type: ignore[attr-defined]
        return replace(measured, times=times, duel=duel)  # type: ignore[type-var]

    kernels = tuple(replace(one, measured=tuple(map(slower, one.measured))) for one in entry.kernels)  # type: ignore[arg-type]
    return replace(entry, kernels=kernels)


def made(
    folder: Path,
    machine: EmulatedMachine,
    forward_us: float,
    backward_us: float = 40.0,
    backward_eager_us: float = 100.0,
) -> Functions:
    """Return functions whose kernels take these times, and with this time of eager PyTorch for the backward."""
    ops = primitives(OPS, folder, machine)
    for name, primitive in ops.items():
        times = (backward_us, backward_eager_us) if name.endswith("backward") else (forward_us, 100.0)
        primitive.entry = primitive._decider.entry = timed(primitive.entry, *times)
    wanted = ("embedding", "rms_norm")
    return Functions([form for form in forms() if form.name in wanted], ops, f"alone{id(ops)}")


def ids(known: Functions, machine: EmulatedMachine) -> list[str]:
    of_kernels = {k.id: name for name in OPS for k in known._primitives[name].entry.kernels}
    return [of_kernels[one] for one in machine.launched]


def test_the_kernel_of_a_backward_runs_where_that_of_the_forward_does_not_win(
    tmp_path: Path, machine: EmulatedMachine
) -> None:
    known = made(tmp_path, machine, forward_us=150.0)
    for _ in range(3):
        weight, own = (torch.arange(64.0).view(8, 8).requires_grad_() for _ in range(2))
        out, expected = known["embedding"](INDICES, weight), functional.embedding(INDICES, own)
        torch.testing.assert_close(out, expected)
        for x in (out, expected):
            (x * x.detach()).sum().backward()
        torch.testing.assert_close(weight.grad, own.grad)
    assert ids(known, machine) == 3 * ["embedding_backward"]
    assert "a kernel computes embedding_backward" in known["embedding"].explain((INDICES, weight), {}).reason


def test_a_result_can_be_changed_in_place(tmp_path: Path, machine: EmulatedMachine) -> None:
    known = made(tmp_path, machine, forward_us=150.0)
    for _ in range(3):
        weight, own = (torch.arange(64.0).view(8, 8).requires_grad_() for _ in range(2))
        out, expected = known["embedding"](INDICES, weight), functional.embedding(INDICES, own)
        for x in (out, expected):
            x.mul_(3).sum().backward()
        torch.testing.assert_close(weight.grad, own.grad)


def test_without_gradients_pytorch_runs(tmp_path: Path, machine: EmulatedMachine) -> None:
    known = made(tmp_path, machine, forward_us=150.0)
    weight = torch.randn(8, 8, requires_grad=True)
    with torch.no_grad():
        known["embedding"](INDICES, weight)
    out = known["embedding"](INDICES, weight.detach())
    assert not machine.launched
    assert not out.requires_grad


def test_a_backward_that_saves_little_does_not_count(tmp_path: Path, machine: EmulatedMachine) -> None:
    known = made(tmp_path, machine, forward_us=150.0, backward_us=90.0)
    weight = torch.randn(8, 8, requires_grad=True)
    known["embedding"](INDICES, weight).sum().backward()
    assert not machine.launched
    assert known["embedding"].explain((INDICES, weight), {}).reason.startswith("PyTorch was the fastest")


@pytest.mark.parametrize("padding", [5, -3, None])
def test_the_row_of_a_padding_gets_no_gradient(tmp_path: Path, machine: EmulatedMachine, padding: int | None) -> None:
    known = made(tmp_path, machine, forward_us=50.0)
    for _ in range(3):
        weight, own = (torch.arange(64.0).view(8, 8).requires_grad_() for _ in range(2))
        known["embedding"](INDICES, weight, padding).square().sum().backward()
        functional.embedding(INDICES, own, padding).square().sum().backward()
        torch.testing.assert_close(weight.grad, own.grad)
    assert ids(known, machine) == 3 * ["embedding", "embedding_backward"]


@pytest.mark.parametrize(
    ("forward_us", "launched"),
    [(50.0, ["rms_norm", "rms_norm_backward"]), (102.0, ["rms_norm", "rms_norm_backward"]), (170.0, [])],
    ids=["it wins", "it is as fast", "it is slow"],
)
def test_a_graph_uses_a_kernel_if_only_its_backward_wins(
    tmp_path: Path, machine: EmulatedMachine, forward_us: float, launched: list[str]
) -> None:
    known = made(tmp_path, machine, forward_us)
    norm = known._primitives["rms_norm"]
    norm.entry = norm._decider.entry = timed(norm.entry, forward_us, eager_us=180.0)
    run, _ = compiled(lambda x, weight: functional.rms_norm(x, weight.shape, weight, 1e-6), known)
    x, weight = torch.randn(64, 512, requires_grad=True), torch.rand(512, requires_grad=True)
    run(x, weight).square().sum().backward()
    assert ids(known, machine) == launched
    own = x.detach().requires_grad_()
    functional.rms_norm(own, (512,), weight, 1e-6).square().sum().backward()
    torch.testing.assert_close(x.grad, own.grad, rtol=1e-4, atol=1e-5)


def test_a_graph_without_gradients_uses_no_kernel(tmp_path: Path, machine: EmulatedMachine) -> None:
    known = made(tmp_path, machine, forward_us=102.0)
    run, graph_pass = compiled(lambda x, weight: functional.rms_norm(x, weight.shape, weight, 1e-6), known)
    run(torch.randn(64, 512), torch.rand(512))
    assert not machine.launched
    assert "torch.compile was the fastest" in str(graph_pass)


def compiled(model: Callable[..., Tensor], known: Functions) -> tuple[Callable[..., Tensor], GraphPass]:
    graph_pass = GraphPass(known, "content")

    def backend(module: fx.GraphModule, inputs: list[Tensor]) -> object:
        graph_pass(module.graph)
        module.recompile()
        return aot_eager(module, inputs)

    return torch.compile(model, backend=backend, fullgraph=True), graph_pass


def test_a_block_of_redirected_calls_reports_such_a_call_as_replaced(tmp_path: Path, machine: EmulatedMachine) -> None:
    known = made(tmp_path, machine, forward_us=150.0)
    weight = torch.randn(8, 8, requires_grad=True)
    with enabled(known) as report:
        for _ in range(3):
            functional.embedding(INDICES, weight).sum().backward()
    assert report.replaced == {"embedding": 3}
    assert ids(known, machine) == 3 * ["embedding_backward"]


def test_a_forward_that_is_trained_is_pytorchs_where_the_formula_of_its_backward_loses_more_than_its_kernel_saves(
    tmp_path: Path, machine: EmulatedMachine
) -> None:
    known = made(tmp_path, machine, forward_us=50.0, backward_us=1000.0, backward_eager_us=900.0)
    x, weight = torch.rand(8, 8, requires_grad=True), torch.rand(8, requires_grad=True)
    norm = known["rms_norm"]
    for _ in range(3):
        norm(x, (8,), weight, 1e-6).sum().backward()
    assert ids(known, machine) == []
    assert "no kernel computes rms_norm_backward" in norm.explain((x, (8,), weight, 1e-6), {}).reason
    with torch.no_grad():
        norm(x, (8,), weight, 1e-6)
    assert ids(known, machine) == ["rms_norm"]


def test_a_forward_that_is_trained_runs_its_kernel_where_the_formula_of_its_backward_is_one_call_of_pytorch(
    tmp_path: Path, machine: EmulatedMachine
) -> None:
    known = made(tmp_path, machine, forward_us=50.0, backward_us=1000.0, backward_eager_us=900.0)
    weight = torch.rand(8, 8, requires_grad=True)
    known["embedding"](INDICES, weight).sum().backward()
    assert ids(known, machine) == ["embedding"]

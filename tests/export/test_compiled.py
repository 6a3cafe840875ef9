"""Functions of a package in graphs of torch.compile and torch.export; kernels run on the emulated machine."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from each import sampled
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from evolve.export.families import forms
from evolve.export.template import forms as forms_module
from evolve.export.template.functions import Function, Functions
from evolve.export.template.unrolled import guards_tell

NAMESPACE = "tested_kernels"
OPS = ("softmax", "softmax_backward", "rms_norm", "rms_norm_backward", "swiglu", "swiglu_backward", "topk")
OTHERS = ("cross_entropy", "cross_entropy_backward", "layer_norm", "gelu")
Known = dict[str, Function]


@pytest.fixture(scope="module")
def machine() -> EmulatedMachine:
    return EmulatedMachine()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, machine: EmulatedMachine) -> Known:
    ops = primitives((*OPS, *OTHERS), tmp_path_factory.mktemp("kernels"), machine)
    wanted = ("softmax", "rms_norm", "cross_entropy", "topk", "layer_norm", "gelu")
    return dict(Functions([form for form in forms() if form.name in wanted], ops, NAMESPACE))


@pytest.fixture(autouse=True)
def forgotten(machine: EmulatedMachine) -> Iterator[None]:
    torch._dynamo.reset()
    machine.launched.clear()
    yield
    torch._dynamo.reset()


def block(known: Known) -> Callable[..., Tensor]:
    """Return a small model made of functions of the package."""

    def run(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        hidden = known["rms_norm"](x, (x.shape[-1],), weight, 1e-6)
        hidden = known["swiglu"](hidden, hidden * 2)
        loss: Tensor = known["cross_entropy"](known["softmax"](hidden, -1).movedim(-1, 1), target)
        return loss

    return run


def plain(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    hidden = functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)
    hidden = functional.silu(hidden) * (hidden * 2)
    return functional.cross_entropy(torch.softmax(hidden, -1).movedim(-1, 1), target)


def given(*leading: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(*leading, 32), torch.rand(32), torch.randint(32, leading)


def trained(model: Callable[..., Tensor], x: Tensor, weight: Tensor, target: Tensor) -> list[Tensor]:
    """Return the loss and the gradients."""
    leaves = [one.clone().requires_grad_() for one in (x, weight)]
    loss = model(*leaves, target)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize(
    ("backend", "dynamic"),
    [
        ("aot_eager", False),
        *(
            pytest.param(*others, marks=pytest.mark.exhaustive)
            for others in (("eager", False), ("eager", True), ("aot_eager", True))
        ),
    ],
)
def test_a_compiled_model_trains_with_kernels_in_one_graph(
    known: Known, machine: EmulatedMachine, backend: str, dynamic: bool
) -> None:
    compiled = torch.compile(block(known), fullgraph=True, backend=backend, dynamic=dynamic)
    torch.testing.assert_close(trained(compiled, *given(2, 3)), trained(plain, *given(2, 3)))
    assert len(machine.launched) == 8


@pytest.mark.exhaustive
def test_inductor_compiles_the_model(known: Known, machine: EmulatedMachine) -> None:
    compiled = torch.compile(block(known), fullgraph=True)
    torch.testing.assert_close(trained(compiled, *given(2, 3)), trained(plain, *given(2, 3)))
    assert len(machine.launched) == 8


def test_an_opaque_op_recognises_a_repeated_call(known: Known, machine: EmulatedMachine) -> None:
    compiled = torch.compile(block(known), fullgraph=True, backend="aot_eager")
    machine.planned_launches.clear()
    for number in range(3):
        torch.manual_seed(number)
        x, weight, target = (
            torch.randn(11, 3, 32),
            torch.rand(32),
            torch.randint(32, (11, 3)),
        )  # no other test has this size
        torch.testing.assert_close(trained(compiled, x, weight, target), trained(plain, x, weight, target))
    assert len(machine.launched) == 24
    # While PyTorch traces the first forward, a mode is on that later calls do not have.
    assert len(machine.planned_launches) == 12


def test_the_trial_of_guards_does_not_depend_on_modes() -> None:
    guards_tell.cache_clear()
    with FakeTensorMode(), torch.inference_mode():
        assert guards_tell()


def test_one_graph_serves_other_sizes(known: Known, machine: EmulatedMachine) -> None:
    compiled = torch.compile(block(known), fullgraph=True, backend="aot_eager", dynamic=True)
    compiled(*given(2, 3))
    with torch.compiler.set_stance("fail_on_recompile"):
        for leading in ((4, 5), (3, 7)):
            torch.testing.assert_close(compiled(*given(*leading)), plain(*given(*leading)))
    assert len(machine.launched) == 12


@pytest.mark.parametrize("place", [lambda x: x.T, lambda x: x[:, ::2]], ids=["transposed", "every other column"])
def test_an_elementwise_function_of_strided_tensors_is_traced_with_sizes_left_open(
    known: Known, place: Callable[[Tensor], Tensor]
) -> None:
    compiled = torch.compile(known["gelu"], fullgraph=True, backend="aot_eager", dynamic=True)
    x = place(torch.randn(6, 16))
    torch.testing.assert_close(compiled(x), functional.gelu(x))


@pytest.mark.parametrize("strict", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_an_exported_program_holds_the_opaque_ops(known: Known, strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
            return block(known)(x, weight, target)

    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "weight": None, "target": {0: rows}}
    program: Any = torch.export.export(Model(), given(4, 5), dynamic_shapes=shapes, strict=strict)
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {f"{NAMESPACE}.{name}.default" for name in ("rms_norm", "swiglu", "softmax", "cross_entropy")} <= called
    torch.testing.assert_close(program.module()(*given(7, 5)), plain(*given(7, 5)))


def test_a_graph_has_no_opaque_op_where_no_kernel_wins(known: Known, machine: EmulatedMachine) -> None:
    compiled = torch.compile(lambda x: known["softmax"](x, -1), fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 8, dtype=torch.float64)  # no kernel was measured with float64
    torch.testing.assert_close(compiled(x), torch.softmax(x, -1))
    assert not machine.launched


@pytest.mark.parametrize(
    ("call_us", "dim", "order", "runs"),
    [
        (60.0, 1, (0, 1), True),
        (40.0, 1, (1, 0), True),
        (60.0, 1, (1, 0), False),
        (20.0, 0, (0, 1), True),
        (30.0, 0, (0, 1), False),
    ],
    ids=["none", "one", "a long one", "two", "two long ones"],
)
def test_copies_before_and_after_a_kernel_count_in_a_graph(
    known: Known,
    machine: EmulatedMachine,
    monkeypatch: pytest.MonkeyPatch,
    call_us: float,
    dim: int,
    order: tuple[int, ...],
    runs: bool,
) -> None:
    monkeypatch.setattr(forms_module, "CALL_US", call_us)  # the kernel takes 50 us and PyTorch 100 us
    graphs = []

    def backend(module: torch.fx.GraphModule, _inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(module.code)
        return module

    compiled = torch.compile(lambda x: known["softmax"](x, dim), fullgraph=True, backend=backend)
    x = torch.randn(4, 8).permute(order)
    torch.testing.assert_close(compiled(x), torch.softmax(x, dim))
    assert [f"{NAMESPACE}.softmax" in graph for graph in graphs] == [runs]
    assert len(machine.launched) == runs


def test_copies_add_no_guard_on_sizes(known: Known, machine: EmulatedMachine) -> None:
    compiled = torch.compile(lambda x: known["softmax"](x, 0), fullgraph=True, backend="aot_eager", dynamic=True)
    compiled(torch.randn(4, 5, 6))
    with torch.compiler.set_stance("fail_on_recompile"):
        for shape in ((3, 7, 5), (9, 2, 4)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), torch.softmax(x, 0))
    assert len(machine.launched) == 3


def test_a_graph_has_no_opaque_op_without_a_gradient(known: Known, machine: EmulatedMachine) -> None:
    compiled = torch.compile(lambda x: known["topk"](x, 4).values, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), torch.topk(x, 4).values)
    assert len(machine.launched) == 1
    compiled(x.requires_grad_()).sum().backward()
    assert len(machine.launched) == 1
    assert x.grad is not None


@pytest.mark.parametrize("name", sampled(["softmax", "rms_norm", "cross_entropy"], quick=["softmax"]))
def test_an_opaque_op_passes_the_checks_of_pytorch(known: Known, name: str) -> None:
    from reference_ops import catalog
    from reference_ops.inputs import inputs_at

    registry = known["softmax"]._registry
    assert registry
    assert registry.define(name)
    op = catalog.load(name)
    workload = op.emulated[0]
    inputs = [x.requires_grad_(x.is_floating_point()) for x in inputs_at(op, workload, 0, "cpu").values()]
    opaque = getattr(getattr(torch.ops, NAMESPACE), name).default
    torch.library.opcheck(opaque, (*inputs, *dict(workload.parameters).values()))

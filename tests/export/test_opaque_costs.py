"""Costs of opaque ops in graphs: fusion with neighbours that they prevent, and the host's time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulated_machine import EmulatedMachine, primitives
from gpu_records import H200
from torch import Tensor, fx
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional

from evolve.export.families import forms
from evolve.export.template import manifest, redirecting
from evolve.export.template.functions import Functions
from evolve.export.template.neighbours import Edge

OPS = (
    "rms_norm", "rms_norm_backward", "softmax", "softmax_backward", "batch_norm", "batch_norm_relu", "max_pool2d",
    "max_pool2d_backward", "conv2d_bias_relu", "embedding",
)  # fmt: skip
ROWS, COLS = 64, 512
SIZE = ROWS * COLS * 4
X, WEIGHT, SQUARE = torch.randn(ROWS, COLS), torch.rand(COLS), torch.randn(COLS, COLS)
HOST_US = 10.0


def copying_at(entry: manifest.ExportedEntry, gb_s: float) -> manifest.ExportedEntry:
    """Return an entry whose kernels were tested on a GPU with this bandwidth of copies."""
    tested = (manifest.Tested(H200.name, 1, None, None, (), (), None, gb_s),)
    return replace(entry, kernels=tuple(replace(one, tested=tested) for one in entry.kernels))


class Compiled:
    """A function compiled with kernels that save 50 us, on a GPU with a bandwidth of copies."""

    def __init__(self, folder: Path, run: Callable[..., Tensor], bytes_per_us: float = 1e9) -> None:
        self.machine = EmulatedMachine(by_reference=True, opaque_us=HOST_US)
        ops = primitives(OPS, folder, self.machine)
        for one in ops.values():
            one.entry = one._decider.entry = copying_at(one.entry, bytes_per_us / 1e3)
        self.ids = {kernel.id: name for name, one in ops.items() for kernel in one.entry.kernels}
        self.graph_pass = redirecting.GraphPass(Functions(forms(), ops, f"costs{id(ops)}"), "content")
        self.edges: dict[str, Sequence[Edge]] = {}
        torch._dynamo.reset()
        self.plain, self.run = run, torch.compile(run, backend=self._backend, fullgraph=True)

    def _backend(self, module: fx.GraphModule, inputs: list[Tensor]) -> object:
        self.graph_pass(module.graph)
        module.recompile()
        self._gather(module)
        return aot_eager(module, inputs)

    def _gather(self, module: fx.GraphModule) -> None:
        for target in [node.target for node in module.graph.nodes]:
            if isinstance(target, redirecting._Traced):
                self.edges[target.name] = target.edges
                if isinstance(inner := target._function.form.pytorch, fx.GraphModule):
                    self._gather(inner)

    def lost(self, name: str) -> tuple[int, int]:
        """Return the bytes that are moved in addition, in the forward and in the backward, if this call is opaque."""
        found = [edge.lost for edge in self.edges[name]]
        return sum(one.forward for one in found), sum(one.backward for one in found)

    def called(self, *given: Tensor) -> list[str]:
        """Call the function, compare the result with PyTorch's, and return the ops whose kernels ran."""
        torch.testing.assert_close(self.run(*given), self.plain(*given), rtol=1e-4, atol=1e-4)
        return [self.ids[one] for one in self.machine.launched]


def norm(x: Tensor) -> Tensor:
    return functional.rms_norm(x, (COLS,), WEIGHT, 1e-6)


def between_pointwise(x: Tensor) -> Tensor:
    return norm(torch.relu(x) + 1) * 2


def between_products(x: Tensor) -> Tensor:
    return norm(x @ SQUARE) @ SQUARE


def test_a_call_without_neighbours_is_replaced(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, lambda x: torch.softmax(x, -1), bytes_per_us=1.0)
    assert compiled.called(X) == ["softmax"]
    assert compiled.lost("softmax") == (0, 0)


def test_a_norm_between_pointwise_calls_is_left_to_the_compiler_if_it_saves_less_than_the_fusion(
    tmp_path: Path,
) -> None:
    # read and written on both sides: 4 * SIZE bytes in 52 us, and the kernel saves 50 us
    compiled = Compiled(tmp_path, between_pointwise, bytes_per_us=4 * SIZE / 52)
    assert compiled.called(X) == []
    assert compiled.lost("rms_norm") == (4 * SIZE, 0)
    assert "52.0 us to move 524,288 bytes that the compiler keeps on chip" in str(compiled.graph_pass)


def test_the_host_time_of_an_opaque_op_counts(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, between_pointwise, bytes_per_us=4 * SIZE / 45)
    assert compiled.called(X) == []
    assert "10.0 us of the host's time" in str(compiled.graph_pass)


def test_a_norm_between_pointwise_calls_is_replaced_if_it_saves_more(tmp_path: Path) -> None:
    assert Compiled(tmp_path, between_pointwise, bytes_per_us=4 * SIZE / 30).called(X) == ["rms_norm"]


def test_a_norm_between_products_prevents_no_fusion(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, between_products, bytes_per_us=1.0)
    assert compiled.called(X) == ["rms_norm"]
    assert compiled.lost("rms_norm") == (0, 0)


def test_nothing_is_fused_across_a_call_that_a_library_computes(tmp_path: Path) -> None:
    def residual(x: Tensor) -> Tensor:
        first = torch.relu(x)
        return torch.relu(first + norm(first) @ SQUARE)

    compiled = Compiled(tmp_path, residual)
    assert compiled.called(X) == ["rms_norm"]
    # the sum needs the product: `first` is written in any case, and only read once more
    assert compiled.lost("rms_norm") == (SIZE, 0)


def test_a_result_that_is_also_returned_is_written_in_any_case(tmp_path: Path) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        out = norm(x @ SQUARE)
        return out, out * 2

    compiled = Compiled(tmp_path, both)  # type: ignore[arg-type]
    compiled.called(X)
    assert compiled.lost("rms_norm") == (SIZE, 0)


@pytest.mark.parametrize("view", [lambda x: x.view(8, -1, COLS).transpose(0, 1), lambda x: x.chunk(2)[0]])
def test_fusion_goes_through_views(tmp_path: Path, view: Callable[[Tensor], Tensor]) -> None:
    compiled = Compiled(tmp_path, lambda x: torch.softmax(view(torch.relu(x)), -1))
    compiled.run(X)
    assert compiled.lost("softmax") == (2 * view(X).numel() * 4, 0)


def test_gradients_that_meet_before_a_norm_count_in_its_backward(tmp_path: Path) -> None:
    def residual(x: Tensor) -> Tensor:
        first = x @ SQUARE
        return (first @ SQUARE) + (norm(first) @ SQUARE)

    ran = []
    for bytes_per_us in (2 * SIZE / 30, 2 * SIZE / 45):
        compiled = Compiled(tmp_path, residual, bytes_per_us)
        x, own = X.clone().requires_grad_(), X.clone().requires_grad_()
        compiled.run(x).sum().backward()
        residual(own).sum().backward()
        torch.testing.assert_close(x.grad, own.grad, rtol=1e-3, atol=1e-2)
        assert compiled.lost("rms_norm") == (0, 2 * SIZE)
        ran.append([compiled.ids[one] for one in compiled.machine.launched])
    assert ran == [["rms_norm", "rms_norm_backward"], ["rms_norm"]]


def test_a_neighbour_that_runs_a_kernel_is_fused_with_nothing(tmp_path: Path) -> None:
    # the softmax is between two norms, the first of which is replaced
    compiled = Compiled(tmp_path, lambda x: torch.softmax(norm(x), -1), bytes_per_us=2 * SIZE / 35)
    assert compiled.called(X) == ["rms_norm", "softmax"]


def test_a_pooling_is_fused_only_with_what_reads_its_result(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    compiled = Compiled(tmp_path, lambda x: torch.relu(functional.max_pool2d(torch.relu(x), 3, 2, 1)))
    compiled.run(x)
    assert compiled.lost("max_pool2d") == (2 * 2 * 3 * 16 * 4, 0)


def test_an_activation_after_a_convolution_is_fused_with_what_reads_it(tmp_path: Path) -> None:
    weight = torch.randn(4, 3, 3, 3)
    compiled = Compiled(tmp_path, lambda x: torch.relu(functional.conv2d(torch.relu(x), weight, padding=1)) + 1)
    compiled.run(torch.randn(2, 3, 8, 8))
    assert compiled.lost("conv2d_bias_relu") == (2 * 2 * 4 * 64 * 4, 0)


def test_calls_of_a_match_whose_kernel_does_not_run_have_the_neighbours_of_the_match(tmp_path: Path) -> None:
    mean, variance, weight, bias = torch.zeros(4), torch.ones(4), torch.ones(4), torch.ones(4)

    def model(x: Tensor) -> Tensor:
        return torch.relu(functional.batch_norm(torch.relu(x), mean, variance, weight, bias, True)) * 2

    compiled = Compiled(tmp_path, model, bytes_per_us=1.0)
    x = torch.randn(2, 4, 8, 8)
    assert compiled.called(x) == []
    size = x.numel() * 4
    # the compiler must write the input, of which it needs the statistics first
    assert compiled.lost("batch_norm_relu") == compiled.lost("batch_norm") == (3 * size, 0)

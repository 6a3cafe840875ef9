"""Recurrent ops called layer by layer, compared with PyTorch's networks of several layers."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from reference_ops import catalog
from reference_ops.op import Op, Tensors

LAYERS, TIME, BATCH, WIDTH, HIDDEN = 3, 5, 2, 4, 6
NETWORKS: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}


@dataclass(frozen=True)
class Stack:
    """An op, and PyTorch's network of several such layers with its inputs: x, h0 and, for an LSTM, c0."""

    op: Op
    network: nn.RNNBase
    x: torch.Tensor
    first: tuple[torch.Tensor, ...]

    def of_pytorch(self) -> tuple[torch.Tensor, ...]:
        out, last = self.network(self.x, self.first if len(self.first) > 1 else self.first[0])
        return (out, *last) if isinstance(last, tuple) else (out, last)

    def layer_by_layer(self) -> list[Tensors]:
        """Return the inputs and outputs of the op at each layer, by name."""
        found: list[Tensors] = []
        for layer, weights in enumerate(self.network.all_weights):
            below = found[-1]["out"] if found else self.x
            given = [tensor.detach() for tensor in (below, *(state[layer] for state in self.first), *weights)]
            specs = (*self.op.inputs, *self.op.outputs)
            tensors = (*given, *self.op.reference(*given))
            found.append({spec.name: tensor for spec, tensor in zip(specs, tensors, strict=True)})
        return found


@pytest.fixture(params=NETWORKS)
def stack(request: pytest.FixtureRequest) -> Stack:
    torch.manual_seed(0)
    op = catalog.load(request.param)
    network = NETWORKS[request.param](input_size=WIDTH, hidden_size=HIDDEN, num_layers=LAYERS, dtype=torch.float64)
    states = [spec for spec in op.inputs if spec.name in {"h0", "c0"}]
    x, *first = (
        torch.randn(*sizes, dtype=torch.float64, requires_grad=True)
        for sizes in ((TIME, BATCH, WIDTH), *((LAYERS, BATCH, HIDDEN) for _ in states))
    )
    return Stack(op, network, x, tuple(first))


def test_stacked_layers_agree_with_pytorchs_network(stack: Stack) -> None:
    layers = stack.layer_by_layer()
    out, *last = stack.of_pytorch()
    assert torch.allclose(layers[-1]["out"], out)
    for spec, state in zip(stack.op.outputs[1:], last, strict=True):
        assert torch.allclose(torch.stack([layer[spec.name] for layer in layers]), state)


def test_backwards_of_stacked_layers_agree_with_the_networks_gradients(stack: Stack) -> None:
    backward = catalog.load(f"{stack.op.name}_backward")
    outputs = stack.of_pytorch()
    arriving, *of_last = (torch.randn_like(values) for values in outputs)
    wanted = [stack.x, *stack.first, *stack.network.parameters()]
    expected = torch.autograd.grad(outputs, wanted, [arriving, *of_last])
    of_states: list[list[torch.Tensor]] = []
    of_weights: list[torch.Tensor] = []
    for layer, known in reversed([*enumerate(stack.layer_by_layer())]):
        known["grad_out"] = arriving
        known |= {f"grad_{spec.name}": last[layer] for spec, last in zip(stack.op.outputs[1:], of_last, strict=True)}
        arriving, *others = backward.reference(*(known[spec.name] for spec in backward.inputs))
        of_states.insert(0, others[: len(stack.first)])
        of_weights[:0] = others[len(stack.first) :]
    found = [arriving, *map(torch.stack, zip(*of_states, strict=True)), *of_weights]
    for ours, autograds in zip(found, expected, strict=True):
        assert torch.allclose(ours, autograds)

"""The recurrent ops are one layer each: called one after the other they are PyTorch's networks of several."""

import pytest
import torch
from torch import nn

from reference_ops import catalog
from reference_ops.op import Op

LAYERS, TIME, BATCH, WIDTH, HIDDEN = 3, 5, 2, 4, 6
Many = tuple[torch.Tensor, ...]
networks = pytest.mark.parametrize(
    ("name", "network"),
    [
        ("lstm", nn.LSTM(WIDTH, HIDDEN, LAYERS, dtype=torch.float64)),
        ("gru", nn.GRU(WIDTH, HIDDEN, LAYERS, dtype=torch.float64)),
        ("rnn_tanh", nn.RNN(WIDTH, HIDDEN, LAYERS, dtype=torch.float64)),
    ],
)


def drawn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


def states(op: Op) -> Many:
    """Of all layers, as PyTorch takes them: h0, and c0 of an LSTM."""
    return tuple(drawn(LAYERS, BATCH, HIDDEN) for spec in op.inputs if spec.name in {"h0", "c0"})


def weights(network: nn.RNNBase, layer: int) -> list[torch.Tensor]:
    return [weight.detach() for weight in network.all_weights[layer]]


def of_pytorch(network: nn.RNNBase, x: torch.Tensor, first: Many) -> Many:
    out, last = network(x, first if len(first) > 1 else first[0])
    return (out, *last) if isinstance(last, tuple) else (out, last)


def layer_by_layer(op: Op, network: nn.RNNBase, x: torch.Tensor, first: Many) -> list[tuple[Many, Many]]:
    """What every layer took and what it put out."""
    found: list[tuple[Many, Many]] = []
    for layer in range(LAYERS):
        below = found[-1][1][0] if found else x
        inputs = (below.detach(), *(state[layer].detach() for state in first), *weights(network, layer))
        found.append((inputs, tuple(op.reference(*inputs))))
    return found


@networks
def test_layers_on_top_of_each_other_put_out_what_pytorchs_network_does(name: str, network: nn.RNNBase) -> None:
    op, x = catalog.load(name), drawn(TIME, BATCH, WIDTH)
    first = states(op)
    found = layer_by_layer(op, network, x, first)
    out, *last = of_pytorch(network, x, first)
    assert torch.allclose(found[-1][1][0], out)
    for place, state in enumerate(last, start=1):
        assert torch.allclose(torch.stack([outputs[place] for _, outputs in found]), state)


@networks
def test_their_backwards_from_the_last_to_the_first_give_its_gradients(name: str, network: nn.RNNBase) -> None:
    op, x = catalog.load(name), drawn(TIME, BATCH, WIDTH)
    first = states(op)
    backward = catalog.load(f"{name}_backward")
    outputs = of_pytorch(network, x, first)
    given = [torch.randn_like(values) for values in outputs]
    expected = torch.autograd.grad(outputs, [x, *first, *network.parameters()], given)
    arriving, of_states, of_weights = given[0], [], []
    for layer, (inputs, put_out) in reversed([*enumerate(layer_by_layer(op, network, x, first))]):
        known = dict(zip((spec.name for spec in op.inputs), inputs, strict=True))
        known |= {"out": put_out[0], "grad_out": arriving, "grad_h_n": given[1][layer]}
        known |= {"grad_c_n": given[2][layer]} if len(given) > 2 else {}
        arriving, *others = backward.reference(*(known[spec.name] for spec in backward.inputs))
        of_states.append(others[: len(first)])
        of_weights.append(others[len(first) :])
    stacked = [torch.stack(one) for one in zip(*reversed(of_states), strict=True)]
    found = [arriving, *stacked, *(gradient for layer in reversed(of_weights) for gradient in layer)]
    for ours, autograds in zip(found, expected, strict=True):
        assert torch.allclose(ours, autograds)

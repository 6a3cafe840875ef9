"""One step of an LSTM, and its gradients."""

import torch
from torch.nn import functional

from reference_ops.arrangements import faint_beside_huge, filled, opposed
from reference_ops.op import Op, Tolerance, tensors
from reference_ops.precision import wide
from reference_ops.recurrent._shared import (
    CELLS_AWKWARD,
    CELLS_EMULATED,
    CELLS_GPU,
    OF_GRADIENTS,
    VALUES,
    draw,
    gates,
    linear,
    products,
    rounded,
    units,
)

Pair = tuple[torch.Tensor, torch.Tensor]
NOTE = (
    "i, f, g, o = the four quarters of x @ w_ih^T + b_ih + h @ w_hh^T + b_hh, in this order; "
    "c_next = sigmoid(f) * c + sigmoid(i) * tanh(g); h_next = sigmoid(o) * tanh(c_next). "
)


def lstm_cell(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
) -> Pair:
    i, f, g, o = (linear(x, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(4, -1)
    c_next = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c_next.tanh()).to(h.dtype), c_next.to(c.dtype)


def of_torch(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
) -> Pair:
    h_next, c_next = torch.lstm_cell(x, (h, c), w_ih, w_hh, b_ih, b_hh)
    return h_next, c_next


def lstm_cell_backward(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    *saved: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    of_gates, grad_c = to_gates(linear(x, w_ih, b_ih) + linear(h, w_hh, b_hh), c, *saved)
    bias, factor = of_gates.sum(0), rounded(of_gates, x)
    states = factor @ wide(w_ih), factor @ wide(w_hh), grad_c
    found = *states, factor.T @ wide(x), factor.T @ wide(h), bias, bias.clone()
    return tuple(gradient.to(x.dtype) for gradient in found)


def backward_as_called(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Call PyTorch's own backward, with products of the dtype."""
    x, h, c, w_ih, w_hh, b_ih, b_hh, *saved = given
    sums = functional.linear(x, w_ih, b_ih) + functional.linear(h, w_hh, b_hh)
    of_gates, grad_c = to_gates(wide(sums), c, *saved)
    bias, factor = of_gates.sum(0).to(x.dtype), of_gates.to(x.dtype)
    states = factor @ w_ih, factor @ w_hh, grad_c.to(c.dtype)
    return *states, factor.T @ x, factor.T @ h, bias, bias.clone()


def to_gates(
    sums: torch.Tensor, c: torch.Tensor, c_next: torch.Tensor, grad_h_next: torch.Tensor, grad_c_next: torch.Tensor
) -> Pair:
    """Return the gradients of the four gate sums and of c."""
    i, f, g, o = sums.chunk(4, -1)
    i, f, g, o, tanh_c = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid(), wide(c_next).tanh()
    grad_c = grad_c_next + grad_h_next * o * (1 - tanh_c * tanh_c)
    grad_i, grad_f = grad_c * g * i * (1 - i), grad_c * c * f * (1 - f)
    grad_g, grad_o = grad_c * i * (1 - g * g), grad_h_next * tanh_c * o * (1 - o)
    return torch.cat((grad_i, grad_f, grad_g, grad_o), -1), grad_c * f


INPUTS = {
    "x": "batch input",
    "h": "batch hidden",
    "c": "batch hidden",
    "w_ih": "gates input",
    "w_hh": "gates hidden",
    "b_ih": "gates",
    "b_hh": "gates",
}
ops = (
    Op(
        name="lstm_cell",
        note=NOTE + "torch.lstm_cell: the backward recomputes the gates, so they are not an output.",
        reference=lstm_cell,
        baseline=of_torch,
        baseline_free=("h_next", "c_next"),  # in 16 bits PyTorch rounds the gates
        inputs=tensors(**INPUTS),
        outputs=tensors(h_next="batch hidden", c_next="batch hidden"),
        derived=gates(4),
        gpu=CELLS_GPU,
        emulated=CELLS_EMULATED,
        awkward=CELLS_AWKWARD,
        values=VALUES,
        draw=draw,
        flops=lambda dims: 20 * units(dims),
        matrix_flops=lambda dims: 2 * products(dims),
        arranged={**opposed(x=1, w_ih=1), **faint_beside_huge("w_hh", "h")},
        # The default factor suffices for results in float32, rounded once.
        backward=("lstm_cell_backward",),
    ),
    Op(
        name="lstm_cell_backward",
        note="The gradients of a step from its inputs and c_next; the gates are recomputed. " + NOTE + "The gradients "
                                                                                                       "of the two "
                                                                                                       "biases are "
                                                                                                       "equal; each is "
                                                                                                       "an output.",
        reference=lstm_cell_backward,
        baseline=backward_as_called,
        baseline_free=tuple(f"grad_{name}" for name in INPUTS),  # in 16 bits PyTorch rounds the gates as well
        inputs=tensors(**INPUTS, c_next="batch hidden", grad_h_next="batch hidden", grad_c_next="batch hidden"),
        outputs=tensors(**{f"grad_{name}": dims for name, dims in INPUTS.items()}),
        derived=gates(4),
        gpu=CELLS_GPU,
        emulated=CELLS_EMULATED,
        awkward=CELLS_AWKWARD,
        values=OF_GRADIENTS,
        draw=draw,
        # Only one of the two results may matter to a loss.
        arranged={"grad_h_next_zero": filled(grad_h_next=0.0), "grad_c_next_zero": filled(grad_c_next=0.0)},
        flops=lambda dims: 50 * units(dims),
        matrix_flops=lambda dims: 6 * products(dims),
        # The default factor suffices: only gates' gradients are rounded to the dtype, for the products.
        tolerance=Tolerance(sums="batch"),
    ),
)  # fmt: skip

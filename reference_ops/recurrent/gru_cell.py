"""One step of a GRU, and its gradients."""

import torch
from torch.nn import functional

from reference_ops.arrangements import faint_beside_huge, opposed, scaled
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

NOTE = (
    "With a = x @ w_ih^T + b_ih and b = h @ w_hh^T + b_hh, each of three thirds r, z, n: r = sigmoid(a_r + b_r), "
    "z = sigmoid(a_z + b_z), n = tanh(a_n + r * b_n); h_next = (1 - z) * n + z * h."
)


def gru_cell(
    x: torch.Tensor, h: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor
) -> torch.Tensor:
    of_x, of_h = linear(x, w_ih, b_ih).chunk(3, -1), linear(h, w_hh, b_hh).chunk(3, -1)
    r, z = (of_x[0] + of_h[0]).sigmoid(), (of_x[1] + of_h[1]).sigmoid()
    n = (of_x[2] + r * of_h[2]).tanh()
    return (n + z * (h - n)).to(h.dtype)


def of_torch(
    x: torch.Tensor, h: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor
) -> torch.Tensor:
    return torch.gru_cell(x, h, w_ih, w_hh, b_ih, b_hh)


def gru_cell_backward(
    x: torch.Tensor,
    h: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    grad_h_next: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    to_x, to_h, kept = to_gates(linear(x, w_ih, b_ih), linear(h, w_hh, b_hh), h, grad_h_next)
    biases = to_x.sum(0), to_h.sum(0)
    to_x, to_h = rounded(to_x, x), rounded(to_h, x)
    found = to_x @ wide(w_ih), kept + to_h @ wide(w_hh), to_x.T @ wide(x), to_h.T @ wide(h), *biases
    return tuple(gradient.to(x.dtype) for gradient in found)


def backward_as_called(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Call PyTorch's own backward, with products of the dtype."""
    x, h, w_ih, w_hh, b_ih, b_hh, grad_h_next = given
    of_x, of_h = wide(functional.linear(x, w_ih, b_ih)), wide(functional.linear(h, w_hh, b_hh))
    to_x, to_h, kept = to_gates(of_x, of_h, h, grad_h_next)
    biases = to_x.sum(0).to(x.dtype), to_h.sum(0).to(x.dtype)
    to_x, to_h = to_x.to(x.dtype), to_h.to(x.dtype)
    return to_x @ w_ih, torch.addmm(kept.to(h.dtype), to_h, w_hh), to_x.T @ x, to_h.T @ h, *biases


def to_gates(
    of_x: torch.Tensor, of_h: torch.Tensor, h: torch.Tensor, grad_h_next: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x's and h's contributions to the gates, and the direct gradient of h."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = of_x.chunk(3, -1), of_h.chunk(3, -1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = (x_n + r * h_n).tanh()
    grad_n = grad_h_next * (1 - z) * (1 - n * n)
    grad_r, grad_z = grad_n * h_n * r * (1 - r), grad_h_next * (h - n) * z * (1 - z)
    to_x, to_h = torch.cat((grad_r, grad_z, grad_n), -1), torch.cat((grad_r, grad_z, grad_n * r), -1)
    return to_x, to_h, grad_h_next * z


INPUTS = {
    "x": "batch input",
    "h": "batch hidden",
    "w_ih": "gates input",
    "w_hh": "gates hidden",
    "b_ih": "gates",
    "b_hh": "gates",
}
ops = (
    Op(
        name="gru_cell",
        note=NOTE + " torch.gru_cell: the backward recomputes the gates, so they are not an output.",
        reference=gru_cell,
        baseline=of_torch,
        baseline_free=("h_next",),  # in 16 bits PyTorch rounds the gates
        inputs=tensors(**INPUTS),
        outputs=tensors(h_next="batch hidden"),
        derived=gates(3),
        gpu=CELLS_GPU,
        emulated=CELLS_EMULATED,
        awkward=CELLS_AWKWARD,
        values=VALUES,
        draw=draw,
        flops=lambda dims: 16 * units(dims),
        matrix_flops=lambda dims: 2 * products(dims),
        arranged={**opposed(x=1, w_ih=1), **scaled(h=60.0), **faint_beside_huge("w_hh", "h")},
        # The default factor suffices for results in float32, rounded once.
        backward=("gru_cell_backward",),
    ),
    Op(
        name="gru_cell_backward",
        note="The gradients of a step from its inputs; the gates are recomputed. " + NOTE,
        reference=gru_cell_backward,
        baseline=backward_as_called,
        baseline_free=tuple(f"grad_{name}" for name in INPUTS),  # in 16 bits PyTorch rounds the gates as well
        inputs=tensors(**INPUTS, grad_h_next="batch hidden"),
        outputs=tensors(**{f"grad_{name}": dims for name, dims in INPUTS.items()}),
        derived=gates(3),
        gpu=CELLS_GPU,
        emulated=CELLS_EMULATED,
        awkward=CELLS_AWKWARD,
        values=OF_GRADIENTS,
        draw=draw,
        flops=lambda dims: 40 * units(dims),
        matrix_flops=lambda dims: 6 * products(dims),
        # The default factor suffices: only gates' gradients are rounded to the dtype, for the products.
        tolerance=Tolerance(sums="batch"),
    ),
)  # fmt: skip

"""A layer of a plain recurrent network over whole sequences, and its gradients. A call computes one layer."""

import torch

from reference_ops.arrangements import faint_beside_huge, filled, opposed, scaled
from reference_ops.op import Op, Tensors, Tolerance, tensors
from reference_ops.precision import wide
from reference_ops.recurrent._memory import hand_back
from reference_ops.recurrent._shared import (
    ROWS,
    SEQUENCES_AWKWARD,
    SEQUENCES_EMULATED,
    SEQUENCES_GPU,
    VALUES,
    as_on_a_gpu,
    draw,
    gates,
    precision_of_cudnn,
    products,
    rounded,
    units,
)

Many = tuple[torch.Tensor, ...]
NOTE = (
    "For each time t, with h of the previous step, which is h0 at first: h = tanh(x[t] @ w_ih^T + b_ih + h @ w_hh^T + "
    "b_hh). "
    "out has the h of all steps; h_n is the h of the last step. "
)


def rnn_tanh(
    x: torch.Tensor, h0: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor
) -> Many:
    return as_on_a_gpu(of_torch, x, h0, w_ih, w_hh, b_ih, b_hh)


def of_torch(
    x: torch.Tensor, h0: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor
) -> Many:
    training = torch.is_grad_enabled() and x.requires_grad
    out, h_n = torch.rnn_tanh(x, h0[None], [w_ih, w_hh, b_ih, b_hh], True, 1, 0.0, training, False, False)
    return out, h_n[0]


def rnn_tanh_backward(
    x: torch.Tensor,
    h0: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    out: torch.Tensor,
    grad_out: torch.Tensor,
    grad_h_n: torch.Tensor,
) -> Many:
    before, slopes, weight = wide(torch.cat((h0[None], out[:-1]))), 1 - wide(out).square(), wide(w_hh)
    with precision_of_cudnn(x):
        grad_h, of_steps = wide(grad_h_n), []
        for t in reversed(range(len(x))):
            of_steps.append((grad_h + grad_out[t]) * slopes[t])
            grad_h = rounded(of_steps[-1], x) @ weight
        steps = torch.stack(of_steps[::-1])
        taken = rounded(steps, x)
        flat = taken.flatten(0, 1).T
        found = taken @ wide(w_ih), grad_h, flat @ wide(x).flatten(0, 1), flat @ before.flatten(0, 1)
    bias = steps.sum((0, 1)).to(x.dtype)
    return *(gradient.to(x.dtype) for gradient in found), bias, bias.clone()


def draw_saved(inputs: Tensors, generator: torch.Generator) -> None:
    draw(inputs, generator)
    x, h0, w_ih, w_hh, out = list(inputs.values())[:5]
    out.copy_(rnn_tanh(x, h0, w_ih, w_hh, *(w_hh.new_zeros(len(w_hh)) for _ in "ih"))[0])
    hand_back(inputs, generator)


INPUTS = {
    "x": "time batch input",
    "h0": "batch hidden",
    "w_ih": "hidden input",
    "w_hh": "hidden hidden",
    "b_ih": "hidden",
    "b_hh": "hidden",
}
TAKEN = {name: dims for name, dims in INPUTS.items() if not name.startswith("b_")}
ops = (
    Op(
        name="rnn_tanh",
        note=NOTE + "One layer of torch.nn.RNN; several layers are several calls.",
        reference=rnn_tanh,
        inputs=tensors(**INPUTS),
        outputs=tensors(out="time batch hidden", h_n="batch hidden"),
        derived=gates(1),
        gpu=SEQUENCES_GPU,
        emulated=SEQUENCES_EMULATED,
        awkward=SEQUENCES_AWKWARD,
        by_rows=False,  # a step depends on the previous step
        values=VALUES,
        draw=draw,
        flops=lambda dims: 8 * units(dims),
        matrix_flops=lambda dims: 2 * products(dims),
        arranged={**opposed(x=2, w_ih=1), **scaled(h0=60.0), **faint_beside_huge("w_hh", "h0")},
        tf32=True,
        # The default factor suffices: PyTorch also rounds h to the dtype after every step.
        tolerance=Tolerance(recurrent=True),
        backward=("rnn_tanh_backward",),
    ),
    Op(
        name="rnn_tanh_backward",
        note="From the last step to the first, d = (grad_out[t] + grad_h) * (1 - out[t] ** 2), with grad_h at first "
        "grad_h_n, then d @ w_hh; grad_x[t] = d @ w_ih; grad_h0 is the last grad_h; grad_w_ih sums d^T @ x[t] over the "
        "steps, grad_w_hh d^T @ h of the step before, the biases' gradients, which are the same, d over the batch.",
        reference=rnn_tanh_backward,
        inputs=tensors(**TAKEN, out="time batch hidden", grad_out="time batch hidden", grad_h_n="batch hidden"),
        outputs=tensors(**{f"grad_{name}": dims for name, dims in INPUTS.items()}),
        derived=gates(1) | ROWS,
        gpu=SEQUENCES_GPU,
        emulated=SEQUENCES_EMULATED,
        awkward=SEQUENCES_AWKWARD,
        by_rows=False,
        values=VALUES,
        draw=draw_saved,
        # `out` need not follow from h0. A loss may depend on the last states alone.
        arranged={**scaled(h0=60.0), "grad_out_zero": filled(grad_out=0.0)},
        flops=lambda dims: 6 * units(dims),
        matrix_flops=lambda dims: 4 * products(dims),
        tf32=True,
        # The default factor suffices: the reference also rounds gradients of a step to the dtype, as for tensor cores.
        tolerance=Tolerance(sums="rows", recurrent=True),
    ),
)  # fmt: skip

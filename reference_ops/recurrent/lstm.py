"""A layer of an LSTM over whole sequences, and its gradients. A call computes one layer."""

import torch
from torch.nn import functional

from reference_ops.arrangements import faint_beside_huge, filled, opposed, scaled, then
from reference_ops.op import Op, Tensors, Tolerance, tensors
from reference_ops.precision import wide
from reference_ops.recurrent._shared import (
    ROWS,
    SEQUENCES_AWKWARD,
    SEQUENCES_EMULATED,
    SEQUENCES_GPU,
    VALUES,
    as_on_a_gpu,
    draw,
    gates,
    leaves,
    precision_of_cudnn,
    products,
    rounded,
    units,
)

Many = tuple[torch.Tensor, ...]
NOTE = (
    "For each time t, with h and c of the previous step, which are h0 and c0 at first: i, f, g, o = the four quarters "
    "of "
    "x[t] @ w_ih^T + b_ih + h @ w_hh^T + b_hh, in this order; c = sigmoid(f) * c + sigmoid(i) * tanh(g); "
    "h = sigmoid(o) * tanh(c). out has the h of all steps; h_n and c_n are the h and c of the last step. "
)


def lstm(
    x: torch.Tensor,
    h0: torch.Tensor,
    c0: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
) -> Many:
    return as_on_a_gpu(of_torch, x, h0, c0, w_ih, w_hh, b_ih, b_hh)


def of_torch(
    x: torch.Tensor,
    h0: torch.Tensor,
    c0: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
) -> Many:
    weights = [w_ih, w_hh, b_ih, b_hh]
    training = torch.is_grad_enabled() and x.requires_grad
    found = torch.lstm(x, (h0[None], c0[None]), weights, True, 1, 0.0, training, False, False)
    return found[0], found[1][0], found[2][0]


def lstm_backward(
    x: torch.Tensor,
    h0: torch.Tensor,
    c0: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    *saved: torch.Tensor,
) -> Many:
    out, grad_out, grad_h_n, grad_c_n = saved
    given = [wide(tensor) for tensor in (x, torch.cat((h0[None], out[:-1])), w_ih, w_hh, b_ih, b_hh)]
    with precision_of_cudnn(x):
        found = in_float32(*given[:4], given[4] + given[5], wide(c0), grad_out, wide(grad_h_n), wide(grad_c_n))
    *others, grad_bias = (gradient.to(x.dtype) for gradient in found)
    return *others, grad_bias, grad_bias.clone()


def in_float32(*given: torch.Tensor) -> Many:
    """Compute in float32 or wider; only the gradients of the gates are rounded in between."""
    x, before, w_ih, w_hh, bias, c, grad_out, grad_h, grad_c = given
    i, f, g, o = (functional.linear(x, w_ih, bias) + functional.linear(before, w_hh)).chunk(4, -1)
    i, f, g, o, cells, steps = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid(), [c], []
    for t in range(len(x)):
        cells.append(f[t] * cells[-1] + i[t] * g[t])
    for t in reversed(range(len(x))):
        grad_h, tanh_c = grad_h + grad_out[t], cells[t + 1].tanh()
        grad_c = grad_c + grad_h * o[t] * (1 - tanh_c * tanh_c)
        grad_i, grad_f = grad_c * g[t] * i[t] * (1 - i[t]), grad_c * cells[t] * f[t] * (1 - f[t])
        grad_g, grad_o = grad_c * i[t] * (1 - g[t] * g[t]), grad_h * tanh_c * o[t] * (1 - o[t])
        steps.append(torch.cat((grad_i, grad_f, grad_g, grad_o), -1))
        grad_h, grad_c = rounded(steps[-1], grad_out) @ w_hh, grad_c * f[t]
    of_gates = torch.stack(steps[::-1])
    flat = rounded(of_gates, grad_out).flatten(0, 1)
    weights = flat.T @ x.flatten(0, 1), flat.T @ before.flatten(0, 1)
    return rounded(of_gates, grad_out) @ w_ih, grad_h, grad_c, *weights, of_gates.sum((0, 1))


def by_autograd(*given: torch.Tensor) -> Many:
    """Run forward and backward as in training: cuDNN's backward needs buffers of the forward."""
    inputs, grads = leaves(given[:7]), given[8:]
    with torch.enable_grad():
        return torch.autograd.grad(of_torch(*inputs), inputs, grads)


def draw_saved(inputs: Tensors, generator: torch.Generator) -> None:
    draw(inputs, generator)
    save(inputs)


def save(inputs: Tensors) -> None:
    inputs["out"].copy_(lstm(*list(inputs.values())[:7])[0])


INPUTS = {
    "x": "time batch input",
    "h0": "batch hidden",
    "c0": "batch hidden",
    "w_ih": "gates input",
    "w_hh": "gates hidden",
    "b_ih": "gates",
    "b_hh": "gates",
}
ops = (
    Op(
        name="lstm",
        note=NOTE + "One layer of torch.nn.LSTM; several layers are several calls.",
        reference=lstm,
        inputs=tensors(**INPUTS),
        outputs=tensors(out="time batch hidden", h_n="batch hidden", c_n="batch hidden"),
        derived=gates(4),
        gpu=SEQUENCES_GPU,
        emulated=SEQUENCES_EMULATED,
        awkward=SEQUENCES_AWKWARD,
        by_rows=False,  # a step depends on the previous step
        values=VALUES,
        draw=draw,
        flops=lambda dims: 20 * units(dims),
        matrix_flops=lambda dims: 2 * products(dims),
        arranged={**opposed(x=2, w_ih=1), **scaled(c0=60.0), **faint_beside_huge("w_hh", "h0")},
        tf32=True,
        # The default factor suffices: PyTorch also rounds h to the dtype after every step.
        tolerance=Tolerance(recurrent=True),
        backward=("lstm_backward",),
    ),
    Op(
        name="lstm_backward",
        note="The gradients from the forward's inputs and `out`, from which all gates can be recomputed at once, and "
             "then c, step by step. " + NOTE + "The gradients of the two biases are equal; each is an output. "
                                               "PyTorch's "
                                               "time "
        "is that of its forward and backward: cuDNN's backward needs buffers of its own forward.",
        reference=lstm_backward,
        baseline=by_autograd,
        baseline_free=tuple(f"grad_{name}" for name in INPUTS),  # in 16 bits PyTorch rounds after every operation
        inputs=tensors(
            **INPUTS, out="time batch hidden", grad_out="time batch hidden", grad_h_n="batch hidden",
            grad_c_n="batch hidden",
        ),
        outputs=tensors(**{f"grad_{name}": dims for name, dims in INPUTS.items()}),
        derived=gates(4) | ROWS,
        gpu=SEQUENCES_GPU,
        emulated=SEQUENCES_EMULATED,
        awkward=SEQUENCES_AWKWARD,
        by_rows=False,
        values=VALUES,
        draw=draw_saved,
        # A loss may depend on the last states alone.
        arranged={**then(scaled(c0=60.0), save), "grad_out_zero": filled(grad_out=0.0)},
        flops=lambda dims: 50 * units(dims),
        matrix_flops=lambda dims: 6 * products(dims),
        tf32=True,
        # The default factor suffices: the reference also rounds the gates' gradients to the dtype, as for tensor cores.
        tolerance=Tolerance(sums="rows", recurrent=True),
    ),
)  # fmt: skip

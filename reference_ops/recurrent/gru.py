"""A layer of a GRU over whole sequences, and its gradients. A call computes one layer."""

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
    "For each time t, with h of the previous step, which is h0 at first, a = x[t] @ w_ih^T + b_ih and b = h @ w_hh^T + "
    "b_hh, each "
    "of three thirds r, z, n: r = sigmoid(a_r + b_r), z = sigmoid(a_z + b_z), n = tanh(a_n + r * b_n); "
    "h = (1 - z) * n + z * h. out has the h of all steps; h_n is the h of the last step. "
)


def gru(
    x: torch.Tensor, h0: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor
) -> Many:
    return as_on_a_gpu(of_torch, x, h0, w_ih, w_hh, b_ih, b_hh)


def of_torch(
    x: torch.Tensor, h0: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor
) -> Many:
    training = torch.is_grad_enabled() and x.requires_grad
    out, h_n = torch.gru(x, h0[None], [w_ih, w_hh, b_ih, b_hh], True, 1, 0.0, training, False, False)
    return out, h_n[0]


def gru_backward(
    x: torch.Tensor,
    h0: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    *saved: torch.Tensor,
) -> Many:
    out, grad_out, grad_h_n = saved
    given = [wide(tensor) for tensor in (x, torch.cat((h0[None], out[:-1])), w_ih, w_hh, b_ih, b_hh, grad_h_n)]
    with precision_of_cudnn(x):
        return tuple(gradient.to(x.dtype) for gradient in in_float32(*given, grad_out))


def in_float32(*given: torch.Tensor) -> Many:
    """Compute in float32 or wider; only the gradients of the gates are rounded in between."""
    x, before, w_ih, w_hh, b_ih, b_hh, grad_h, grad_out = given
    of_x, of_h = functional.linear(x, w_ih, b_ih).chunk(3, -1), functional.linear(before, w_hh, b_hh).chunk(3, -1)
    r, z = (of_x[0] + of_h[0]).sigmoid(), (of_x[1] + of_h[1]).sigmoid()
    n = (of_x[2] + r * of_h[2]).tanh()
    to_x, to_h = [], []
    for t in reversed(range(len(x))):
        grad_h = grad_h + grad_out[t]
        grad_n = grad_h * (1 - z[t]) * (1 - n[t] * n[t])
        grad_r = grad_n * of_h[2][t] * r[t] * (1 - r[t])
        grad_z = grad_h * (before[t] - n[t]) * z[t] * (1 - z[t])
        to_x.append(torch.cat((grad_r, grad_z, grad_n), -1))
        to_h.append(torch.cat((grad_r, grad_z, grad_n * r[t]), -1))
        grad_h = grad_h * z[t] + rounded(to_h[-1], grad_out) @ w_hh
    exact = torch.stack(to_x[::-1]), torch.stack(to_h[::-1])
    of_a, of_b = (rounded(steps, grad_out) for steps in exact)
    weights = of_a.flatten(0, 1).T @ x.flatten(0, 1), of_b.flatten(0, 1).T @ before.flatten(0, 1)
    return of_a @ w_ih, grad_h, *weights, *(steps.sum((0, 1)) for steps in exact)


def by_autograd(*given: torch.Tensor) -> Many:
    """Run forward and backward as in training: cuDNN's backward needs buffers of the forward."""
    inputs, grads = leaves(given[:6]), given[7:]
    with torch.enable_grad():
        return torch.autograd.grad(of_torch(*inputs), inputs, grads)


def draw_saved(inputs: Tensors, generator: torch.Generator) -> None:
    draw(inputs, generator)
    save(inputs)


def save(inputs: Tensors) -> None:
    inputs["out"].copy_(gru(*list(inputs.values())[:6])[0])


INPUTS = {
    "x": "time batch input",
    "h0": "batch hidden",
    "w_ih": "gates input",
    "w_hh": "gates hidden",
    "b_ih": "gates",
    "b_hh": "gates",
}
ops = (
    Op(
        name="gru",
        note=NOTE + "One layer of torch.nn.GRU; several layers are several calls.",
        reference=gru,
        inputs=tensors(**INPUTS),
        outputs=tensors(out="time batch hidden", h_n="batch hidden"),
        derived=gates(3),
        gpu=SEQUENCES_GPU,
        emulated=SEQUENCES_EMULATED,
        awkward=SEQUENCES_AWKWARD,
        by_rows=False,  # a step depends on the previous step
        values=VALUES,
        draw=draw,
        flops=lambda dims: 16 * units(dims),
        matrix_flops=lambda dims: 2 * products(dims),
        arranged={**opposed(x=2, w_ih=1), **scaled(h0=60.0), **faint_beside_huge("w_hh", "h0")},
        tf32=True,
        # The default factor suffices: PyTorch also rounds h to the dtype after every step.
        tolerance=Tolerance(recurrent=True),
        backward=("gru_backward",),
    ),
    Op(
        name="gru_backward",
        note="The gradients from the forward's inputs and `out`, from which all gates can be recomputed at once. "
        + NOTE + "PyTorch's time is that of its forward and backward: cuDNN's backward needs buffers of its own "
                 "forward.",
        reference=gru_backward,
        baseline=by_autograd,
        baseline_free=tuple(f"grad_{name}" for name in INPUTS),  # in 16 bits PyTorch rounds after every operation
        inputs=tensors(**INPUTS, out="time batch hidden", grad_out="time batch hidden", grad_h_n="batch hidden"),
        outputs=tensors(**{f"grad_{name}": dims for name, dims in INPUTS.items()}),
        derived=gates(3) | ROWS,
        gpu=SEQUENCES_GPU,
        emulated=SEQUENCES_EMULATED,
        awkward=SEQUENCES_AWKWARD,
        by_rows=False,
        values=VALUES,
        draw=draw_saved,
        # A loss may depend on the last states alone.
        arranged={**then(scaled(h0=60.0), save), "grad_out_zero": filled(grad_out=0.0)},
        flops=lambda dims: 40 * units(dims),
        matrix_flops=lambda dims: 6 * products(dims),
        tf32=True,
        # The default factor suffices: the reference also rounds the gates' gradients to the dtype, as for tensor cores.
        tolerance=Tolerance(sums="rows", recurrent=True),
    ),
)  # fmt: skip

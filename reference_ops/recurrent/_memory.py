"""Inputs with which some units keep their state for long, to detect kernels that cut sequences into pieces."""

import math
import random

import torch

from reference_ops.op import Tensors

SHARE = 1 / 8  # share of such units; their tolerance must not excuse errors of the other units
LONGEST = 128  # number of steps
PULSE_CHANCE = 1 / 64
PULSE, HOLD = 6.0, 3.0  # a pulse exceeds the weight by which a unit holds its state
OPEN = 3.0  # input that opens a gate; its negative closes the gate
QUIET = 1 / 16
# for a plain network, a GRU and an LSTM; key: number of gates
GATES_OF_HOLDING = {1: (0.0,), 3: (OPEN, -OPEN, 0.0), 4: (OPEN, -OPEN, 0.0, OPEN)}
KEEPING = 1  # index of the gate that decides how much of the past stays, in a GRU and an LSTM


def hold_pulses(inputs: Tensors, generator: torch.Generator) -> None:
    """Make one input a series of rare pulses, and let some units hold the sign of the last pulse.

    Such a unit returns to the same value at each step, so that roundings neither accumulate nor change the result.
    """
    x, w_ih, w_hh = inputs["x"], inputs["w_ih"], inputs["w_hh"]
    width, hidden, device = x.shape[-1], w_hh.shape[1], x.device
    if width < 2 or hidden * SHARE < 1:
        return
    heard = random.Random(generator.initial_seed()).randrange(width)
    pulses = torch.empty(x.shape[:2], device=device).bernoulli_(PULSE_CHANCE, generator=generator)
    pulses[0] = 1
    x[..., heard] = pulses * _signs(pulses, generator)
    holding = _some(hidden, generator, device).float()
    for name in ("w_ih", "w_hh", "b_ih", "b_hh"):
        units = inputs[name].view(-1, hidden, *inputs[name].shape[1:])
        units.mul_((1 - (1 - QUIET) * holding).view(-1, *[1] * (units.ndim - 2)))
    gates = GATES_OF_HOLDING[len(w_hh) // hidden]
    for bias, opening in zip(inputs["b_ih"].view(-1, hidden), gates, strict=True):
        bias.add_(holding, alpha=opening)
    news = min(2, len(gates) - 1)
    w_hh.view(-1, hidden, hidden)[news] += torch.diag(holding * HOLD)
    w_ih.view(-1, hidden, width)[news, :, heard] += holding * PULSE * _signs(holding, generator)


def keep_for_long(inputs: Tensors, generator: torch.Generator) -> None:
    """Let the gates of some units keep their state for tens of steps, so that gradients reach back that far."""
    hidden, device = inputs["w_hh"].shape[1], inputs["w_hh"].device
    steps = torch.empty(hidden, device=device).uniform_(1, LONGEST, generator=generator)
    bias, kept = inputs["b_ih"].view(-1, hidden), steps.log_() * _some(hidden, generator, device)
    bias[KEEPING] += kept
    if "c0" in inputs:  # the gate before this one admits new input
        bias[KEEPING - 1] -= kept


def hand_back(inputs: Tensors, generator: torch.Generator) -> None:
    """Let some units without gates pass gradients back to the first step unchanged.

    Their weight is one, and the gradients that arrive are rare pulses of one size, a power of two, whose sums are exact
    in 16 bits too. With any other weight, the roundings of all steps would exceed the effect to be tested.
    """
    w_hh, out = inputs["w_hh"], inputs["out"]
    hidden = w_hh.shape[1]
    if hidden * SHARE < 1:
        return
    handing = _some(hidden, generator, w_hh.device)
    w_hh.copy_(torch.where(handing[:, None], w_hh * QUIET, w_hh))  # the weights between these units and others
    w_hh.copy_(torch.where(handing, torch.eye(hidden, device=w_hh.device), w_hh))
    out.masked_fill_(handing, 0.0)  # a bias of zero, where tanh has its largest slope, one
    for name, chance in (("grad_out", PULSE_CHANCE), ("grad_h_n", 1.0)):
        gradient = inputs[name]
        pulses = torch.empty_like(gradient).bernoulli_(chance, generator=generator)
        pulses.mul_(_signs(pulses, generator)).mul_(_power_of_two(gradient))
        gradient.copy_(torch.where(handing, pulses, gradient))


def _power_of_two(like: torch.Tensor) -> torch.Tensor:
    """Return the nearest power of two to the size of these numbers: the next one might not be finite in float16."""
    size = like.float().square().mean().sqrt()
    mantissa, _ = torch.frexp(size)
    above = size / mantissa
    return torch.where(size > 0, torch.where(mantissa < math.sqrt(0.5), above / 2, above), 0.0)


def _some(hidden: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    return torch.randperm(hidden, generator=generator, device=device) < math.ceil(hidden * SHARE)


def _signs(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.empty_like(like).bernoulli_(generator=generator).mul_(2).sub_(1)

"""Losses with PyTorch's signatures."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evolve.export.template.forms import FLOAT32, Call, Form, Lowered

NOT_MEAN = "the kernels compute means only"
OLD = "`size_average` and `reduce` are PyTorch's"


def _mean(op: str, input: Tensor, target: Tensor, reduction: str, **parameters: float) -> Lowered:
    """Return the call of an op that takes the mean of a loss over all elements, in float32."""
    if reduction != "mean":
        return NOT_MEAN
    if input.shape != target.shape:
        return "the shapes differ"
    return Call(op, (input, target), parameters, lambda outputs: outputs[0].to(input.dtype))


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Lowered:
    """The mean of squared differences."""
    if size_average is not None or reduce is not None or weight is not None:
        return OLD
    return _mean("mse", input, target, reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Lowered:
    """The mean of a loss that is quadratic up to a difference of `delta`, and linear beyond."""
    if weight is not None:
        return "the kernels accept no weight"
    return _mean("huber", input, target, reduction, delta=float(delta))


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Lowered:
    """The Kullback-Leibler divergence of log-probabilities from target probabilities (`reduction="batchmean"`)."""
    if size_average is not None or reduce is not None:
        return OLD
    if reduction != "batchmean" or log_target:
        return "the kernels have reduction='batchmean' and take probabilities as target"
    if input.shape != target.shape or not input.dim():
        return "the shapes differ"
    views = tuple(x if x.dim() == 2 else x.reshape(x.shape[0], -1) for x in (input, target))
    return Call("kl_div", views, {}, lambda outputs: outputs[0].to(input.dtype))


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Lowered:
    """The cross entropy of logits and target classes.

    Classes are in the second dim, or in the first if there is no other.
    """
    if size_average is not None or reduce is not None:
        return OLD
    if reduction != "mean":
        return NOT_MEAN
    if weight is not None:
        return "the kernels accept no class weights"
    if target.dtype != torch.int64 or not input.dim() or target.dim() != input.dim() - 1:
        return "the targets are not class indices"
    views = (input if input.dim() <= 2 else input.movedim(1, -1), target)
    parameters = {"ignore_index": ignore_index, "label_smoothing": float(label_smoothing)}
    return Call("cross_entropy", views, parameters, lambda outputs: outputs[0].to(input.dtype))


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Lowered:
    """The CTC loss (connectionist temporal classification) of padded targets; class 0 is the blank."""
    if blank or zero_infinity or reduction not in {"none", "mean", "sum"}:
        return "the kernels have blank=0, zero_infinity=False"
    lengths = (input_lengths, target_lengths)
    if not all(isinstance(x, Tensor) and x.dtype == torch.int64 and x.device == log_probs.device for x in lengths):
        return "the lengths are not int64 tensors on the logits' device"
    if log_probs.dim() != 3 or targets.dim() != 2 or targets.dtype != torch.int64:
        return "the targets are not padded"

    def finish(outputs: tuple[Tensor, ...]) -> Tensor:
        if reduction == "mean":
            return (outputs[0] / target_lengths.clamp_min(1)).mean()
        return outputs[0].sum() if reduction == "sum" else outputs[0]

    return Call("ctc_loss", (log_probs, targets, *lengths), {}, finish)


def _ctc_loss(*arguments: Any, **named: Any) -> Any:
    return functional.ctc_loss(*arguments, **named)


FORMS = (
    Form("mse_loss", ("mse",), mse_loss, functional.mse_loss, FLOAT32),
    Form("huber_loss", ("huber",), huber_loss, functional.huber_loss, FLOAT32),
    Form("kl_div", ("kl_div",), kl_div, functional.kl_div, FLOAT32),
    Form("cross_entropy", ("cross_entropy",), cross_entropy, functional.cross_entropy, FLOAT32),
    Form("ctc_loss", ("ctc_loss",), ctc_loss, _ctc_loss, "", (functional.ctc_loss,)),
)

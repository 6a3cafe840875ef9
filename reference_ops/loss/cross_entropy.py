"""Cross entropy of logits and target classes, with the log-sum-exp that its backward needs, and the backward."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.arrangements import far_below, filled, of_indices, scaled, then
from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.scores import last_ahead

IGNORED = -100
PLAIN = {"ignore_index": IGNORED, "label_smoothing": 0.0}
SMOOTHED = {"ignore_index": IGNORED, "label_smoothing": 0.1}
PADDED = {"ignore_index": 0, "label_smoothing": 0.0}  # a class of padding


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int = IGNORED, label_smoothing: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    loss, _ = as_called(logits, targets, ignore_index, label_smoothing)
    return loss, logits.to(loss.dtype).logsumexp(-1)


def as_called(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    loss = functional.nll_loss(log_probs, targets, ignore_index=ignore_index)
    kept = targets != ignore_index
    if label_smoothing:
        even = log_probs.mean(-1).where(kept, 0).sum() / kept.sum()
        loss = (1 - label_smoothing) * loss - label_smoothing * even
    at = targets.where(kept, 0).unsqueeze(1)
    # This needs no further pass, while logsumexp would read all logits again, but it is NaN where the target's logit is
    # infinite.
    lse = logits.gather(1, at) - log_probs.gather(1, at)
    return loss, lse.squeeze(1)


def cross_entropy_backward(
    grad_loss: torch.Tensor,
    logits: torch.Tensor,
    targets: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> torch.Tensor:
    kept = targets != ignore_index
    even = label_smoothing / logits.shape[1]
    hit = targets.unsqueeze(1) == torch.arange(logits.shape[1], device=logits.device)
    at_target = lse.new_full((), 1 - label_smoothing + even)  # two Python numbers would give a float32 tensor
    probs = (logits - lse.unsqueeze(1)).exp_().sub_(torch.where(hit, at_target, even))
    share = torch.where(kept, grad_loss / kept.sum(), 0)  # true even if no row is kept, as in PyTorch
    return probs.mul_(share.unsqueeze(1)).to(logits.dtype)


def draw_targets(inputs: Tensors, generator: torch.Generator, known: Mapping[str, Any]) -> None:
    """Draw random classes, ignore a tenth of the rows except the first, and raise the target's logit in half of all."""
    logits, targets = inputs["logits"], inputs["targets"]
    targets.random_(0, logits.shape[1], generator=generator)
    foretold = torch.empty_like(logits[:, :1]).uniform_(-12, 12, generator=generator).clamp_(min=0)
    logits.scatter_add_(1, targets.unsqueeze(1), foretold)
    ignored = torch.empty_like(targets, dtype=torch.bool).bernoulli_(0.1, generator=generator)
    ignored[0] = False
    targets.masked_fill_(ignored, known["ignore_index"])


def masked_logits(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Set the first logits and half of the others to -inf, but not the target's, as for a padded vocabulary."""
    logits, targets = inputs["logits"], inputs["targets"]
    masked = torch.empty_like(logits, dtype=torch.bool).bernoulli_(0.5, generator=generator)
    masked[:, : (logits.shape[1] + 1) // 2] = True
    masked.scatter_(1, targets.clamp(min=0).unsqueeze(1), value=False)
    logits.masked_fill_(masked, -torch.inf)


def all_ignored_but_one(inputs: Tensors, _: torch.Generator, known: Mapping[str, Any]) -> None:
    inputs["targets"][1:] = known["ignore_index"]


def all_ignored(inputs: Tensors, _: torch.Generator, known: Mapping[str, Any]) -> None:
    """Ignore every row, as in a batch that is only padding: the loss is NaN, and its gradient is zero."""
    inputs["targets"].fill_(known["ignore_index"])


FORWARD = {
    **of_indices("targets", "vocab"),
    "masked_logits": masked_logits,
    "all_ignored_but_one": all_ignored_but_one,
    "all_ignored": all_ignored,
    **far_below("logits"),
}


def draw_backward(inputs: Tensors, generator: torch.Generator, known: Mapping[str, Any]) -> None:
    draw_targets(inputs, generator, known)
    inputs["grad_loss"].uniform_(0.5, 2, generator=generator)
    save_lse(inputs)


def save_lse(inputs: Tensors) -> None:
    for lse, logits in zip(inputs["lse"].split(1024), inputs["logits"].split(1024), strict=True):  # saves memory
        lse.copy_(logits.float().logsumexp(-1))


# With equal logits, a long sum rounds every term in the same way, and a mean of few digits would hide other errors.
# -inf is also left out, because with label smoothing the loss of a row that contains it is infinite.
VARIED = tuple(name for name in COMMON if name not in ("constant", "tiny"))

forward = Op(
    name="cross_entropy",
    note="lse is each row's logarithm of the sum of exp(logits), kept for the backward. loss is the mean, over the "
    "rows whose target is not ignore_index, of lse - (1 - label_smoothing) * (the target's logit) - label_smoothing * "
    "(the mean logit). Both are float32 for logits of any dtype, as under autocast. If all rows are ignored, loss is "
    "NaN.",
    reference=cross_entropy,
    baseline=as_called,
    inputs=tensors(logits="rows vocab", targets="int64[rows]"),
    outputs=tensors(loss="float32[]", lse="float32[rows]"),
    gpu=(
        *workloads("bfloat16 float32 float16", {"rows": 8192, "vocab": 32000}, **PLAIN),
        *workloads("bfloat16", {"rows": 4096, "vocab": 128256}, {"rows": 8192, "vocab": 50257}, **PLAIN),
        *workloads("bfloat16 float32", {"rows": 4096, "vocab": 32128}, **SMOOTHED),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", {"rows": 64, "vocab": 256}, **PLAIN),
        *workloads("float32 bfloat16", {"rows": 18, "vocab": 1000}, **SMOOTHED),
    ),
    awkward=(
        *rotated(
            "float32 bfloat16 float16",
            {"rows": 1, "vocab": 1}, {"rows": 31, "vocab": 33}, {"rows": 7, "vocab": 257}, {"rows": 2, "vocab": 4104},
            **PLAIN,
        ),
        *rotated(
            "bfloat16 float16 float32",
            {"rows": 1, "vocab": 31}, {"rows": 259, "vocab": 2}, {"rows": 5, "vocab": 1023},
            **SMOOTHED,
        ),
        *rotated("float32 bfloat16", {"rows": 37, "vocab": 19}, {"rows": 6, "vocab": 130}, **PADDED),
    ),
    values=VARIED,
    draw=draw_targets,
    arranged={**FORWARD, **last_ahead("logits")},
    valid=lambda known: 0 <= known["label_smoothing"] <= 1,
    nan_spreads=True,  # `nan_spreads` also holds with a vocabulary of one
    flops=lambda dims: 5 * dims["rows"] * dims["vocab"],  # compare, subtract, exponential, and two additions
    derived={"longest_sum": lambda dims: max(dims["rows"], dims["vocab"])},
    # The default factor suffices: PyTorch also sums in float32. Rows may be added as they finish.
    tolerance=Tolerance(sums="longest_sum"),
    backward=("cross_entropy_backward",),
)  # fmt: skip
backward = Op(
    name="cross_entropy_backward",
    note="grad_logits = (exp(logits - lse) - (1 - label_smoothing) at the target - label_smoothing / vocab everywhere) "
    "* grad_loss / (rows whose target is not ignore_index), and 0 in the other rows.",
    reference=cross_entropy_backward,
    inputs=tensors(grad_loss="float32[]", logits="rows vocab", targets="int64[rows]", lse="float32[rows]"),
    outputs=tensors(grad_logits="rows vocab"),
    gpu=(
        *workloads("bfloat16 float32", {"rows": 4096, "vocab": 32000}, **PLAIN),
        *workloads("bfloat16", {"rows": 2048, "vocab": 128256}, {"rows": 4096, "vocab": 50257}, **PLAIN),
        *workloads("bfloat16 float32", {"rows": 4096, "vocab": 32128}, **SMOOTHED),
    ),
    emulated=tuple(workload for workload in forward.emulated if workload.dtype != "float16"),
    awkward=tuple(workload for workload in forward.awkward if workload.dtype != "float16"),
    values=COMMON,
    draw=draw_backward,
    # a gradient of NaN, as after an overflow, must not reach ignored rows
    arranged={**then(FORWARD, save_lse), **scaled(grad_loss=-1e-8), "NaN_gradient": filled(grad_loss=math.nan)},
    # With full label smoothing, gradients are probabilities minus equal shares: differences of almost equal numbers.
    valid=lambda known: 0 <= known["label_smoothing"] < 1,
    flops=lambda dims: 4 * dims["rows"] * dims["vocab"],
    # The default factor suffices: everything is in float32 and rounded once. float16 is left out, because gradients
    # divided by so many rows would mostly be below its smallest number.
)
ops = (forward, backward)

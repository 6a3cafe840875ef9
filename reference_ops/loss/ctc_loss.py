"""CTC loss (connectionist temporal classification) of each sample, for speech and text in images, and its backward."""

import math
from collections.abc import Mapping

import torch
from torch.nn import functional

from reference_ops.arrangements import filled, then
from reference_ops.op import (
    COMMON,
    COUNTED_NAN,
    NOT_FINITE,
    Arrange,
    Op,
    Tensors,
    Tolerance,
    rotated,
    tensors,
    workloads,
)

aten = torch.ops.aten
Two = tuple[torch.Tensor, torch.Tensor]
BLANK = 0
BREATHS = 4
OF_BREATHS = 0.1  # share of the spare frames that lie between labels of one phrase; the other frames are pauses


def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor
) -> Two:
    lengths = (input_lengths, target_lengths)
    loss, log_alpha = aten._ctc_loss(log_probs, targets, *lengths, BLANK, False)  # noqa: SLF001 - keeps log_alpha
    # PyTorch's states end with the longest target. Beyond a sample's lengths, PyTorch leaves memory uninitialised.
    log_alpha = functional.pad(log_alpha, (0, 2 * targets.shape[1] + 1 - log_alpha.shape[2]))
    frames = torch.arange(log_alpha.shape[1], device=log_probs.device) >= input_lengths.unsqueeze(1)
    states = torch.arange(log_alpha.shape[2], device=log_probs.device) > 2 * target_lengths.unsqueeze(1)
    return loss, log_alpha.masked_fill(frames.unsqueeze(2) | states.unsqueeze(1), -torch.inf)


def ctc_loss_backward(
    grad_loss: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    loss: torch.Tensor,
    log_alpha: torch.Tensor,
) -> torch.Tensor:
    lengths = (input_lengths, target_lengths)
    found: torch.Tensor = aten._ctc_loss_backward(  # noqa: SLF001 - autograd calls it
        grad_loss, log_probs, targets, *lengths, loss, log_alpha, BLANK, False
    )
    return found


def draw_samples(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw log-probabilities of a fairly confident network. The first sample has the full lengths.

    With less confidence, the loss of a long sample would be in the thousands. Its gradients are exponentials of
    differences of such numbers, and would have too few digits to check. Each label has two frames, so targets are
    possible.
    """
    log_probs, targets = inputs["log_probs"], inputs["targets"]
    (time, batch, classes), length = log_probs.shape, targets.shape[1]
    targets.random_(1, classes, generator=generator)
    chance = torch.empty((2, batch), device=targets.device).uniform_(generator=generator)
    labels = chance[0].mul_(length).long().add_(1).clamp_(max=length)
    labels[0] = length
    frames = (chance[1] * (time - 2 * labels + 1)).long().add_(2 * labels).clamp_(max=time)
    frames[0] = time
    inputs["target_lengths"].copy_(labels)
    inputs["input_lengths"].copy_(frames)
    known = torch.empty((time, batch, 1), dtype=log_probs.dtype, device=targets.device)
    known.uniform_(generator=generator).mul_(24).add_(math.log(classes))
    log_probs.scatter_add_(2, spoken(targets, labels, frames, time, generator).unsqueeze(2), known)
    log_probs.copy_(log_probs.log_softmax(-1))


def spoken(
    targets: torch.Tensor, labels: torch.Tensor, frames: torch.Tensor, time: int, generator: torch.Generator
) -> torch.Tensor:
    """Return a class per frame: half of the labels last until the next, the others are short and followed by blanks."""
    starts = beginnings(targets, labels, frames, generator)
    moments = torch.arange(time, device=targets.device).expand(len(targets), time).contiguous()
    label = torch.searchsorted(starts, moments, right=True) - 1
    lasts = torch.empty_like(targets, dtype=torch.bool).bernoulli_(0.5, generator=generator)
    lasts[:, :-1] &= targets[:, :-1] != targets[:, 1:]
    goes_on = label == functional.pad(label[:, :-1], (1, 0), value=-1)
    own = label.clamp(min=0)
    silent = (label < 0) | (goes_on & ~lasts.gather(1, own))
    return targets.gather(1, own).masked_fill(silent, BLANK).T


def beginnings(
    targets: torch.Tensor, labels: torch.Tensor, frames: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Return the first frame of each label: labels come in a few phrases with pauses before, between and after them."""
    batch, length = targets.shape
    device = targets.device
    number = torch.arange(length, device=device)
    # The earliest possible frames: a label takes a frame, and a blank before it if it repeats the previous label.
    repeats = functional.pad(targets[:, 1:] == targets[:, :-1], (1, 0))
    earliest = number + repeats.cumsum(1)
    spare = frames.unsqueeze(1) - 1 - earliest.gather(1, labels.unsqueeze(1) - 1)
    breaths = torch.empty((batch, BREATHS), device=device).uniform_(generator=generator)
    chosen = torch.empty((batch, length), device=device).random_(BREATHS, generator=generator).long()
    within = torch.empty((batch, length), device=device).uniform_(generator=generator)
    waited = torch.lerp(breaths.gather(1, chosen), within, OF_BREATHS)
    waited = waited.masked_fill(number >= labels.unsqueeze(1), 1.0).sort(1).values
    starts = earliest + (waited * (spare + 1)).long().minimum(spare)
    return starts.masked_fill(number >= labels.unsqueeze(1), torch.iinfo(torch.int64).max)


def full_lengths(inputs: Tensors, _: torch.Generator, known: Mapping[str, int]) -> None:
    inputs["target_lengths"].fill_(known["length"])
    inputs["input_lengths"].fill_(known["time"])


def too_few_frames(inputs: Tensors, _: torch.Generator, __: Mapping[str, int]) -> None:
    """Give all samples equal labels, and every other sample one frame less than its number of labels, but at least one.

    A target that does not fit into its frames is impossible: the loss is infinite.
    """
    inputs["targets"][1::2] = 1
    inputs["input_lengths"][::2] = (inputs["target_lengths"][::2] - 1).clamp_(min=1)
    inputs["input_lengths"][1::2] = inputs["target_lengths"][1::2]


def without_frames(inputs: Tensors, _: torch.Generator, __: Mapping[str, int]) -> None:
    """Leave every other sample without frames, and every fourth without labels, too, so that its loss is 0."""
    inputs["input_lengths"][::2] = 0
    inputs["target_lengths"][::4] = 0


def padded_with(value: int) -> Arrange:
    """Fill the targets behind each target_length, which have no effect in PyTorch, with one value."""

    def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, int]) -> None:
        targets = inputs["targets"]
        behind = torch.arange(targets.shape[1], device=targets.device) >= inputs["target_lengths"].unsqueeze(1)
        targets.masked_fill_(behind, value)

    return arrange


ARRANGED = {
    "no_labels": filled(target_lengths=0),
    "full_lengths": full_lengths,
    "one_label": filled(targets=1, target_lengths=1),
    "without_frames": without_frames,
    "targets_padded_with_blanks": padded_with(BLANK),
    "targets_padded_with_-1": padded_with(-1),
    "targets_padded_with_-100": padded_with(-100),
}


def draw_backward(inputs: Tensors, generator: torch.Generator) -> None:
    draw_samples(inputs, generator)
    inputs["grad_loss"].uniform_(0.5, 2, generator=generator)
    save_forward(inputs)


def save_forward(inputs: Tensors) -> None:
    given = (inputs[name] for name in ("targets", "input_lengths", "target_lengths"))
    loss, log_alpha = ctc_loss(inputs["log_probs"].double(), *given)
    inputs["loss"].copy_(loss)
    inputs["log_alpha"].copy_(log_alpha)


def at(time: int, batch: int, classes: int, length: int) -> dict[str, int]:
    return {"time": time, "batch": batch, "classes": classes, "length": length}


def is_possible(known: Mapping[str, int]) -> bool:
    return known["classes"] > 1 and known["time"] >= 2 * known["length"]


def read_in_forward(dims: Mapping[str, int]) -> int:
    """Return the number of elements that must be read: the blank and half of the labels in half of the frames."""
    labels = dims["classes"] - 1
    different = labels * (1 - (1 - 1 / labels) ** dims["length"])
    return dims["time"] * dims["batch"] * max(2, int(1 + different / 2)) // 2


def steps(dims: Mapping[str, int]) -> int:
    """Return the number of steps of the recursion. An average sample has more than half of the frames and states."""
    return max(1, dims["time"] * dims["batch"] * dims["states"] // 4)


STATES = {"states": lambda known: 2 * known["length"] + 1}
# PyTorch has no 16-bit CTC: log-probabilities of a whole sentence would have no digits left.
GPU = workloads(
    "float32",
    at(800, 32, 32, 200),  # speech, in characters
    at(500, 64, 1024, 80),  # speech, in word pieces
    at(32, 512, 97, 12),  # words in images
    at(80, 128, 6625, 25),  # lines of Chinese
    at(313, 19, 61, 127),
)
EMULATED = workloads("float32", at(24, 6, 11, 8), at(40, 5, 33, 17))
AWKWARD = rotated(
    "float32", at(2, 1, 2, 1), at(3, 33, 2, 1), at(31, 7, 5, 15), at(9, 3, 257, 2), at(65, 2, 3, 32), at(17, 1, 31, 5)
)
# With a few logarithms in the thousands, the sum of a sample has too few digits for its exponential.
MODERATE = tuple(name for name in COMMON if name not in ("large", "heavy_tail"))
LENGTHS = {"targets": "int64[batch length]", "input_lengths": "int64[batch]", "target_lengths": "int64[batch]"}
ops = (
    Op(
        name="ctc_loss",
        note="log_probs are log-softmaxed over the classes; class 0 is the blank, and no target is. With target s the "
        "blanks and labels in turn, 0 t1 0 t2 ... 0, states = 2 * length + 1 of them: log_alpha[b, t, s] is the "
        "logarithm of the probability of all ways to emit frames 0 to t and be in state s then: log_probs[t, b, "
        "class of s] + logsumexp of log_alpha[b, t - 1] at s, s - 1, and s - 2 if the class of s is neither blank nor "
        "that of s - 2. A way begins in state 0 or 1. loss = -logsumexp of the last two states (2 * target_length and "
        "the one before) at frame input_length - 1. log_alpha is -inf where no way leads, and at frames from "
        "input_length and states from 2 * target_length + 1 on. 0 <= target_length <= length and 0 <= input_length <= "
        "time; without frames, loss is 0 if target_length is 0, and infinite otherwise.",
        reference=ctc_loss,
        inputs=tensors(log_probs="time batch classes", **LENGTHS),
        outputs=tensors(loss="batch", log_alpha="batch time states"),
        derived=STATES,
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        by_rows=False,
        draw=draw_samples,
        arranged={**ARRANGED, "too_few_frames": too_few_frames},
        valid=is_possible,
        touched={"log_probs": read_in_forward},
        flops=lambda dims: 8 * steps(dims),
        # The default factor suffices: PyTorch also adds the same logarithms one after another in float32.
        backward=("ctc_loss_backward",),
    ),
    Op(
        name="ctc_loss_backward",
        note="With log_beta the same recursion from the end, log_beta[b, t, s] including log_probs[t, b, class of s] "
        "as log_alpha does: grad_log_probs[t, b, c] = grad_loss[b] * (exp(log_probs[t, b, c]) - the sum over the "
        "states s of class c of exp(log_alpha[b, t, s] + log_beta[b, t, s] + loss[b] - log_probs[t, b, c])), and 0 "
        "from frame input_length on. As in PyTorch this is the gradient of the logits, whose log_softmax log_probs is. "
        "loss and log_alpha are the forward's; see ctc_loss.",
        reference=ctc_loss_backward,
        inputs=tensors(
            grad_loss="batch", log_probs="time batch classes", **LENGTHS, loss="batch", log_alpha="batch time states"
        ),
        outputs=tensors(grad_log_probs="time batch classes"),
        derived=STATES,
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        values=MODERATE,
        by_rows=False,
        draw=draw_backward,
        arranged=then(ARRANGED, save_forward),
        exempt=dict.fromkeys(
            (*NOT_FINITE, COUNTED_NAN), "the gradient of a class that no target has is exp(-inf + loss) in PyTorch"
        ),
        valid=is_possible,
        touched={
            "log_probs": lambda dims: dims["time"] * dims["batch"] * dims["classes"] // 2,
            "log_alpha": steps,
        },
        flops=lambda dims: 14 * steps(dims) + dims["time"] * dims["batch"] * dims["classes"],
        tolerance=Tolerance(),  # the default factor suffices: PyTorch's is the same recursion in float32
    ),
)

"""Check of an op: corrupts PyTorch's results in several ways and verifies that each corruption is found.

A corruption that passes is a blind spot: verdicts on that workload mean nothing.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from evolve.evaluation.allowed_errors import leeway
from evolve.evaluation.compare import alike
from evolve.evaluation.nearby import of_more_bits
from evolve.evaluation.truth import Truth, truth
from reference_ops.inputs import SEEDS, RowGroup, inputs_at
from reference_ops.op import (
    CLASHING,
    INFINITE,
    INFINITE_WEIGHTS,
    MEETING,
    MINUS_INF,
    MINUTE,
    MINUTE_WEIGHTS,
    MIXED,
    NAN,
    NAN_IN_WEIGHTS,
    NORMAL,
    SAVED_NAN,
    Number,
    Op,
    Tensors,
    Workload,
)

VISIBLE_SHARE = 0.05  # share of the root mean square by which one element is corrupted
AT_ONCE = 2**26  # number of elements that are converted to float64 at once
VISIBLE_ROUNDINGS = 16  # roundings of the element, added to its change
MATERIAL = 4  # factor of rounding and PyTorch's own error; a smaller change need not be found
BITS_LOST = 3  # bfloat16 loses 3 of 8 bits, and float16 3 of 11 in a round trip through bfloat16; 8-bit types keep one
PLACES_TRIED = 50
# a blind spot of a quarter of the seeds is reported in 1 of 1,000 evaluations
SECOND_LOOKS, FURTHER_LOOKS, MOST = 2, 4, 3
LENIENCY = 16  # factor of the error allowed for a kernel: fused baselines round differently
CANNOT = "PyTorch cannot compute it"
Corruption = Callable[[torch.Tensor, random.Random], torch.Tensor]


@dataclass(frozen=True)
class BlindSpot:
    """A corruption that passes; if `corruption` is empty, a correct result that fails."""

    workload: str
    values: str
    output: str
    corruption: str
    words: str

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.values, self.output, self.corruption


def distributions(op: Op) -> tuple[str, ...]:
    """Return the names of all distributions from which the op's inputs are drawn."""
    return (NORMAL, *op.values, MIXED)


def blind_spots(
    op: Op, workload: Workload, seed: int, torch_device: str, *, quick: bool = False
) -> tuple[BlindSpot, ...]:
    """Return the faults that an evaluation here would miss; `quick` tries only inputs that evaluations draw.

    A corruption may pass by chance, for example if a number has few bits to lose. It counts only if it passes again
    with two other seeds and then, on any values, with most of some further seeds. These seeds are random, because
    consecutive seeds mix the distributions in the same order, so that one corruption would pass with all or none.
    """
    found = _spots(op, workload, seed, torch_device, quick=quick)
    rng, shown = random.Random(seed), Counter[tuple[str, str]]()
    for turn in range(1, 1 + SECOND_LOOKS + FURTHER_LOOKS):
        if not found:
            break
        again = _spots(op, workload, rng.randrange(SEEDS), torch_device, quick=quick)
        if turn <= SECOND_LOOKS:
            kinds = {spot.kind for spot in again}
            found = tuple(spot for spot in found if spot.kind in kinds)
        else:
            shown.update({(spot.output, spot.corruption) for spot in again})
    return tuple(spot for spot in found if shown[spot.output, spot.corruption] >= MOST)


def _spots(op: Op, workload: Workload, seed: int, torch_device: str, *, quick: bool) -> tuple[BlindSpot, ...]:
    """Return the blind spots found with one seed.

    Awkward shapes may be too small to show a fault (a softmax of one column is 1). For these, only PyTorch's own
    result is tried, which must pass.
    """
    spots: list[BlindSpot] = []
    declared = workload in (*op.gpu, *op.emulated)
    unseen = {name for name, value in workload.parameters if declared and not quick and isinstance(value, float)}
    for values in (NORMAL, MIXED) if quick else distributions(op):
        try:
            known = truth(op, workload, values, seed, inputs_at(op, workload, seed, torch_device, values))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a user's reference may raise
            words = f"{CANNOT}: {type(error).__name__}: {error}"
            spots.append(BlindSpot(workload.key, values, "", "", words))
            continue
        spots += _false_alarms(known)
        if declared:
            spots += [spot for index in range(len(op.outputs)) for spot in _unnoticed(known, index)]
            unseen -= {name for name in unseen if _seen(known, _with_parameter(workload, name), known.inputs)}
            if values == NORMAL:
                spots += _ignored_inputs(known, torch_device)
        del known  # free it before the next draw: on a GPU each takes gigabytes
    if declared and not quick and not any(spot.words.startswith(CANNOT) for spot in spots):
        for values in (*op.extremes, *op.arrangements):
            spots += _lost(op, workload, seed, torch_device, values)
    for name in sorted(unseen):
        words = f"a kernel that ignored `{name}` would pass"
        spots.append(BlindSpot(workload.key, "all", "", f"`{name}` ignored", words))
    return tuple(spots)


def _lost(op: Op, workload: Workload, seed: int, torch_device: str, values: str) -> Iterator[BlindSpot]:
    """Yield a blind spot if inputs without their extreme values give a result that passes.

    It counts only if this changes the result visibly, and only where evaluations judge this extreme.
    """
    cause = NAN_IN_WEIGHTS if values in op.counted_nan else values
    words, lose = LOSSES.get(cause, ("indices clipped", clipped_indices) if values in op.arranged else ("", None))
    if lose is None:
        return
    known = truth(op, workload, values, seed, inputs_at(op, workload, seed, torch_device, values))
    outputs = op.call({name: lose(tensor) for name, tensor in known.inputs.items()}, workload)
    seen = any(known.fault(index, output) for index, output in enumerate(outputs))
    if not seen and any(_differs(known, index, output) for index, output in enumerate(outputs)):
        yield _spot(known, "", words, f"a kernel with {words} would pass")


def _differs(known: Truth, index: int, output: torch.Tensor) -> bool:
    """Return whether the output differs visibly from PyTorch's where all of PyTorch's results agree."""
    for group in known.groups(index):
        if known.is_open(index, group):
            continue
        found, pytorch, expected = (
            of_more_bits(values[group.rows]) for values in (output, known.pytorch[index], known.expected[index])
        )
        at_dtype = map(of_more_bits, known.at_dtype(index, group.rows))
        clear = all(bool(alike(one, expected.to(one.dtype)).all()) for one in at_dtype)
        if not clear:
            continue
        if group.not_finite:
            elsewhere = found.isfinite() != pytorch.isfinite()
            if group.nan_is_open:
                elsewhere &= ~pytorch.isnan()
            if bool((elsewhere & known.dependent[index][group.rows]).any()):
                return True
        elif _material(known, index, group, output):
            return True
    return False


def _false_alarms(known: Truth) -> Iterator[BlindSpot]:
    """Yield correct results, PyTorch's and the baseline's, that would be rejected."""
    for index, spec in enumerate(known.op.outputs):
        if found := known.fault(index, known.pytorch[index]):
            yield _spot(known, spec.name, "", f"PyTorch's own result for `{spec.name}` is called wrong: {found}")
    if known.op.baseline:
        baseline = known.op.call_baseline(known.inputs, known.workload)
        for index, (spec, output) in enumerate(zip(known.op.outputs, baseline, strict=True)):
            verdicts = (found for _, found in known.judged(index, output) if found.fault)
            wrong = next((found for found in verdicts if not found.within(LENIENCY)), None)
            if wrong and spec.name not in known.op.baseline_free:
                words = f"the baseline's result for `{spec.name}` is called wrong: {wrong.fault}"
                yield _spot(known, spec.name, "", words)


def _spot(known: Truth, output: str, corruption: str, words: str) -> BlindSpot:
    return BlindSpot(known.workload.key, known.values, output, corruption, words)


def _unnoticed(known: Truth, index: int) -> Iterator[BlindSpot]:
    """Yield corruptions of one output that pass.

    On other than normal inputs, only material corruptions must be found.
    """
    name, output = known.op.outputs[index].name, known.pytorch[index]
    for corruption, spoil in CORRUPTIONS.items():
        if spoil in {one_nan, fewer_bits} and not output.is_floating_point():
            continue
        if _is_unnoticed(known, index, spoil):
            yield _spot(known, name, corruption, f"`{name}` passes when it is corrupted: {corruption}")


def _is_unnoticed(known: Truth, index: int, spoil: Corruption) -> bool:
    output = known.pytorch[index]
    if spoil is fewer_bits and known.op.tf32 and output.dtype == torch.float32:
        spoiled = output.bfloat16().float()  # float16 has all the bits that TF32 has
    else:
        spoiled = spoil(output, random.Random(known.seed))
    if known.fault(index, spoiled):
        return False
    # A single number equals its own mean, and the bits that it would lose may happen to be zero.
    everywhere = known.values == NORMAL and output.numel() > 1
    return everywhere or any(_material(known, index, group, spoiled) for group in known.groups(index))


def _ignored_inputs(known: Truth, torch_device: str) -> Iterator[BlindSpot]:
    """Yield inputs that a kernel could ignore and still pass."""
    others = inputs_at(known.op, known.workload, known.seed + 1, torch_device)
    for name, redrawn in others.items():
        if torch.equal(redrawn, known.inputs[name]):
            continue  # a constant, such as a mask: a kernel may rely on it
        if not _seen(known, known.workload, {**known.inputs, name: redrawn}):
            yield _spot(known, "", f"`{name}` ignored", f"a kernel that ignored `{name}` would pass")


def _seen(known: Truth, workload: Workload, inputs: Tensors) -> bool:
    """Return whether the outputs for the changed inputs or parameters would be rejected."""
    try:
        outputs = known.op.call(inputs, workload)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - an op that refuses the change does not ignore it
        return True
    return any(known.fault(index, output) for index, output in enumerate(outputs))


def _with_parameter(workload: Workload, changed: str) -> Workload:
    def other(value: Number) -> Number:
        return 2 * value or 1.0

    return replace(
        workload, parameters=tuple((name, other(v) if name == changed else v) for name, v in workload.parameters)
    )


def _material(known: Truth, index: int, group: RowGroup, spoiled: torch.Tensor) -> bool:
    """Return whether a corruption changes these rows by more than rounding and PyTorch's own error do."""
    pytorch, expected = (
        known.pytorch[index][group.rows],
        known.expected[index][group.rows].double(),
    )
    changed, original = spoiled[group.rows].double(), pytorch.double()
    same = (changed == original) | (changed.isnan() & original.isnan())
    if known.exact(index, group) or bool(same.all()):
        return not bool(same.all())
    change = torch.where(same, 0.0, (changed - original).abs())
    # Another order of addition may change results by as much. Smaller changes must be found on normal inputs only.
    unit = max(torch.finfo(pytorch.dtype).eps / 2, known.sums(index, group).unit)
    # With few rows, whose elements may share an error, more is allowed.
    times = max(MATERIAL, known.op.tolerance.factor * leeway(expected, pytorch.dtype))
    noise = times * (unit * _rms(expected) + _rms(original - expected))
    return (
        _rms(change) > noise
        or bool((change > _visible(pytorch, _rms(expected)) / 2).any())
        or not bool(change.isfinite().all())
    )


def _visible(values: torch.Tensor, size: float) -> torch.Tensor:
    """Return the change of each element that must be found wrong; `size` is the output's root mean square."""
    unit = torch.finfo(values.dtype).eps / 2
    return VISIBLE_SHARE * size + VISIBLE_ROUNDINGS * unit * values.double().abs()


def _rms(values: torch.Tensor) -> float:
    """Return the root mean square of the finite values."""
    squares, count = 0.0, 0
    for part in values.reshape(-1).split(AT_ONCE):  # in float64 the whole output may not fit into memory
        numbers = part.double()
        finite = numbers.isfinite()
        squares += float(torch.where(finite, numbers, 0.0).square().sum())
        count += int(finite.sum())
    return math.sqrt(squares / max(1, count))


def zeros(output: torch.Tensor, _: random.Random) -> torch.Tensor:
    return torch.zeros_like(output)


def mean_filled(output: torch.Tensor, _: random.Random) -> torch.Tensor:
    values = output if output.dtype == torch.float64 else output.float()
    finite = values.isfinite()
    total = torch.where(finite, values, 0.0).sum(dtype=torch.float64)
    return torch.full_like(output, float(total / finite.sum().clamp(min=1)))


def shuffled_rows(output: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Move every row to another place; with a single row, every element."""
    rows = output.reshape(-1, output.shape[-1]) if output.ndim > 1 else output.reshape(-1, 1)
    rows = rows if len(rows) > 1 else output.reshape(-1, 1)
    rows = rows.contiguous().view(torch.uint8)  # PyTorch cannot roll every dtype
    return rows.roll(rng.randrange(1, max(2, len(rows))), 0).view(output.dtype).reshape(output.shape)


def one_wrong(output: torch.Tensor, rng: random.Random) -> torch.Tensor:
    at = _finite_place(output, rng)
    spoiled = output.clone(memory_format=torch.contiguous_format)
    place = spoiled.view(-1)[at]
    if output.is_floating_point():
        place.copy_(place.double() + rng.choice((-1, 1)) * _visible(place, _rms(output)))
    else:
        place ^= torch.ones_like(place)
    return spoiled


def one_nan(output: torch.Tensor, rng: random.Random) -> torch.Tensor:
    spoiled = output.clone(memory_format=torch.contiguous_format)
    spoiled.view(-1)[_finite_place(output, rng)] = torch.nan
    return spoiled


def fewer_bits(output: torch.Tensor, _: random.Random) -> torch.Tensor:
    """Round to the next lower precision and back."""
    narrower = {torch.float64: torch.float32, torch.float32: torch.float16, torch.float16: torch.bfloat16}
    if output.dtype in narrower:
        return output.to(narrower[output.dtype]).to(output.dtype)
    mantissa, exponent = torch.frexp(output.float())
    kept = max(2.0, 2 / torch.finfo(output.dtype).eps / 2**BITS_LOST)
    return torch.ldexp((mantissa * kept).round() / kept, exponent).to(output.dtype)


def _finite_place(output: torch.Tensor, rng: random.Random) -> int:
    """Return a random place, finite if possible: adding to an infinity changes nothing."""
    places = [rng.randrange(output.numel()) for _ in range(PLACES_TRIED)]
    finite = output.reshape(-1)[places].double().isfinite().tolist()
    return next((place for place, good in zip(places, finite, strict=True) if good), places[0])


def without_nan(values: torch.Tensor) -> torch.Tensor:
    return values.nan_to_num(0.0, math.inf, -math.inf) if _has_extremes(values) else values


def without_infinities(values: torch.Tensor) -> torch.Tensor:
    if not _has_extremes(values):
        return values
    limit = torch.finfo(values.dtype).max
    return torch.where(values.isinf(), values.clamp(-limit, limit), values)


def without_faint(values: torch.Tensor) -> torch.Tensor:
    faint = 1e-3 if values.dtype == torch.float16 else 1e-6
    return torch.where(values.abs() < faint, 0, values) if _has_extremes(values) else values


def _has_extremes(values: torch.Tensor) -> bool:
    return values.is_floating_point() and values.element_size() > 1  # PyTorch has few operations on 8-bit floats


def clipped_indices(values: torch.Tensor) -> torch.Tensor:
    """Move the greatest and the least index by one, like a kernel that clips an index too early."""
    if values.is_floating_point() or values.dtype == torch.bool or not values.numel():
        return values
    return values.clamp(max=max(0, int(values.max()) - 1))


LOSSES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    **dict.fromkeys((NAN, SAVED_NAN, NAN_IN_WEIGHTS, CLASHING), ("NaN swallowed", without_nan)),
    **dict.fromkeys((INFINITE, MINUS_INF, INFINITE_WEIGHTS, *MEETING), ("infinities cut off", without_infinities)),
    **dict.fromkeys((MINUTE, MINUTE_WEIGHTS), ("faint values lost", without_faint)),
}
CORRUPTIONS: dict[str, Corruption] = {
    "zeros": zeros,
    "its mean everywhere": mean_filled,
    "rows shuffled": shuffled_rows,
    "one element wrong": one_wrong,
    "one NaN": one_nan,
    "fewer bits": fewer_bits,
}

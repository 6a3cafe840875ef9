"""Would a wrong output be noticed? PyTorch's own results are spoiled one way after another and judged as a kernel's.

A workload on which a spoiled output passes is blind: whatever a kernel is called there says nothing.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from evolve.evaluation.compare import leeway
from evolve.evaluation.truth import Truth, truth
from reference_ops.op import Number, Op, Tensors, Workload
from reference_ops.values import MIXED, NORMAL, RowGroup

VISIBLE_SHARE = 0.05  # of the root mean square: by so much one element is spoiled
VISIBLE_ROUNDINGS = 16  # and by so many roundings of its own, or it could hide behind those
MATERIAL = 4  # times rounding and PyTorch's own error: a smaller change cannot be told from either
BITS_LOST = 3  # of bfloat16's 8, as float16 keeps 8 of its 11 when it goes through bfloat16; 8-bit types keep one
PLACES_TRIED = 50
SECOND_LOOKS = 2
LENIENCY = 16  # a baseline may be so much less exact than a kernel: fused ones have arithmetic of their own
Corruption = Callable[[torch.Tensor, random.Random], torch.Tensor]


@dataclass(frozen=True)
class BlindSpot:
    """What is wrong and would pass, or, where nothing was spoiled, what is right and would not."""

    workload: str
    values: str
    output: str
    corruption: str
    words: str

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.values, self.output, self.corruption


def distributions(op: Op) -> tuple[str, ...]:
    """Everything that inputs of the op are drawn from."""
    return (NORMAL, *op.values, MIXED)


def blind_spots(
    op: Op, workload: Workload, seed: int, torch_device: str, *, quick: bool = False
) -> tuple[BlindSpot, ...]:
    """All that an evaluation at this workload would get wrong; `quick` looks at what evaluations draw, and no closer.

    Once may be luck, as where a number has no more bits than it would be left: a spot is blind that is so again.
    """
    found = _spots(op, workload, seed, torch_device, quick=quick)
    if not found:
        return ()
    others = (_spots(op, workload, seed + turn, torch_device, quick=quick) for turn in range(1, 1 + SECOND_LOOKS))
    again = {spot.kind for spots in others for spot in spots}
    return tuple(spot for spot in found if spot.kind in again)


def _spots(op: Op, workload: Workload, seed: int, torch_device: str, *, quick: bool) -> tuple[BlindSpot, ...]:
    """With one seed.

    Awkward shapes may be too small to tell anything (a softmax of one column is 1): there PyTorch has to pass, no more.
    """
    spots: list[BlindSpot] = []
    declared = workload in (*op.gpu, *op.emulated)
    unseen = {name for name, value in workload.parameters if declared and not quick and isinstance(value, float)}
    for values in (NORMAL, MIXED) if quick else distributions(op):
        try:
            known = truth(op, workload, values, seed, op.inputs_at(workload, seed, torch_device, values))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a user's reference may raise
            said = f"PyTorch cannot compute it: {type(error).__name__}: {error}"
            spots.append(BlindSpot(workload.key, values, "", "", said))
            continue
        spots += _false_alarms(known)
        if declared:
            spots += [spot for index in range(len(op.outputs)) for spot in _unnoticed(known, index)]
            unseen -= {name for name in unseen if _seen(known, _with_parameter(workload, name), known.inputs)}
            if values == NORMAL:
                spots += _ignored_inputs(known, torch_device)
        del known  # before the next one is drawn: on a GPU each takes gigabytes
    for name in sorted(unseen):
        words = f"nobody would notice if a kernel ignored `{name}`"
        spots.append(BlindSpot(workload.key, "all", "", f"`{name}` ignored", words))
    return tuple(spots)


def _false_alarms(known: Truth) -> Iterator[BlindSpot]:
    """Results of PyTorch that would not pass."""
    for index, spec in enumerate(known.op.outputs):
        if found := known.fault(index, known.theirs[index]):
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
    """The ways of spoiling one output that pass; normal inputs have to show all, others what makes a difference."""
    name, output = known.op.outputs[index].name, known.theirs[index]
    for corruption, spoil in CORRUPTIONS.items():
        if spoil in {one_nan, fewer_bits} and not output.is_floating_point():
            continue
        spoiled = spoil(output, random.Random(known.seed))
        if spoil is fewer_bits and known.op.tf32 and output.dtype == torch.float32:
            spoiled = output.bfloat16().float()  # float16 has all the bits that TF32 has
        if known.fault(index, spoiled):
            continue
        # A single number is its own mean, and by luck has no bits to lose.
        if (known.values == NORMAL and output.numel() > 1) or any(
            _material(known, index, part, spoiled) for part in known.parts(index)
        ):
            yield _spot(known, name, corruption, f"`{name}` passes when it is spoiled: {corruption}")


def _ignored_inputs(known: Truth, torch_device: str) -> Iterator[BlindSpot]:
    """Inputs that could be anything."""
    others = known.op.inputs_at(known.workload, known.seed + 1, torch_device)
    for name, redrawn in others.items():
        if torch.equal(redrawn, known.inputs[name]):
            continue  # the op draws it always the same, as a mask: a kernel may as well know it
        if not _seen(known, known.workload, {**known.inputs, name: redrawn}):
            yield _spot(known, "", f"`{name}` ignored", f"nobody would notice if a kernel ignored `{name}`")


def _seen(known: Truth, workload: Workload, inputs: Tensors) -> bool:
    """Whether other inputs or parameters lead to outputs that are called wrong."""
    try:
        outputs = known.op.call(inputs, workload)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - what the op refuses, it does not ignore
        return True
    return any(known.fault(index, output) for index, output in enumerate(outputs))


def _with_parameter(workload: Workload, changed: str) -> Workload:
    def other(value: Number) -> Number:
        return 2 * value or 1.0

    return replace(
        workload, parameters=tuple((name, other(v) if name == changed else v) for name, v in workload.parameters)
    )


def _material(known: Truth, index: int, part: RowGroup, spoiled: torch.Tensor) -> bool:
    """Whether a corruption does more to these rows than rounding and PyTorch's own error may."""
    theirs, expected = known.theirs[index][part.rows], known.expected[index][part.rows].double()
    changed, ours = spoiled[part.rows].double(), theirs.double()
    same = (changed == ours) | (changed.isnan() & ours.isnan())
    if known.exact(index, part) or bool(same.all()):
        return not bool(same.all())
    change = torch.where(same, 0.0, (changed - ours).abs())
    # Another order of a sum may do as much; only normal inputs have to show whatever else hides in that.
    unit = max(torch.finfo(theirs.dtype).eps / 2, known.sums(part).unit)
    # And what is allowed where few rows may share an error cannot be told from it either.
    times = max(MATERIAL, known.op.tolerance.factor * leeway(expected, theirs.dtype))
    noise = times * (unit * _rms(expected) + _rms(ours - expected))
    return (
        _rms(change) > noise
        or bool((change > _visible(theirs, _rms(expected)) / 2).any())
        or not bool(change.isfinite().all())
    )


def _visible(values: torch.Tensor, size: float) -> torch.Tensor:
    """By how much elements of an output have to change for anybody to see it; `size` is its root mean square."""
    unit = torch.finfo(values.dtype).eps / 2
    return VISIBLE_SHARE * size + VISIBLE_ROUNDINGS * unit * values.double().abs()


def _rms(values: torch.Tensor) -> float:
    """Of the finite ones."""
    finite = values.isfinite()
    return float((torch.where(finite, values, 0.0).square().sum() / finite.sum().clamp(min=1)).sqrt())


def zeros(output: torch.Tensor, _: random.Random) -> torch.Tensor:
    return torch.zeros_like(output)


def mean_filled(output: torch.Tensor, _: random.Random) -> torch.Tensor:
    values = output.double()
    return torch.full_like(output, float(torch.where(values.isfinite(), values, torch.nan).nanmean().nan_to_num()))


def shuffled_rows(output: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """No row where it was; the elements, where there is one row."""
    rows = output.reshape(-1, output.shape[-1]) if output.ndim > 1 else output.reshape(-1, 1)
    rows = rows if len(rows) > 1 else output.reshape(-1, 1)
    rows = rows.contiguous().view(torch.uint8)  # PyTorch does not roll every dtype
    return rows.roll(rng.randrange(1, max(2, len(rows))), 0).view(output.dtype).reshape(output.shape)


def one_wrong(output: torch.Tensor, rng: random.Random) -> torch.Tensor:
    at = _finite_place(output, rng)
    spoiled = output.clone(memory_format=torch.contiguous_format)
    place = spoiled.view(-1)[at]
    if output.is_floating_point():
        place.copy_(place.double() + rng.choice((-1, 1)) * _visible(place, _rms(output.double())))
    else:
        place ^= torch.ones_like(place)
    return spoiled


def one_nan(output: torch.Tensor, rng: random.Random) -> torch.Tensor:
    spoiled = output.clone(memory_format=torch.contiguous_format)
    spoiled.view(-1)[_finite_place(output, rng)] = torch.nan
    return spoiled


def fewer_bits(output: torch.Tensor, _: random.Random) -> torch.Tensor:
    """What is left of the values in the next lower precision."""
    narrower = {torch.float64: torch.float32, torch.float32: torch.float16, torch.float16: torch.bfloat16}
    if output.dtype in narrower:
        return output.to(narrower[output.dtype]).to(output.dtype)
    mantissa, exponent = torch.frexp(output.float())
    kept = max(2.0, 2 / torch.finfo(output.dtype).eps / 2**BITS_LOST)
    return torch.ldexp((mantissa * kept).round() / kept, exponent).to(output.dtype)


def _finite_place(output: torch.Tensor, rng: random.Random) -> int:
    """Somewhere, though not at an infinity if it can be helped: that plus something is itself."""
    places = [rng.randrange(output.numel()) for _ in range(PLACES_TRIED)]
    finite = output.reshape(-1)[places].double().isfinite().tolist()
    return next((place for place, good in zip(places, finite, strict=True) if good), places[0])


CORRUPTIONS: dict[str, Corruption] = {
    "zeros": zeros,
    "its mean everywhere": mean_filled,
    "rows shuffled": shuffled_rows,
    "one element wrong": one_wrong,
    "one NaN": one_nan,
    "fewer bits": fewer_bits,
}

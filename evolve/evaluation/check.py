"""Correctness check of one program on one workload: outputs are right on random inputs, no other memory is written."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from archive.records import Check, Outcome
from evolve.devices.device import Device, Program, RejectedError
from evolve.evaluation.buffers import (
    POISONS,
    USUAL_ALIGNMENT,
    Arena,
    Buffer,
    Layout,
    bits,
    damaged,
    is_huge,
    unwritten,
)
from evolve.evaluation.truth import truth
from reference_ops.inputs import (
    extreme_seeds,
    few_extreme_seeds,
    inputs_at,
    meeting_seeds,
    mixed_seed,
    mixtures_needed,
    seeds_in_turn,
    seeds_of_both_signs,
)
from reference_ops.op import EXTREME_ROWS, MEETING, MIXED, NORMAL, Op, Tensors, Workload
from reference_ops.precision import TORCH_DTYPES

UNUSED = "unused "
SHORT_OF_MEMORY = " (the device has too little memory to compute how much of the error rounding explains)"
FEW_REDRAWN = 8  # elements of each input: too few to be noticed by a kernel that compares a sample of its inputs
MEMORY_STATES: tuple[Callable[[torch.Tensor], object], ...] = (
    lambda raw: raw,
    lambda raw: raw.random_(0, 256),
    lambda raw: raw.zero_(),
)
Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Draw:
    """The inputs of one run: op, workload, seed and the distribution of values."""

    op: Op
    workload: Workload
    seed: int
    values: str = NORMAL
    redraw_seed: int | None = None  # if set, a few elements of each input are drawn again from this seed

    @property
    def poison(self) -> int:
        """The poison in the outputs of a timed call."""
        return POISONS[self.seed % len(POISONS)]

    def inputs(self, device: Device) -> Tensors:
        redrawn = []
        if self.redraw_seed is not None:
            redrawn = self._random_elements(replace(self, seed=self.redraw_seed, redraw_seed=None).inputs(device))
        drawn = inputs_at(self.op, self.workload, self.seed, device.torch_device, self.values)
        for name, at, value in redrawn:
            drawn[name].view(-1)[at : at + 1] = value
        return drawn

    def _random_elements(self, others: Tensors) -> list[tuple[str, int, torch.Tensor]]:
        """Return copies of elements at random places, so that the other inputs can be freed."""
        rng = random.Random(self.redraw_seed)
        places = [(name, rng.randrange(values.numel())) for name, values in others.items() for _ in range(FEW_REDRAWN)]
        return [(name, at, others[name].view(-1)[at : at + 1].clone()) for name, at in places]


@dataclass(frozen=True)
class Inspector:
    """Inspector that runs programs on poisoned memory, compares their outputs and records every comparison."""

    device: Device
    arena: Arena
    rng: random.Random  # seeded after compilation, so that no kernel can depend on it
    checks: list[Check]
    watch: Callable[[str], None]
    # Number of mixtures drawn so far, by dtype ("" for all dtypes) and by whether the workload is timed.
    mixtures_drawn: Counter[tuple[str, bool]] = field(default_factory=Counter)
    # mixtures of the current round that are still unused
    memory_states: list[Callable[[torch.Tensor], object]] = field(default_factory=list)

    def check(self, program: Program, op: Op, workload: Workload, *, closely: bool = False) -> bool:
        """Check the program; return whether repeated runs agree bit for bit. Raises RejectedError at the first fault.

        Expected outputs are computed only after the last run on the same inputs, which are drawn again for this.
        """
        if is_huge(op, workload):
            return self._check_huge(program, op, workload)
        usual = Draw(op, workload, self.rng.randrange(2**31))
        once, drawn = layout(op, workload, program), usual.inputs(self.device)
        buffers = self.arena.poisoned(once, POISONS[0], self.rng)
        found = [(self._run(program, usual, buffers, as_timed=False, drawn=drawn), POISONS[0])]
        # Timing uses several sets of buffers. With a second, unused set, a kernel cannot distinguish a check from
        # timing.
        twice = {**once, **{f"{UNUSED}{name}": held for name, held in once.items()}}
        # Use every poison that timed calls use, so that a kernel fails if it skips its work on one of them.
        timed = workload in op.workloads(self.device.info.kind)
        poisons = self.rng.sample(POISONS[1:], len(POISONS) - 1 if timed else 1)
        buffers = self.arena.poisoned(twice, poisons[0], self.rng, USUAL_ALIGNMENT)
        inputs = {spec.name for spec in op.inputs}
        own = _raw(buffers, [name for name in once if name not in inputs])
        for poison in poisons:
            self._run_again(program, usual, buffers, own, poison, found, drawn)
        # the kernel may have marked its work as done in the workspace
        if keeps := timed and bool(program.bound.workspace):
            results = _raw(buffers, [spec.name for spec in op.outputs])
            self._run_again(program, usual, buffers, results, poisons[0], found, drawn)
        del drawn
        self.watch("check")
        agree = len(found) == 1
        while found:  # free each one before the next comparison
            self.judge(usual, *found.pop(0))
        if op.draw is None and (keeps or (timed and closely)):
            # Most results that the kernel may have kept from earlier runs are still valid, but not all.
            self._run_and_judge(program, replace(usual, redraw_seed=self.rng.randrange(2**31)), buffers, poisons[-1])
        for _ in range(_mixtures(op, workload)):
            self._leave_memory(own, timed=timed)
            mixed = replace(usual, seed=self._mixed_seed(op, workload.dtype, timed=timed), values=MIXED)
            self._run_and_judge(program, mixed, buffers, poisons[-1])
        return agree

    def _check_huge(self, program: Program, op: Op, workload: Workload) -> bool:
        """Check as usual, but with one set of buffers at a time, which is freed while outputs are judged."""
        usual, once = Draw(op, workload, self.rng.randrange(2**31)), layout(op, workload, program)
        first = self._run(program, usual, self.arena.poisoned(once, POISONS[0], self.rng), as_timed=False)
        other: list[tuple[Outputs, int]] = []
        for poison in self.rng.sample(POISONS[1:], len(POISONS) - 1):
            buffers = self.arena.poisoned(once, poison, self.rng, USUAL_ALIGNMENT)
            outputs = self._run(program, usual, buffers, as_timed=True)
            if not _same(outputs, first):
                other = [(outputs, poison)]
            del buffers, outputs
        self.arena.release()
        self.watch("check")
        agree = not other
        while other:
            self.judge(usual, *other.pop())
        self.judge(usual, first, POISONS[0])
        del first
        seed = self._mixed_seed(op, workload.dtype, timed=True)
        self._run_and_judge_alone(program, replace(usual, seed=seed, values=MIXED), once)
        return agree

    def check_on(
        self, program: Program, op: Op, workload: Workload, names: Iterable[str], *, in_graph: bool = False,
        few: bool = False, in_turn: bool = False,
    ) -> None:  # fmt: skip
        """Check the program once on each of these distributions, extremes or arrangements of inputs.

        With `in_turn`, each input in turn is the only one that is not finite, at the last place of a row.
        With `few`, rows of extremes are drawn a few times, even if some extremes then never occur. With
        `in_graph`, the call is captured once in a CUDA graph, if the device has them, and replayed on each.
        """
        draws = [draw for name in names for draw in self._draws(op, workload, name, few=few, in_turn=in_turn)]
        if not draws:
            return
        if is_huge(op, workload):
            for draw in draws:
                self._run_and_judge_alone(program, draw, layout(op, workload, program))
            return
        poison = POISONS[1]  # the first reads as NaN, which may be right here
        inputs = [spec.name for spec in op.inputs]
        buffers = self.arena.beside_fences(layout(op, workload, program), inputs, poison, self.rng)
        capture, tensors = self.device.tools.capture, {name: buffer.tensor for name, buffer in buffers.items()}
        replay = None
        if in_graph and capture:  # after a run: the first launch may load code, which a capture cannot
            self._run(program, Draw(op, workload, self.rng.randrange(2**31)), buffers, as_timed=True)
            replay = capture(lambda: program.launch(tensors))
        for draw in draws:
            try:
                self._run_and_judge(program, draw, buffers, poison, replay)
            except RejectedError as error:
                if replay:
                    self._run_and_judge(program, draw, buffers, poison)
                    raise RejectedError(error.outcome, f"{error.log} (only in a CUDA graph)") from error
                raise

    def _draws(self, op: Op, workload: Workload, values: str, *, few: bool, in_turn: bool) -> list[Draw]:
        """Return the draws of these values, usually one.

        Rows of extremes are drawn until every extreme has occurred, or a `few` times. Likewise, special values meet in
        one draw, or in as many as it takes until all of them have met. Infinities of a single row need a draw per sign.
        """
        if values == EXTREME_ROWS:
            seeds = (few_extreme_seeds if few else extreme_seeds)(op, workload, self.rng)
        elif values in MEETING and values in op.arrangements:
            seeds = meeting_seeds(op, workload, values, self.rng)
            seeds = self.rng.sample(seeds, 1) if few else seeds
        else:
            seeds = (seeds_in_turn if in_turn else seeds_of_both_signs)(op, workload, values, self.rng)
        return [Draw(op, workload, seed, values) for seed in seeds]

    def _run_again(
        self,
        program: Program,
        draw: Draw,
        buffers: dict[str, Buffer],
        overwritten: list[torch.Tensor],
        poison: int,
        found: list[tuple[Outputs, int]],
        drawn: Tensors,
    ) -> None:
        """Run once more on the same inputs; keep the outputs if they differ from the first."""
        for raw in overwritten:
            raw.fill_(poison)
        first = found[0][0]
        outputs = self._run(program, draw, buffers, as_timed=True, drawn=drawn, first=first)
        if outputs is not first:
            found.append((outputs, poison))

    def _run_and_judge(
        self, program: Program, draw: Draw, buffers: dict[str, Buffer], poison: int,
        replay: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        outputs = self._run(program, draw, buffers, as_timed=self.rng.random() < 0.5 or bool(replay), replay=replay)
        self.watch("check")
        self.judge(draw, outputs, poison)

    def _run_and_judge_alone(self, program: Program, draw: Draw, once: Layout) -> None:
        """Run once and free the buffers before the outputs are judged."""
        outputs = self._run(program, draw, self.arena.poisoned(once, POISONS[1], self.rng), as_timed=True)
        self.arena.release()
        self.watch("check")
        self.judge(draw, outputs, POISONS[1])

    def _leave_memory(self, own: list[torch.Tensor], *, timed: bool) -> None:
        """Set outputs and workspace to a state that occurs in real use: unchanged since the last call, random, or zero.

        On a timed workload they stay unchanged since the last call, so that a kernel fails if it finds its own mark in
        them and skips its work.
        """
        if timed:
            return
        if not self.memory_states:
            self.memory_states.extend(self.rng.sample(MEMORY_STATES, len(MEMORY_STATES)))
        change = self.memory_states.pop()
        for raw in own:
            change(raw)

    def _mixed_seed(self, op: Op, dtype: str, *, timed: bool) -> int:
        """Return a seed such that the mixtures of an evaluation cover all distributions.

        Timed workloads and all others are covered separately. Every dtype gets large weights. Each distribution is used
        once for the first row, or once for all rows if rows depend on each other. The order is random.
        """
        every, own = ("", timed), (dtype, timed)
        self.mixtures_drawn.setdefault(every, self.rng.randrange(1 + len(op.values)))
        seed = mixed_seed(op, self.mixtures_drawn[every], self.mixtures_drawn[own], self.rng)
        self.mixtures_drawn.update((every, own))
        return seed

    def judge(self, draw: Draw, outputs: Outputs, poison: int) -> None:
        """Raise RejectedError unless the outputs are right."""
        try:
            inputs, passes = draw.inputs(self.device), self.device.tools.errors
            expected = truth(draw.op, draw.workload, draw.values, draw.seed, inputs, passes)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception:
            if draw.values in (*draw.op.extremes, EXTREME_ROWS):
                return  # a user's reference may refuse NaN or infinities with any exception
            raise
        where, whole = draw.workload.key, draw.values in draw.op.arrangements
        for index, (spec, actual) in enumerate(zip(draw.op.outputs, outputs, strict=True)):
            for group, comparison in expected.judged(index, actual):
                if comparison.fault and (whole or group.values in draw.op.extremes) and expected.is_open(index, group):
                    continue
                self.checks.append(
                    Check(where, group.values, spec.name, comparison.error, comparison.pytorch_error, comparison.worst)
                )
                if comparison.fault:
                    right = expected.pytorch[index][group.rows]
                    left = unwritten(actual[group.rows], right, poison) if poison else 0  # zeros may be correct results
                    never = f" ({left} elements still hold the poison: never written)" if left else ""
                    on = "" if group.values == NORMAL else f" on {group.values} values"
                    note = SHORT_OF_MEMORY if expected.short_of_memory else ""
                    raise RejectedError(Outcome.WRONG, f"{where}: `{spec.name}`{on}: {comparison.fault}{never}{note}")

    def _run(
        self, program: Program, draw: Draw, buffers: dict[str, Buffer], *, as_timed: bool,
        replay: Callable[[], object] | None = None, drawn: Tensors | None = None, first: Outputs = (),
    ) -> Outputs:  # fmt: skip
        """Run once and return copies of the outputs. With `as_timed`, the state of memory is that of a timed call.

        `replay` runs the program on the same buffers in another way. `drawn` are the inputs, if they have been drawn
        already. If the outputs agree bit for bit with those of a `first` run, the latter are returned.
        """
        drawn = drawn or draw.inputs(self.device)
        for name, values in drawn.items():
            buffers[name].tensor.copy_(values)
        if is_huge(draw.op, draw.workload):
            del values
            drawn.clear()
        tensors = {name: buffer.tensor for name, buffer in buffers.items()}
        self.watch("run")
        if as_timed:
            (self.device.tools.call_as_timed or self.device.time)(replay or (lambda: program.launch(tensors)))
        else:
            self.device.run(program, tensors)
        results = {spec.name: buffers[spec.name].tensor for spec in draw.op.outputs}
        differ = self._inspect(
            buffers, draw, drawn or draw.inputs(self.device), dict(zip(results, first, strict=False))
        )
        return first if first and not differ else tuple(values.clone() for values in results.values())

    def _inspect(self, buffers: dict[str, Buffer], draw: Draw, fresh: Tensors, first: Tensors) -> bool:
        """Raise RejectedError if red zones, unused memory or inputs changed, compared with a copy of the inputs.

        Return whether outputs differ from those of the `first` run.
        """
        changed = [
            (bits(buffers[name].tensor) != bits(values)).any() for name, values in (*fresh.items(), *first.items())
        ]
        unused = [buffer for name, buffer in buffers.items() if name.startswith(UNUSED)]
        outside, far, *found = torch.stack([damaged(buffers.values()), self.arena.strayed(unused), *changed]).tolist()
        inputs, outputs = found[: len(fresh)], found[len(fresh) :]
        where = draw.workload.key
        if outside:
            name, damage = next((name, damage) for name, buffer in buffers.items() if (damage := buffer.damage()))
            raise RejectedError(Outcome.OUT_OF_BOUNDS, f"{where}: `{name}`: {damage}")
        if far:
            raise RejectedError(Outcome.OUT_OF_BOUNDS, f"{where}: memory was overwritten far away from its buffers")
        for name, wrong in zip(fresh, inputs, strict=True):
            if wrong:
                count = int((bits(buffers[name].tensor) != bits(fresh[name])).sum())
                log = f"{where}: the input `{name}` was changed in {count} places"
                raise RejectedError(Outcome.CHANGED_INPUT, log)
        return any(outputs)


def _mixtures(op: Op, workload: Workload) -> int:
    """Return how many mixtures to draw: several if a parameter such as `eps` has a value that the op does not list.

    Such a value matters only on few distributions, and with few rows, one mixture contains few of these.
    """
    return mixtures_needed(op, workload) if op.has_unlisted_number(workload) else 1


def _raw(buffers: Mapping[str, Buffer], names: Iterable[str]) -> list[torch.Tensor]:
    """Return the bytes of these buffers."""
    return [buffers[name].tensor.view(-1).view(torch.uint8) for name in names]


def _same(some: Outputs, others: Outputs) -> bool:
    """Return whether the outputs are identical bit for bit."""
    return all(torch.equal(bits(a), bits(b)) for a, b in zip(some, others, strict=True))


def layout(op: Op, workload: Workload, program: Program) -> Layout:
    """Return the shapes and dtypes of all tensors that a program gets."""
    specs = (*op.inputs, *op.outputs)
    return {
        **{spec.name: (op.shape(spec, workload), TORCH_DTYPES[spec.dtype or workload.dtype]) for spec in specs},
        **{w.name: ((w.elements,), TORCH_DTYPES[w.dtype]) for w in program.bound.workspace},
    }

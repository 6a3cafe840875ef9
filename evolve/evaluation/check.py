"""Does a program compute what the op says, and nothing else? One workload, on inputs nobody could foresee."""

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
    still_poisoned,
)
from evolve.evaluation.truth import truth
from reference_ops.op import DTYPES, Op, Tensors, Workload
from reference_ops.values import MIXED, NORMAL

ANOTHER = "another "
SHORT_OF_MEMORY = " (how much of it arithmetic explains could not be found out: the device has too little memory)"
FEW_ANEW = 8  # elements of each input: the fewer, the less likely it is that a kernel looks just there
LEAVINGS: tuple[Callable[[torch.Tensor], object], ...] = (
    lambda raw: raw,
    lambda raw: raw.random_(0, 256),
    lambda raw: raw.zero_(),
)
Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Draw:
    """One op at one workload, with the seed of its inputs and the distribution they are drawn from."""

    op: Op
    workload: Workload
    seed: int
    values: str = NORMAL
    anew: int | None = None  # the seed that a few elements of each input are drawn from, the rest being what it was

    @property
    def poison(self) -> int:
        """What a timed call finds in its outputs, now this and now that."""
        return POISONS[self.seed % len(POISONS)]

    def inputs(self, device: Device) -> Tensors:
        few = [] if self.anew is None else self._few(replace(self, seed=self.anew, anew=None).inputs(device))
        drawn = self.op.inputs_at(self.workload, self.seed, device.torch_device, self.values)
        for name, at, value in few:
            drawn[name].view(-1)[at : at + 1] = value
        return drawn

    def _few(self, others: Tensors) -> list[tuple[str, int, torch.Tensor]]:
        """Elements at random places: copies, so that there need not be room for the rest of them."""
        rng = random.Random(self.anew)
        places = [(name, rng.randrange(values.numel())) for name, values in others.items() for _ in range(FEW_ANEW)]
        return [(name, at, others[name].view(-1)[at : at + 1].clone()) for name, at in places]


@dataclass(frozen=True)
class Inspector:
    """Runs programs on poisoned memory and keeps a record of every output that was judged."""

    device: Device
    arena: Arena
    rng: random.Random  # seeded after compilation, when nothing of the kernel can change any more
    checks: list[Check]
    watch: Callable[[str], None]
    turns: Counter[tuple[str, bool]] = field(default_factory=Counter)  # of mixtures, timed or not: all, by dtype
    leavings: list[Callable[[torch.Tensor], object]] = field(default_factory=list)  # still to be met, of all kinds

    def check(self, program: Program, op: Op, workload: Workload, *, closely: bool = False) -> bool:
        """Whether runs on the same inputs agree to the bit. Raises RejectedError at the first fault.

        The expected values come into being only after the last run on their inputs, from inputs drawn afresh.
        """
        usual = Draw(op, workload, self.rng.randrange(2**31))
        once = layout(op, workload, program)
        buffers = self.arena.poisoned(once, POISONS[0], self.rng)
        found = [(self._run(program, usual, buffers, as_timed=False), POISONS[0])]
        # Where it is timed there are several sets of buffers: so it finds a second one here too, of no use to it.
        twice = {**once, **{f"{ANOTHER}{name}": held for name, held in once.items()}}
        # And whatever it may find in them there: who does nothing on one of these is found out for certain.
        timed = workload in op.workloads(self.device.info.kind)
        poisons = self.rng.sample(POISONS[1:], len(POISONS) - 1 if timed else 1)
        buffers = self.arena.poisoned(twice, poisons[0], self.rng, USUAL_ALIGNMENT)
        inputs = {spec.name for spec in op.inputs}
        own = _raw(buffers, [name for name in once if name not in inputs])
        for poison in poisons:
            self._run_again(program, usual, buffers, own, poison, found)
        if keeps := timed and bool(program.bound.workspace):  # where it may have noted that these are done
            results = _raw(buffers, [spec.name for spec in op.outputs])
            self._run_again(program, usual, buffers, results, poisons[0], found)
        self.watch("check")
        agree = len(found) == 1
        while found:  # each makes room for what it takes to judge the next
            self.judge(usual, *found.pop(0))
        if op.draw is None and (keeps or (timed and closely)):
            # Much of what it may have noted, or left as results, holds good still, but not all.
            self._run_and_judge(program, replace(usual, anew=self.rng.randrange(2**31)), buffers, poisons[-1])
        for _ in range(_mixtures(op, workload)):
            self._as_in_use(own, timed=timed)
            mixed = replace(usual, seed=self._mixed_seed(op, workload.dtype, timed=timed), values=MIXED)
            self._run_and_judge(program, mixed, buffers, poisons[-1])
        return agree

    def _run_again(
        self,
        program: Program,
        task: Draw,
        buffers: dict[str, Buffer],
        spoilt: list[torch.Tensor],
        poison: int,
        found: list[tuple[Outputs, int]],
    ) -> None:
        """One more run on the same inputs; its outputs join those found if they are not the first ones to the bit."""
        for raw in spoilt:
            raw.fill_(poison)
        outputs = self._run(program, task, buffers, as_timed=True)
        if not _same(outputs, found[0][0]):
            found.append((outputs, poison))

    def _run_and_judge(self, program: Program, task: Draw, buffers: dict[str, Buffer], poison: int) -> None:
        outputs = self._run(program, task, buffers, as_timed=self.rng.random() < 0.5)
        self.watch("check")
        self.judge(task, outputs, poison)

    def _as_in_use(self, own: list[torch.Tensor], *, timed: bool) -> None:
        """Results and workspace as the last call left them, as anybody may have, or as the driver hands them out.

        Where it is timed always as left: who does nothing when it finds its own mark there is found out for certain.
        """
        if timed:
            return
        if not self.leavings:
            self.leavings.extend(self.rng.sample(LEAVINGS, len(LEAVINGS)))
        leave = self.leavings.pop()
        for raw in own:
            leave(raw)

    def _mixed_seed(self, op: Op, dtype: str, *, timed: bool) -> int:
        """Among the workloads that are timed, and among the others, nothing is met or not by luck.

        Every dtype meets large weights, and each distribution is once the first, or, where rows depend on each other,
        the only one; which is the first of all, nobody knows.
        """
        every, own = ("", timed), (dtype, timed)
        self.turns.setdefault(every, self.rng.randrange(1 + len(op.values)))
        seed = op.mixture(self.turns[every], self.turns[own], self.rng)
        self.turns.update((every, own))
        return seed

    def judge(self, task: Draw, outputs: Outputs, poison: int) -> None:
        """Raise RejectedError unless the outputs are right."""
        known = truth(task.op, task.workload, task.values, task.seed, task.inputs(self.device))
        where = task.workload.key
        for index, (spec, actual) in enumerate(zip(task.op.outputs, outputs, strict=True)):
            for part, found in known.judged(index, actual):
                self.checks.append(Check(where, part.values, spec.name, found.error, found.theirs, found.worst))
                if found.fault:
                    untouched = still_poisoned(actual[part.rows], poison) if poison else 0  # zeros may be results
                    unwritten = f" ({untouched} elements still hold the poison: never written)" if untouched else ""
                    on = "" if part.values == NORMAL else f" on {part.values} values"
                    unsaid = SHORT_OF_MEMORY if known.unexplained else ""
                    raise RejectedError(Outcome.WRONG, f"{where}: `{spec.name}`{on}: {found.fault}{unwritten}{unsaid}")

    def _run(self, program: Program, task: Draw, buffers: dict[str, Buffer], *, as_timed: bool) -> Outputs:
        """One run; copies of what it put out. Some are done as timed ones are: a kernel cannot tell which is which."""
        for name, values in task.inputs(self.device).items():
            buffers[name].tensor.copy_(values)
        tensors = {name: buffer.tensor for name, buffer in buffers.items()}
        self.watch("run")
        if as_timed:
            self.device.time(lambda: program.launch(tensors))
        else:
            self.device.run(program, tensors)
        self._inspect(buffers, task)
        return tuple(buffers[spec.name].tensor.clone() for spec in task.op.outputs)

    def _inspect(self, buffers: dict[str, Buffer], task: Draw) -> None:
        """What lies round the buffers and behind them all, and the inputs against the same drawn afresh."""
        fresh = task.inputs(self.device)
        changed = [(bits(buffers[name].tensor) != bits(values)).any() for name, values in fresh.items()]
        unused = [buffer for name, buffer in buffers.items() if name.startswith(ANOTHER)]
        outside, far, *inputs = torch.stack([damaged(buffers.values()), self.arena.strayed(unused), *changed]).tolist()
        where = task.workload.key
        if outside:
            name, damage = next((name, said) for name, buffer in buffers.items() if (said := buffer.damage()))
            raise RejectedError(Outcome.OUT_OF_BOUNDS, f"{where}: `{name}`: {damage}")
        if far:
            raise RejectedError(Outcome.OUT_OF_BOUNDS, f"{where}: memory was overwritten far away from its buffers")
        for name, wrong in zip(fresh, inputs, strict=True):
            if wrong:
                count = int((bits(buffers[name].tensor) != bits(fresh[name])).sum())
                log = f"{where}: the input `{name}` was changed in {count} places"
                raise RejectedError(Outcome.CHANGED_INPUT, log)


def _mixtures(op: Op, workload: Workload) -> int:
    """As many as it takes to meet all distributions with a number, as an `eps`, that the op's file does not list.

    On most of them it makes no difference; where there are few rows, one mixture has some of them alone.
    """
    listed = {said for known in op.listed for said in known.parameters}
    unlisted = any(isinstance(said[1], float) and said not in listed for said in workload.parameters)
    return op.mixtures_to_meet_all(workload) if unlisted else 1


def _raw(buffers: Mapping[str, Buffer], names: Iterable[str]) -> list[torch.Tensor]:
    """The bytes of these."""
    return [buffers[name].tensor.view(-1).view(torch.uint8) for name in names]


def _same(some: Outputs, others: Outputs) -> bool:
    """To the bit."""
    return all(torch.equal(bits(a), bits(b)) for a, b in zip(some, others, strict=True))


def layout(op: Op, workload: Workload, program: Program) -> Layout:
    """Shapes and dtypes of everything that a program is given."""
    specs = (*op.inputs, *op.outputs)
    return {
        **{spec.name: (op.shape(spec, workload), DTYPES[spec.dtype or workload.dtype]) for spec in specs},
        **{w.name: ((w.elements,), DTYPES[w.dtype]) for w in program.bound.workspace},
    }

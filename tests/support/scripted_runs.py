"""A model and an engine that do as they are told, for tests of how runs spend what they have."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import bad_kernels
from records import CPU

from archive.kernel import Kernel, parse
from archive.proposals import Cost, Proposal
from archive.records import Confirmed, DeviceInfo, Evaluation, Measurement, Outcome
from evolve.budget import Ended
from evolve.engines.engine import Job
from evolve.request import Request
from reference_ops import catalog
from reference_ops.op import Op

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
FLOOR_US, EAGER_US = 10.0, 100.0
PRICE = Cost(prompt_tokens=100, completion_tokens=50, usd=0.01)


def op(name: str = "twice") -> Op:
    loaded = catalog.load(TWICE)
    return replace(loaded, name=name, emulated=loaded.emulated[:1])


def kernel(number: int, name: str = "twice") -> Kernel:
    """One of as many as there are numbers, and none says the same as another."""
    body = f"{bad_kernels.RIGHT} if (n == -{number}) out[0] = x[0];"
    return parse(bad_kernels.twice_kernel(body, f"number {number}").text.replace('op = "twice"', f'op = "{name}"'))


def number_of(kernel: Kernel) -> int:
    return int(kernel.plan.note.split()[1])


def outcome(events: Generator[object, None, Ended], seen: list[object] | None = None) -> Ended:
    """What a run gives back when it is over; what it told goes to `seen`."""
    while True:
        try:
            event = next(events)
        except StopIteration as over:
            return Ended(over.value)
        if seen is not None:
            seen.append(event)


@dataclass
class PricedModel:
    """Writes kernels 1, 2, 3 and so on for each op, or prose; each reply costs the same."""

    prose: bool = False
    most: int = 10**9  # kernels in all, after which it is out of ideas
    name: str = "a model"
    written: dict[str, int] = field(default_factory=dict)

    def propose(self, request: Request) -> Iterator[Proposal]:
        left = request.left
        for index in range(request.wanted):
            number = self.written.get(request.op.name, 0) + 1
            dear = left.usd is not None and index * PRICE.usd >= left.usd
            long = left.tokens is not None and index * PRICE.tokens >= left.tokens
            if number > self.most or dear or long:
                return
            self.written[request.op.name] = number
            made = None if self.prose else kernel(number, request.op.name)
            yield Proposal(
                request.op.name, "draft", self.name, made, run=request.run, reply=f"{request.op.name} {number}",
                failure="prose" if self.prose else "", cost=PRICE, created=time.time(),
            )  # fmt: skip


@dataclass
class TimedEngine:
    """The nth kernel of an op takes the nth of its times, and the last of them from then on."""

    times_us: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: {"twice": (50.0,)})
    stop_after: int = 10**9  # evaluations, as a run that is killed
    falling: tuple[int, ...] = ()  # numbers of the kernels that fall when they are confirmed
    evaluated: list[str] = field(default_factory=list)  # the op of each
    confirmed: list[int] = field(default_factory=list)
    info: DeviceInfo = CPU
    unprofiled: str = "there is no profiler here"

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            if len(self.evaluated) >= self.stop_after:
                raise KeyboardInterrupt
            name, number = job.kernel.op, number_of(job.kernel)
            if job.confirm:
                self.confirmed.append(number)
            else:
                self.evaluated.append(name)
            fell = job.confirm and number in self.falling
            times = self.times_us[name]
            us = times[min(number, len(times)) - 1]
            measured = Measurement("n=4096 float32", us, us, us, 9, EAGER_US, floor_us=FLOOR_US)
            yield Evaluation(
                job.kernel.id, name, CPU, Outcome.UNSAFE if fell else Outcome.PASSED, "", () if fell else (measured,),
                created=time.time(), confirmed=Confirmed((), ()) if job.confirm and not fell else None,
            )  # fmt: skip

    def profile(self, kernel: Kernel, op: str, workload: str) -> None:
        pass

    def close(self) -> None:
        pass

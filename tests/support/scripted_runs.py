"""A scripted model, and verdicts that depend on a kernel's number, for tests of runs."""

import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import bad_kernels
from fake_engine import FakeEngine, verdict

from archive.kernel import Kernel, Proposal, parse
from archive.records import Evaluation, Measurement, Outcome
from archive.runs import Cost
from evolve.budget import Ended
from evolve.engines.engine import Job
from evolve.request import Request
from reference_ops import catalog
from reference_ops.op import Op

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
FLOOR_US, EAGER_US = 10.0, 100.0
WORKLOADS = ("n=4096 float32", "n=4096 bfloat16")
PRICE = Cost(prompt_tokens=100, completion_tokens=50, usd=0.01)


def op(name: str = "twice") -> Op:
    loaded = catalog.load(TWICE)
    return replace(loaded, name=name, emulated=loaded.emulated[:1])


def kernel(number: int, name: str = "twice") -> Kernel:
    """Return the kernel with this number; different numbers give no duplicates."""
    body = f"{bad_kernels.RIGHT} if (n == -{number}) out[0] = x[0];"
    return parse(bad_kernels.twice_kernel(body, f"number {number}").text.replace('op = "twice"', f'op = "{name}"'))


def number_of(kernel: Kernel) -> int:
    return int(kernel.plan.note.split()[1])


def outcome(events: Generator[object, None, Ended], seen: list[object] | None = None) -> Ended:
    """Consume the events of a run and return why it ended; events are added to `seen`."""
    while True:
        try:
            event = next(events)
        except StopIteration as over:
            return Ended(over.value)
        if seen is not None:
            seen.append(event)


@dataclass
class PricedModel:
    """Model that writes kernels 1, 2, 3 and so on for each op, or prose. All replies cost the same."""

    prose: bool = False
    most: int = 10**9  # number of kernels of each op, after which the model proposes none
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


def by_number(times_us: Mapping[str, tuple[float, ...]], *failing: int) -> Callable[[Job], Evaluation]:
    """Return a judge for which kernel n of an op takes the nth of these times, or the last one if there are fewer.

    Kernels whose numbers are `failing` fail their confirmation.
    """

    def judge(job: Job) -> Evaluation:
        number, times = number_of(job.kernel), times_us[job.kernel.op]
        if job.confirm and number in failing:
            return verdict(job, outcome=Outcome.UNSAFE)
        us = times[min(number, len(times)) - 1]
        return verdict(job, Measurement("n=4096 float32", us, us, us, 9, EAGER_US, floor_us=FLOOR_US))

    return judge


def timed_engine(*times_us: float, stop_after: int | None = None) -> FakeEngine:
    """Return an engine on which the kernels of `twice` take these times, or 50 us by default."""
    return FakeEngine(by_number({"twice": times_us or (50.0,)}), stop_after=stop_after)


def faster_and_faster(job: Job) -> Evaluation:
    """Judge a kernel by its number: larger numbers are faster on average, and every seventh kernel does not compile."""
    number = number_of(job.kernel)
    if number % 7 == 3:
        return verdict(job, outcome=Outcome.COMPILE_ERROR, log="error: expected a ;")
    drawn = random.Random(number)
    times = [EAGER_US * drawn.uniform(0.5, 1.5) / (1 + 0.02 * number) for _ in WORKLOADS]
    measured = (
        Measurement(workload, us, us * 0.99, us * 1.01, 9, EAGER_US, floor_us=FLOOR_US / 2)
        for workload, us in zip(WORKLOADS, times, strict=True)
    )
    return verdict(job, *measured)

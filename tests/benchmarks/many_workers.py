"""Benchmark of the driver with many workers, which are simulated. Run this file with Python.

The real campaign, archive and offline proposer run against workers that exist in virtual time only: each evaluation
takes a time drawn around what an H200 took (check 83 ms, runs 42 ms, timing 90 ms; failures end earlier). The CPU time
of this process is added to the virtual clock, so that workers wait for the driver as in reality.

The columns: evaluations per second of virtual time, share of the time that workers are busy, CPU time of the driver per
evaluation and the parts of it that proposing and archiving take, and archived records per second. The offline proposer
is given the ops of the catalog that have knobs, because it proposes at most 16 settings of an op at once. With
`--proposer instant`, proposals of one op cost nothing, as those of a language model do while it writes.
"""

import argparse
import heapq
import itertools
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from archive import library  # noqa: E402
from archive.kernel import Kernel, Proposal  # noqa: E402
from archive.records import DeviceInfo, Evaluation, Measurement, Outcome, Profile, Traits  # noqa: E402
from archive.runs import Budget, Run, Scope  # noqa: E402
from archive.sqlite import SqliteStore, open_archive  # noqa: E402
from archive.store import Record  # noqa: E402
from evolve.campaign import Slice, campaign  # noqa: E402
from evolve.engines.engine import Job  # noqa: E402
from evolve.proposers.tuner.proposer import OfflineProposer  # noqa: E402
from evolve.request import Proposer, Request  # noqa: E402
from evolve.search import Search, generation  # noqa: E402
from reference_ops import catalog  # noqa: E402
from reference_ops.op import Op  # noqa: E402

OP = "softmax"
H200 = DeviceInfo("cuda", "NVIDIA H200", "sm_90a", 132, 232_448, copy_gb_s=4270.0)
CHECK_SECONDS, RUN_SECONDS, TIME_SECONDS = 0.083, 0.042, 0.090
SPREAD = 0.3  # standard deviation of the logarithm of an evaluation's time
FAILING = 0.25  # share of kernels that fail, half of them when they are compiled
QUEUED = 0.5  # jobs per worker that wait at the engine, so that no worker waits for the driver


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, nargs="*", default=[1, 10, 100, 1000])
    options.add_argument("--evals", type=int, default=1000, help="evaluations with few workers; four per worker else")
    options.add_argument("--proposer", choices=("offline", "instant"), default="offline")
    given = options.parse_args()
    print(
        f"{'workers':>8}{'evals':>8}{'evals/s':>10}{'busy':>8}{'CPU/eval':>11}{'propose':>10}{'archive':>10}{'records/s':>11}"
    )
    for workers in given.workers:
        with tempfile.TemporaryDirectory() as folder:
            print(simulated(workers, max(given.evals, 4 * workers), given.proposer, Path(folder)), flush=True)


@dataclass
class Meter:
    """CPU seconds of parts of the driver, and the number of archived records."""

    propose: float = 0.0
    archive: float = 0.0
    records: int = 0


@dataclass(frozen=True)
class Metered:
    """A store that adds up the CPU time of appending."""

    store: SqliteStore
    meter: Meter

    def append(self, *records: Record) -> int:
        began = time.process_time()
        new = self.store.append(*records)
        self.meter.archive += time.process_time() - began
        self.meter.records += new
        return new

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@dataclass(frozen=True)
class MeteredProposer:
    """A proposer that adds up the CPU time of another one."""

    proposer: Proposer
    meter: Meter

    @property
    def name(self) -> str:
        return self.proposer.name

    def propose(self, request: Request) -> Iterator[Proposal]:
        began = time.process_time()
        found = list(self.proposer.propose(request))
        self.meter.propose += time.process_time() - began
        yield from found


@dataclass
class Instant:
    """A proposer of new kernels that takes almost no time."""

    numbers: Iterator[int] = field(default_factory=itertools.count)
    name: str = "instant"

    def propose(self, request: Request) -> Iterator[Proposal]:
        base = with_knobs(request.op.name)[0]
        for number in itertools.islice(self.numbers, request.wanted):
            text = base.text + f"__device__ int extra_{number}(int a) {{ return a + {number}; }}\n"
            parents = tuple(parent.kernel.id for parent in request.parents[:1])
            yield Proposal(OP, "improve", self.name, Kernel(text), parents, request.run, created=time.time())


@dataclass
class Simulated:
    """An engine of workers in virtual time. `now` is the virtual time, which includes the driver's CPU time."""

    workers: int
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    now: float = 0.0
    busy: float = 0.0
    info: DeviceInfo = H200
    own: float = 0.0  # CPU seconds of the simulation itself
    unprofiled: str = "simulated"

    @property
    def cards(self) -> int:
        return self.workers

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        incoming, number = iter(jobs), itertools.count()
        queue: list[Job] = []
        running: list[tuple[float, int, Job, float]] = []  # sorted by the time at which each ends
        ended, left_off = False, time.process_time()
        while True:
            while not ended and len(running) + len(queue) < self.workers * (1 + QUEUED):
                job = next(incoming, self)
                ended = job is self
                if not isinstance(job, Job):
                    break
                queue.append(job)
            self.now += time.process_time() - left_off
            left_off = time.process_time()
            self._start(queue, running, number, self.now)
            if not running:
                return
            end, _, job, seconds = heapq.heappop(running)
            self._start(queue, running, number, end)  # workers take queued jobs without waiting for the driver
            self.now = max(self.now, end)
            found = self._judged(job, seconds)
            self.own += time.process_time() - left_off  # in reality, workers compute the verdict
            left_off = time.process_time()
            yield found

    def _start(
        self, queue: list[Job], running: list[tuple[float, int, Job, float]], number: Iterator[int], at: float
    ) -> None:
        while queue and len(running) < self.workers:
            seconds = self._seconds(queue[0])
            self.busy += seconds
            heapq.heappush(running, (at + seconds, next(number), queue.pop(0), seconds))

    def _seconds(self, job: Job) -> float:
        drawn = random.Random(job.kernel.id).random()
        stages = CHECK_SECONDS + RUN_SECONDS + TIME_SECONDS
        if drawn < FAILING:
            stages = RUN_SECONDS if drawn < FAILING / 2 else CHECK_SECONDS + RUN_SECONDS
        return stages * self.rng.lognormvariate(0.0, SPREAD)

    def _judged(self, job: Job, seconds: float) -> Evaluation:
        rng = random.Random(job.kernel.id)
        drawn, slow = rng.random(), rng.lognormvariate(0.5, 0.4)
        outcome = Outcome.PASSED
        if drawn < FAILING:
            outcome = Outcome.COMPILE_ERROR if drawn < FAILING / 2 else Outcome.WRONG
        traits = Traits(f"{rng.getrandbits(64):016x}", 16, 16, 0, 64, 256, 1, tensor_cores=False, atomics=False,
                        occupancy=0.5)  # fmt: skip
        measured = tuple(
            Measurement(one.key, us := 40 * slow * rng.uniform(0.9, 1.1), us * 0.99, us * 1.01, 100, 110.0, 80.0, 5.0)
            for one in op_of(job.kernel.op).workloads("cuda")
        )
        passed = outcome is Outcome.PASSED
        return Evaluation(
            job.kernel.id, job.kernel.op, self.info, outcome, "" if passed else "error: it failed",
            measured if passed else (), deterministic=True if passed else None, seconds=seconds,
            created=time.time(), traits=traits,
        )  # fmt: skip

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        pass


@cache
def op_of(name: str) -> Op:
    return catalog.load(name)


@cache
def with_knobs(op: str) -> list[Kernel]:
    """Return the op's shipped kernels that have knobs, those with the most settings first."""
    found = [kernel for kernel in library.shipped(op) if kernel.plan.knobs]
    return sorted(found, key=lambda kernel: -math.prod(len(values) for _, values in kernel.plan.knobs))


def simulated(workers: int, evals: int, proposer: str, folder: Path) -> str:
    meter, engine = Meter(), Simulated(workers)
    store = Metered(open_archive(folder / "a.db"), meter)
    names = [op for op in library.op_names() if with_knobs(op)] if proposer == "offline" else [OP]
    limits = Budget(evals=evals)
    searches = [
        Search(f"{number:016x}", op_of(op), op, 0, limits, scope=Scope(f"{number:016x}"), generation=generation(engine))
        for number, op in enumerate(names)
    ]
    store.append(*(Run(one.run, one.op.name, H200.key, proposer, 0, time.time(), budget=limits) for one in searches))
    seeds = [Proposal(op, "seed", "library", one, created=time.time()) for op in names for one in with_knobs(op)]
    made = MeteredProposer(OfflineProposer() if proposer == "offline" else Instant(), meter)
    meter.archive, engine.own = 0.0, 0.0
    began = time.process_time()
    events = campaign(searches, seeds, made, engine, store)
    for event in events:
        if isinstance(event, Slice) and event.confirming:  # only one card confirms champions
            break
    events.close()
    cpu = time.process_time() - began - engine.own
    made_evals = len(store.find(Evaluation))
    rate, busy = made_evals / engine.now, engine.busy / (workers * engine.now)
    each = [f"{1000 * seconds / made_evals:7.2f} ms" for seconds in (cpu, meter.propose, meter.archive)]
    return f"{workers:8}{made_evals:8}{rate:10.1f}{busy:8.0%} {''.join(each)}{meter.records / engine.now:11.0f}"


if __name__ == "__main__":
    main()

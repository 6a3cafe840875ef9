"""Benchmark of a large archive: time and memory of commands, pages and rounds of a run.

Run this file with Python. It fills an archive with 100,000 kernels and a million measurements through the store, unless
the file exists already, and runs each command in a separate process.
"""

import argparse
import itertools
import os
import random
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from fake_engine import FakeEngine  # noqa: E402

from archive import library  # noqa: E402
from archive.kernel import Kernel, Proposal  # noqa: E402
from archive.records import (  # noqa: E402
    Check,
    DeviceInfo,
    Evaluation,
    Leg,
    Measurement,
    Outcome,
    Resources,
    Traits,
)
from archive.runs import Budget, Cost, Run  # noqa: E402
from archive.sqlite import SqliteStore, open_archive  # noqa: E402
from archive.store import Record  # noqa: E402
from evolve.loop import evolve  # noqa: E402
from evolve.pages.server import Pages  # noqa: E402
from evolve.pages.site import Site  # noqa: E402
from evolve.request import Request  # noqa: E402
from evolve.search import Search  # noqa: E402
from reference_ops import catalog  # noqa: E402

GPU = DeviceInfo("cuda", "NVIDIA H200", "sm_90a", 132, 232_448, copy_gb_s=4270.0)
OTHER_GPU = DeviceInfo("cuda", "NVIDIA H100 80GB HBM3", "sm_90a", 132, 232_448, copy_gb_s=2900.0)
CPU = DeviceInfo("emulated", "emulated", "sm_90a", 8, 232_448)
SHARES = {"softmax": 0.4, "layer_norm": 0.2, "cross_entropy": 0.15, "gelu": 0.15, "cumsum": 0.1}
DEVICES = ((GPU, 0.8), (CPU, 0.2))
FAILURES = (Outcome.WRONG, Outcome.COMPILE_ERROR, Outcome.DUPLICATE, Outcome.TIMED_OUT, Outcome.ILLEGAL)
PASSED = 0.6  # share of the kernels that pass
SETTINGS = 6  # kernels per design
KERNELS_OF_A_RUN = 2_000
RECORDS_AT_ONCE = 1_000
CHECKS = 24  # checks of an evaluation
ROUNDS = 12
DAY = 86_400.0


@dataclass(frozen=True)
class Row:
    """Time and memory that one command or one part of a run took."""

    what: str
    seconds: float
    cpu_seconds: float  # more reliable than wall-clock time on a busy machine
    megabytes: float
    exit_code: int = 0

    def __str__(self) -> str:
        failed = f"  EXIT CODE {self.exit_code}" if self.exit_code else ""
        return f"{self.what:40} {self.seconds:8.2f} s {self.cpu_seconds:8.2f} s of CPU {self.megabytes:8.0f} MB{failed}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kernels", type=int, default=100_000)
    options.add_argument("--measurements", type=int, default=1_000_000, help="judge kernels again up to this number")
    options.add_argument("--archive", type=Path, default=Path(".evolve/big.db"), help="created if it does not exist")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--only", choices=("make", "commands", "pages", "rounds"), help="run only this part")
    given = options.parse_args()
    if not given.archive.exists():
        began = time.monotonic()
        fill(given.archive, given.kernels, given.measurements)
        print(f"made in {time.monotonic() - began:.0f} s")
    print(held(given.archive), flush=True)
    if given.only in (None, "commands"):
        for row in commands(given.archive):
            print(row, flush=True)
    if given.only in (None, "pages"):
        for row in pages(given.archive):
            print(row, flush=True)
    if given.only in (None, "rounds"):
        for row in rounds(given.archive, given.rounds):
            print(row, flush=True)


def held(path: Path) -> str:
    """Return the numbers of an archive's records."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        counts = [
            f"{connection.execute(f'SELECT count(*) FROM {table}').fetchone()[0]:,} {table}"
            for table in ("kernels", "evaluations", "measurements", "runs")
        ]
    return f"{path}: {path.stat().st_size / 1e6:.0f} MB, {', '.join(counts)}"


def fill(path: Path, kernels: int, measurements: int) -> None:
    """Create an archive. It gets its final name only when it is complete."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    store = open_archive(unfinished)
    waiting: list[Record] = []
    for record in records(kernels, measurements):
        waiting.append(record)
        if len(waiting) >= RECORDS_AT_ONCE:
            store.append(*waiting)
            waiting.clear()
    store.append(*waiting)
    store.close()
    unfinished.rename(path)


def records(kernels: int, measurements: int) -> Iterator[Record]:
    """Yield the runs, proposals and evaluations of every op and device."""
    for op, share in SHARES.items():
        for device, part in DEVICES:
            rng, passed, measured = random.Random(f"{op} {device.key}"), list[Evaluation](), 0
            for record in _records_of(op, device, round(kernels * share * part), rng):
                yield record
                if isinstance(record, Evaluation) and record.measurements:
                    passed.append(record)
                    measured += len(record.measurements)
            yield from _judged_again(passed, round(measurements * share * part) - measured, rng)


def _judged_again(passed: list[Evaluation], measurements: int, rng: random.Random) -> Iterator[Evaluation]:
    """Yield later verdicts with this number of measurements, as `evolve verify` makes them on two GPUs."""
    for index in itertools.count():
        if measurements <= 0:
            return
        first, device = passed[index // 2 % len(passed)], (GPU, OTHER_GPU)[index % 2]
        again = _evaluation(first.kernel_id, first.op, device, first.created + DAY, rng, passed=True)
        measurements -= len(again.measurements)
        yield again


def _records_of(op: str, device: DeviceInfo, kernels: int, rng: random.Random) -> Iterator[Record]:
    """Yield designs with several settings of their knobs, each with an earlier kernel as parent, and their verdicts."""
    made: list[str] = []
    now = time.time() - 30 * DAY
    for start in range(0, kernels, KERNELS_OF_A_RUN):
        run = Run(f"{rng.getrandbits(48):012x}", op, device.key, "made up", 0, now, budget=Budget(evals=kernels))
        started = now
        yield run
        yield Leg(run.id, started)
        for index in range(start, min(start + KERNELS_OF_A_RUN, kernels)):
            now += rng.uniform(0.5, 3.0)
            if index % SETTINGS == 0:
                design = _design(op, rng)
            kernel = design if index % SETTINGS == 0 else _retuned(design, rng, made)
            parents = (rng.choice(made[-50:]),) if made else ()
            made.append(kernel.id)
            operator = rng.choice(("improve", "draft", "crossover", "repair")) if index % SETTINGS == 0 else "knobs"
            cost = Cost(4_000, 2_000, 12.0, usd=0.01) if operator != "knobs" else Cost()
            reply = kernel.text if operator != "knobs" else ""
            yield Proposal(op, operator, "made up", kernel, parents, run.id, reply, cost=cost, created=now)
            passed = rng.random() < PASSED
            yield replace(_evaluation(kernel.id, op, device, now + 1, rng, passed=passed), run=run.id)
            if device is not GPU:  # otherwise a run on the GPU would begin with these kernels
                yield _evaluation(kernel.id, op, GPU, now + 2, rng, passed=passed)
        yield Leg(run.id, started, now + 2)


@cache
def _shipped(op: str) -> Kernel:
    """Return the op's shipped kernel with the most knob values, or that of softmax renamed for this op."""
    own = [kernel for kernel in library.shipped(op) if kernel.plan.knobs]
    if not own:
        return Kernel(_shipped("softmax").text.replace('op = "softmax"', f'op = "{op}"', 1))
    return max(own, key=lambda kernel: sum(len(values) for _, values in kernel.plan.knobs))


def _design(op: str, rng: random.Random) -> Kernel:
    """Return a shipped kernel with some functions added, so that its text and its outline are unique."""
    signs = (" + ", " - ", " * ", " / ", " & ", " ^ ", " << ", " % ")
    lines = [
        f"// step {n}: {rng.getrandbits(64):x}\n__device__ int extra_{n}(int a, int b) {{ return {_sum(signs, rng)}; }}"
        for n in range(rng.randrange(4, 14))
    ]
    return Kernel(_shipped(op).text + "\n".join(lines) + "\n")


def _sum(signs: tuple[str, ...], rng: random.Random) -> str:
    return "a" + "".join(
        f"{rng.choice(signs)}({rng.choice('ab')}{rng.choice(signs)}{rng.randrange(9)})" for _ in "12345"
    )


def _retuned(design: Kernel, rng: random.Random, made: list[str]) -> Kernel:
    """Return the design with a setting of its knobs that was not made recently, or a new design if there is none."""
    lines = {name: list(values) for name, values in _knobs(design)}
    settings = list(itertools.product(*lines.values()))
    rng.shuffle(settings)
    recent = set(made[-SETTINGS:])
    for setting in settings:
        text = design.text
        for (name, values), value in zip(lines.items(), setting, strict=True):
            others = [value, *sorted(set(values) - {value})]
            text = text.replace(f"\n{name} = {values}\n", f"\n{name} = {others}\n", 1)
        if (kernel := Kernel(text)).id not in recent:
            return kernel
    return _design(design.op, rng)


@cache
def _knobs_of(op: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return _shipped(op).plan.knobs


def _knobs(design: Kernel) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return _knobs_of(design.op)


@cache
def _workloads(op: str, kind: str) -> tuple[str, ...]:
    return tuple(workload.key for workload in catalog.load(op).workloads(kind))


def _evaluation(
    kernel_id: str, op: str, device: DeviceInfo, created: float, rng: random.Random, *, passed: bool
) -> Evaluation:
    outcome = Outcome.PASSED if passed else rng.choice(FAILURES)
    log = "" if passed else f"error at element {rng.randrange(10**6)}: " + "expected 1.0, got 2.0; " * 20
    code = f"{rng.getrandbits(64):016x}"
    traits = Traits(code, rng.choice((4, 8, 16)), 16, rng.choice((0, 8_192, 49_152)), rng.choice((32, 64, 128)), 256,
                    rng.choice((1, 1, 2)), tensor_cores=False, atomics=False, occupancy=0.5)  # fmt: skip
    workloads = _workloads(op, device.kind)
    slow = rng.lognormvariate(0.5, 0.4)
    return Evaluation(
        kernel_id, op, device, outcome, log,
        tuple(_measurement(workload, slow * rng.uniform(0.9, 1.1)) for workload in workloads) if passed else (),
        deterministic=True if passed else None,
        resources=(Resources("entry", 32, 0, 0),),
        seed=rng.getrandbits(31),
        seconds=0.5,
        created=created,
        checks=tuple(
            Check(workloads[n % len(workloads)], ("normal", "zeros", "ones")[n % 3], "out", rng.random() * 1e-7, 1e-7,
                  rng.random())
            for n in range(CHECKS)
        ) if passed else (),
        traits=None if outcome is Outcome.COMPILE_ERROR else traits,
    )  # fmt: skip


def _measurement(workload: str, slowness: float) -> Measurement:
    us = 40.0 * slowness
    return Measurement(workload, us, us * 0.99, us * 1.01, 100, 110.0, 80.0, floor_us=30.0)


def commands(archive: Path) -> Iterator[Row]:
    """Run the commands that only read the archive."""
    store = open_archive(archive, read_only=True)
    first, second = _two_kernels(store)
    store.close()
    op = next(iter(SHARES))
    for words in (
        ["top"], ["top", op], ["top", op, "--outcome", "wrong"], ["tree", op], ["runs"], ["show", first],
        ["diff", first, second], ["ops"], ["ask", op], ["doctor"],
    ):  # fmt: skip
        yield _command(words, archive)


def pages(archive: Path) -> Iterator[Row]:
    """Make the pages that a browser requests: each once, then after another kernel was judged, then unchanged."""
    store = open_archive(archive)
    first, second = _two_kernels(store)
    op = next(iter(SHARES))
    runs = [run.id for run in store.find(Run, op) if run.device == GPU.key][-2:]
    site = Site()
    made = Pages(archive, site)
    yield _timed("work of the ops, by another process", lambda: site.prepare(store))
    addresses = (
        "/", f"/op/{op}", f"/kernel/{first}", f"/run/{runs[0]}", "/runs", f"/compare/kernels/{first}/{second}",
        f"/compare/runs/{'/'.join(runs)}", f"/compare/devices/{op}",
    )  # fmt: skip
    for address in addresses:
        yield _timed(f"page {_shown(address)}", lambda: made.get(address))  # noqa: B023 - called at once
    kernel = _design(op, random.Random(time.time()))
    (verdict, *_) = store.find(Evaluation, op, kernels=[first])
    store.append(
        Proposal(op, "draft", "made up", kernel, created=time.time()),
        replace(verdict, kernel_id=kernel.id, created=time.time()),
    )
    for address in addresses:
        yield _timed(f"page {_shown(address)}, changed", lambda: made.get(address))  # noqa: B023
    yield _timed("page /, as it was", lambda: made.get("/"))
    store.close()


def _shown(address: str) -> str:
    return "/".join(word[:12] for word in address.split("/"))


def _timed(what: str, make: Callable[[], object]) -> Row:
    began = _moment()
    make()
    return Row(what, *_between(began, _moment()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _two_kernels(store: SqliteStore) -> tuple[str, str]:
    (run, *_) = store.find(Run, next(iter(SHARES)))
    ids = [proposal.kernel_id for proposal in store.find(Proposal, run=run.id)]
    return ids[100 % len(ids)], ids[50 % len(ids)]


def _command(words: list[str], archive: Path) -> Row:
    environment = {**os.environ, "EVOLVE_ARCHIVE": str(archive), "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise every command would compile every module
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "evolve", *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    return Row(f"evolve {' '.join(words)}", time.monotonic() - began, usage.ru_utime + usage.ru_stime,
               usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status))  # fmt: skip


Moment = tuple[float, float]  # wall-clock seconds, and CPU seconds of this process


def _moment() -> Moment:
    return time.monotonic(), time.process_time()


@dataclass
class MadeUp:
    """A proposer of new kernels that records when each request came and when its kernels were ready."""

    rng: random.Random
    asked: list[Moment]
    answered: list[Moment]
    name: str = "made up"

    def propose(self, request: Request) -> Iterator[Proposal]:
        self.asked.append(_moment())
        kernels = [_design(request.op.name, self.rng) for _ in range(request.wanted)]
        parents = [parent.kernel.id for parent in request.parents[:1]]
        self.answered.append(_moment())
        for kernel in kernels:
            yield Proposal(request.op.name, "improve", self.name, kernel, tuple(parents), request.run,
                           created=time.time())  # fmt: skip


def rounds(archive: Path, number: int) -> Iterator[Row]:
    """Run rounds with an engine and a proposer that take almost no time, to measure the cost of a round itself."""
    store, rng = open_archive(archive), random.Random(time.time())
    engine = FakeEngine(lambda job: _verdict(job.kernel, rng), info=GPU)
    op, proposer = catalog.load(next(iter(SHARES))), MadeUp(rng, [], [])
    search = Search(f"{rng.getrandbits(48):012x}", op, op.name, 0, Budget(evals=8 * number))
    store.append(Run(search.run, op.name, GPU.key, proposer.name, 0, time.time(), budget=search.budget))
    began = _moment()
    for _ in evolve(search, [], proposer, engine, store):
        pass
    ended = _moment()
    own = sorted(_between(made, asked) for made, asked in zip(proposer.answered, proposer.asked[1:], strict=False))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Row("until the first request", *_between(began, proposer.asked[0]), peak)
    yield Row(f"one round, median of {len(own)}", *own[len(own) // 2], peak)
    yield Row("one round, longest", *own[-1], peak)
    yield Row("from the last request to the end", *_between(proposer.answered[-1], ended), peak)
    store.close()


def _verdict(kernel: Kernel, rng: random.Random) -> Evaluation:
    return _evaluation(kernel.id, kernel.op, GPU, time.time(), rng, passed=rng.random() < PASSED)


def _between(begin: Moment, end: Moment) -> tuple[float, float]:
    return end[0] - begin[0], end[1] - begin[1]


if __name__ == "__main__":
    main()

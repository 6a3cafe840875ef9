"""Fake engine for tests of code that uses an engine: gives verdicts without a device and records its calls."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from records import CPU

from archive.kernel import Kernel
from archive.records import Confirmed, DeviceInfo, Evaluation, Measurement, Outcome, Profile
from evolve import wiring
from evolve.devices import choose
from evolve.engines.engine import Job
from evolve.evaluation.requests import TimingRequest, TimingResult


def verdict(
    job: Job, *measurements: Measurement, outcome: Outcome = Outcome.PASSED, log: str = "", device: DeviceInfo = CPU
) -> Evaluation:
    """Return an evaluation of a job, with a confirmation if the job requests one and passes."""
    confirmed = Confirmed((), ()) if job.confirm and outcome is Outcome.PASSED else None
    return Evaluation(
        job.kernel.id, job.kernel.op, device, outcome, log, measurements, created=time.time(), confirmed=confirmed
    )


def refuse(request: object) -> TimingResult:
    raise AssertionError(f"not expected by this test: {request}")


@dataclass
class FakeEngine:
    """Engine that yields `judge(job)` for each job, fixed counters as profile, and `times(request)` for PyTorch."""

    judge: Callable[[Job], Evaluation] = verdict
    info: DeviceInfo = CPU
    counters: tuple[tuple[str, float], ...] | None = None  # None if the engine has no profiler
    unprofiled: str = ""
    times: Callable[[TimingRequest], TimingResult] = refuse
    stop_after: int | None = None  # number of evaluations after which the engine raises KeyboardInterrupt
    jobs: list[Job] = field(default_factory=list)
    profiled: list[tuple[str, str, str]] = field(default_factory=list)  # the kernel's id, its op and the workload
    timed: list[TimingRequest] = field(default_factory=list)
    closed: bool = False

    @property
    def evaluated(self) -> list[Kernel]:
        return [job.kernel for job in self.jobs if not job.confirm]

    @property
    def confirmed(self) -> list[Kernel]:
        return [job.kernel for job in self.jobs if job.confirm]

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        for job in jobs:
            if job is None:  # no job is available now
                continue
            if self.stop_after is not None and len(self.evaluated) >= self.stop_after:
                raise KeyboardInterrupt
            self.jobs.append(job)
            yield self.judge(job)

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        self.profiled.append((kernel.id, op, workload))
        if self.counters is None:
            return None
        return Profile(kernel.id, kernel.op, self.info.key, workload, self.counters, created=1.0)

    def time_pytorch(self, request: TimingRequest) -> TimingResult:
        self.timed.append(request)
        return self.times(request)

    def close(self) -> None:
        self.closed = True


@dataclass
class AllAtOnce(FakeEngine):
    """Engine that takes all jobs before it gives the first verdict."""

    streams: list[list[str]] = field(default_factory=list)  # the ops of the jobs of each call

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        taken = [job for job in jobs if job]
        self.streams.append([job.kernel.op for job in taken])
        yield from super().evaluate(taken)


def use_as_gpu(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Make commands find a GPU and evaluate on this engine."""
    monkeypatch.setattr(choose, "device_kind", lambda _requested="": "cuda")
    monkeypatch.setattr(wiring, "engine", lambda _kind, _watch=None, _gpus="": engine)
    return engine

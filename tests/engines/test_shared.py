"""One engine for several threads: each gets the evaluations of its own jobs, and all others wait their turn."""

import threading
from collections.abc import Iterator

import pytest
from bad_kernels import twice_kernel
from fake_engine import FakeEngine, verdict

from archive.kernel import Kernel
from archive.records import Evaluation
from evolve.engines.engine import Job
from evolve.engines.station import SharedEngine
from evolve.errors import UserError


def kernels(name: str, count: int) -> list[Kernel]:
    return [twice_kernel(note=f"{name} {number}") for number in range(count)]


def jobs(given: list[Kernel]) -> list[Job]:
    return [Job(kernel, "twice") for kernel in given]


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def shared(fake: FakeEngine) -> Iterator[SharedEngine]:
    made = SharedEngine(fake, depth=3)
    yield made
    made.close()


def test_each_thread_gets_the_evaluations_of_its_own_jobs(shared: SharedEngine) -> None:
    given = {name: kernels(name, 40) for name in ("first", "second", "third")}
    found: dict[str, list[str]] = {}

    def evaluate(name: str) -> None:
        found[name] = [evaluation.kernel_id for evaluation in shared.evaluate(jobs(given[name]))]

    threads = [threading.Thread(target=evaluate, args=[name]) for name in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: [kernel.id for kernel in own] for name, own in given.items()}


def test_no_more_jobs_are_taken_than_the_depth(shared: SharedEngine) -> None:
    taken: list[Kernel] = []

    def endless() -> Iterator[Job]:
        for kernel in kernels("one of many", 100):
            taken.append(kernel)
            yield Job(kernel, "twice")

    assert next(iter(shared.evaluate(endless()))).kernel_id == taken[0].id
    assert len(taken) == 3


def test_a_kernel_in_two_current_jobs_is_evaluated_twice(shared: SharedEngine, fake: FakeEngine) -> None:
    kernel = twice_kernel()
    assert [each.kernel_id for each in shared.evaluate(jobs([kernel, kernel]))] == [kernel.id] * 2
    assert len(fake.jobs) == 2


def test_an_error_is_raised_in_the_threads_that_wait_and_the_engine_continues() -> None:
    def judge(job: Job) -> Evaluation:
        if job.op == "unknown":
            raise UserError("there is no op `unknown`")
        return verdict(job)

    shared = SharedEngine(FakeEngine(judge), depth=3)
    try:
        with pytest.raises(UserError, match="unknown"):
            list(shared.evaluate([Job(twice_kernel(), "unknown")]))
        assert len(list(shared.evaluate(jobs(kernels("good", 2))))) == 2
    finally:
        shared.close()


def test_a_profile_waits_for_the_current_jobs(fake: FakeEngine) -> None:
    began, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def judge(job: Job) -> Evaluation:
        began.set()
        may_end.wait(10)
        order.append("evaluated")
        return verdict(job)

    fake.judge = judge
    shared = SharedEngine(fake, depth=1)

    def ask() -> None:
        shared.profile(twice_kernel(), "twice", "n=1")
        order.append("profiled")

    asking = threading.Thread(target=ask)
    evaluating = shared.evaluate(jobs(kernels("slow", 1)))
    thread = threading.Thread(target=lambda: list(evaluating))
    thread.start()
    began.wait(10)
    asking.start()
    may_end.set()
    thread.join()
    asking.join()
    shared.close()
    assert order == ["evaluated", "profiled"]


def test_closing_ends_the_engine_and_the_threads_that_wait(fake: FakeEngine) -> None:
    shared = SharedEngine(fake, depth=1)
    shared.close()
    assert fake.closed
    with pytest.raises(RuntimeError, match="closed"):
        list(shared.evaluate(jobs(kernels("late", 1))))

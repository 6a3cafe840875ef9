"""An engine behind a thread of its own, so that several threads can use it at once."""

import queue
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve.engines.engine import Job, TakesPauses, TimesPyTorch
from evolve.errors import UserError
from evolve.evaluation.requests import TimingRequest, TimingResult

T = TypeVar("T")
Answer = Callable[[Evaluation | BaseException], None]


@dataclass(frozen=True, eq=False)
class _Order:
    """A job, and what is told its evaluation, or the error that ended it."""

    job: Job
    answer: Answer


class SharedEngine:
    """The engine as all threads see it. Each `evaluate` takes up to `depth` jobs before it waits for an evaluation.

    Other work, such as a profile, waits until the jobs under way are done, and later jobs wait for it.
    """

    def __init__(self, engine: TakesPauses, depth: int) -> None:
        self._engine, self._depth = engine, depth
        self._changed = threading.Condition()
        self._waiting, self._sides = deque[_Order](), deque[Callable[[], None]]()
        self._under_way = defaultdict[str, deque[_Order]](deque)  # by the kernel's id
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> DeviceInfo:
        return self._aside(lambda: self._engine.info)

    @property
    def unprofiled(self) -> str:
        return self._engine.unprofiled

    def submit(self, job: Job, answer: Answer) -> None:
        """Evaluate a job; `answer` is called in the engine's thread."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine was closed")
            self._waiting.append(_Order(job, answer))
            self._changed.notify_all()

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        incoming, arrived, pending = iter(jobs), queue.SimpleQueue[Evaluation | BaseException](), 0
        while True:
            while pending < self._depth and (job := next(incoming, None)):
                self.submit(job, arrived.put)
                pending += 1
            if not pending:
                return
            found = arrived.get()
            pending -= 1
            if isinstance(found, BaseException):
                raise found
            yield found

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        return self._aside(lambda: self._engine.profile(kernel, op, workload))

    def time_pytorch(self, request: TimingRequest) -> TimingResult:
        engine = self._engine
        if not isinstance(engine, TimesPyTorch):
            raise UserError("this engine does not time PyTorch", "use the local engine")
        return self._aside(lambda: engine.time_pytorch(request))

    def close(self) -> None:
        """Close the engine. Jobs that still wait get a RuntimeError as their answer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._engine.close()
        self._thread.join(timeout=1.0)  # it may be waiting for an engine that was closed: then it ends by itself

    def _aside(self, what: Callable[[], T]) -> T:
        """Call a function in the engine's thread when no evaluation is under way, and return what it returns."""
        done = queue.SimpleQueue[tuple[T | None, BaseException | None]]()

        def side() -> None:
            try:
                done.put((what(), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
                done.put((None, error))

        with self._changed:
            if self._closed:
                raise RuntimeError("the engine was closed")
            self._sides.append(side)
            self._changed.notify_all()
        value, error = done.get()
        if error:
            raise error
        return value  # type: ignore[return-value]

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting or self._sides)
                if self._closed:
                    break
                side = self._sides.popleft() if self._sides else None
            if side:
                side()
            else:
                self._evaluate()
        self._fail(RuntimeError("the engine was closed"))

    def _evaluate(self) -> None:
        """Evaluate until no job waits or is under way, or until a side request waits."""
        try:
            for evaluation in self._engine.evaluate(self._jobs()):
                with self._changed:
                    orders = self._under_way[evaluation.kernel_id]
                    order = orders.popleft()
                    if not orders:
                        del self._under_way[evaluation.kernel_id]
                order.answer(evaluation)
        except BaseException as error:  # noqa: BLE001 - raised again in the threads that wait for evaluations
            self._fail(error)

    def _jobs(self) -> Iterator[Job | None]:
        while True:
            with self._changed:
                if self._closed or self._sides:
                    return
                order = self._waiting.popleft() if self._waiting else None
                if order:
                    self._under_way[order.job.kernel.id].append(order)
                elif not self._under_way:
                    return
            yield order.job if order else None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            orders = [order for under_way in self._under_way.values() for order in under_way]
            if self._closed:
                orders += self._waiting
                self._waiting.clear()
            self._under_way.clear()
        for order in orders:
            order.answer(error)

"""Several questions at once, and their answers as they come."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def answers(
    questions: Sequence[Question], answer: Callable[[Question], Answer], concurrency: int
) -> Generator[Answer, None, None]:
    """Each answer as soon as it is there; an exception of `answer` is raised here.

    Leaving early asks nothing more and waits for nobody: the threads are daemons, because those of a
    ThreadPoolExecutor would keep the interpreter alive until a stalled server lets go.
    """
    waiting: SimpleQueue[Question] = SimpleQueue()
    done: SimpleQueue[Future[Answer]] = SimpleQueue()
    stopped = Event()
    for question in questions:
        waiting.put(question)

    def work() -> None:
        while not stopped.is_set():
            try:
                question = waiting.get_nowait()
            except Empty:
                return
            done.put(_settled(question, answer))

    for _ in range(min(max(concurrency, 1), len(questions))):
        Thread(target=work, daemon=True, name="question").start()
    try:
        for _ in questions:
            yield done.get().result()
    finally:
        stopped.set()


def _settled(question: Question, answer: Callable[[Question], Answer]) -> Future[Answer]:
    future: Future[Answer] = Future()
    try:
        future.set_result(answer(question))
    except BaseException as error:  # noqa: BLE001 - it is raised again by whoever reads the result
        future.set_exception(error)
    return future

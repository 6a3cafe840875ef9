"""Several questions at once, and their answers as they come."""

from collections.abc import Callable, Generator, MutableSequence, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import TypeVar

from evolve.proposers.llm.limits import Pause

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class LeftError(Exception):
    """Nobody waits for the answer any more."""


def answers(
    waiting: MutableSequence[Question],
    answer: Callable[[Question, Pause], Answer],
    may_start: Callable[[Question, Sequence[Question]], bool],
) -> Generator[tuple[Question, Answer], None, None]:
    """Each answer as soon as it is there. `waiting` may grow meanwhile; what may not start in the end stays in it.

    `may_start` is told what is in flight. Where `answer` raises, the others in flight are still waited for.
    Leaving early asks nothing more and waits for nobody: the threads are daemons, because those of a
    ThreadPoolExecutor would keep the interpreter alive until a stalled server lets go.
    """
    done: SimpleQueue[tuple[Question, Future[Answer]]] = SimpleQueue()
    left = Event()
    running: list[Question] = []
    error: BaseException | None = None

    def pause(seconds: float) -> None:
        if left.wait(seconds):
            raise LeftError

    def settle(question: Question) -> None:
        done.put((question, _settled(question, lambda asked: answer(asked, pause))))

    try:
        while True:
            for question in () if error else started(waiting, running, may_start):
                Thread(target=settle, args=(question,), daemon=True, name="question").start()
            if not running:
                break
            question, future = done.get()
            running.remove(question)
            if raised := future.exception():
                error = error or raised
            else:
                yield question, future.result()
    finally:
        left.set()
    if error:
        raise error


def started(
    waiting: MutableSequence[Question],
    running: MutableSequence[Question],
    may_start: Callable[[Question, Sequence[Question]], bool],
) -> list[Question]:
    """Those that may start now, which are moved from `waiting` to `running`."""
    found = []
    for question in tuple(waiting):
        if may_start(question, running):
            waiting.remove(question)
            running.append(question)
            found.append(question)
    return found


def _settled(question: Question, answer: Callable[[Question], Answer]) -> Future[Answer]:
    future: Future[Answer] = Future()
    try:
        future.set_result(answer(question))
    except BaseException as error:  # noqa: BLE001 - it is raised again where the answers are read
        future.set_exception(error)
    return future

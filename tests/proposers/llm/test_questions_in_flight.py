"""Prompts in flight: several at a time, each answer yielded as soon as it arrives."""

import threading
import time
from collections.abc import Sequence

import pytest

from evolve.proposers.llm.chat import CancelledError, Pause, ask_concurrently


def always(question: int, running: Sequence[int]) -> bool:
    return True


def doubled(question: int, pause: Pause) -> int:
    return 2 * question


def test_every_prompt_is_answered_once() -> None:
    assert sorted(ask_concurrently(list(range(20)), doubled, always)) == [(n, 2 * n) for n in range(20)]


def test_without_prompts_there_are_no_answers() -> None:
    assert list(ask_concurrently([], doubled, always)) == []


def test_only_prompts_that_may_start_are_in_flight() -> None:
    flying, most = 0, 0
    lock = threading.Lock()

    def slow(question: int, pause: Pause) -> int:
        nonlocal flying, most
        with lock:
            flying += 1
            most = max(most, flying)
        time.sleep(0.01)
        with lock:
            flying -= 1
        return question

    found = list(ask_concurrently(list(range(12)), slow, lambda _, running: len(running) < 3))
    assert (len(found), most) == (12, 3)


def test_prompts_one_at_a_time_are_answered_in_order() -> None:
    found = ask_concurrently(list(range(9)), doubled, lambda _, running: not running)
    assert [question for question, _ in found] == list(range(9))


def test_a_prompt_added_after_an_answer_is_sent_too() -> None:
    waiting = [1]
    found = []
    for question, answer in ask_concurrently(waiting, doubled, always):
        found.append(answer)
        if question < 8:
            waiting.append(answer)
    assert found == [2, 4, 8, 16]


def test_prompts_that_may_never_start_stay_in_the_waiting_list() -> None:
    waiting = [1, 2, 3]
    assert [q for q, _ in ask_concurrently(waiting, doubled, lambda question, _: question != 2)] in ([1, 3], [3, 1])
    assert waiting == [2]


def test_when_one_raises_the_answers_of_the_others_in_flight_are_still_yielded() -> None:
    gate = threading.Event()

    def answer(question: int, pause: Pause) -> int:
        if question == 0:
            gate.set()
            raise ValueError("the first")
        gate.wait(5)
        time.sleep(0.05)
        return question

    found = list[tuple[int, int]]()

    def collect() -> None:
        for pair in ask_concurrently([0, 1, 2, 3, 4], answer, lambda _, running: len(running) < 3):
            found.append(pair)

    with pytest.raises(ValueError, match="the first"):
        collect()
    assert sorted(found) == [(1, 1), (2, 2)]


def test_closing_early_neither_waits_for_answers_nor_sends_more_prompts() -> None:
    asked, gone = [], threading.Event()

    def answer(question: int, pause: Pause) -> int:
        asked.append(question)
        if question:
            try:
                pause(60)
            except CancelledError:
                gone.set()
                raise
        return question

    started = time.monotonic()
    found = ask_concurrently(list(range(50)), answer, lambda _, running: len(running) < 3)
    assert next(found) == (0, 0)
    found.close()
    assert gone.wait(5)
    assert time.monotonic() - started < 5
    assert len(asked) <= 4

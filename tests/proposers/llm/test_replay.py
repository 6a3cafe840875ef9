"""Replay: the recorded answer that a call gets."""

import pytest
from each import each
from small_op import KERNEL

from archive.kernel import Proposal
from archive.runs import Cost, Question
from evolve.errors import UserError
from evolve.prompting.operators import ANSWERS, EDITS, FENCED, WHOLE
from evolve.prompting.text import Message
from evolve.proposers.llm.chat import UNUSABLE, Answer, Call
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.questions import Prompt
from evolve.proposers.llm.replay import Exchange, Recorded, models


def exchange(words: str, reply: str, operator: str = "draft", model: str = "m-1", failure: str = "prose") -> Exchange:
    question = Question(model, "http://h/v1", '{"temperature": 0.5, "max_tokens": 9}', (("user", words),))
    proposal = Proposal("center_rows", operator, model, None, reply=reply, failure=failure, cost=Cost(3, 4, usd=0.5))
    return Exchange(question, proposal)


def no_pause(seconds: float) -> None:
    pass


def ask(chat: Recorded, words: str, operator: str = "draft", model: str = "m-1") -> Answer:
    return chat.ask(Call(Model(model), operator, (Message("user", words),)), no_pause)


def test_a_call_gets_the_answer_to_the_same_messages_or_the_next_of_its_kind() -> None:
    chat = Recorded("r", [exchange("a", "1"), exchange("b", "2"), exchange("c", "3")])
    assert [ask(chat, words).text for words in ("b", "x", "y")] == ["2", "1", "3"]


def test_equal_calls_get_their_answers_in_order() -> None:
    chat = Recorded("r", [exchange("a", "1"), exchange("b", "2"), exchange("a", "3")])
    assert [ask(chat, words).text for words in ("a", "a", "b")] == ["1", "3", "2"]


def test_an_answer_is_given_only_to_its_own_model_and_operator() -> None:
    chat = Recorded("r", [exchange("a", "1", "improve"), exchange("a", "2", model="m-2")])
    with pytest.raises(UserError, match=r"run r .* one more question .* `draft` for m-1, and 2 recorded answers "):
        ask(chat, "a")
    assert (ask(chat, "a", "improve").text, ask(chat, "a", model="m-2").text) == ("1", "2")


def test_answers_come_in_the_recorded_order() -> None:
    chat = Recorded("r", [exchange("c", "3"), exchange("a", "1"), exchange("b", "2")])
    waiting = [Prompt(Model("m-1"), "draft", (), (Message("user", words),), words) for words in ("a", "b", "c")]
    found = chat.in_recorded_order(waiting, lambda one, pause: chat.ask(one.call, pause), lambda *_: True)
    assert [(one.nonce, answer.text) for one, answer in found] == [("c", "3"), ("a", "1"), ("b", "2")]


def test_no_answer_is_given_twice() -> None:
    chat = Recorded("r", [exchange("a", "1")])
    ask(chat, "a")
    with pytest.raises(UserError):
        ask(chat, "a")


def test_prompts_that_remain_when_all_answers_are_used_are_dropped() -> None:
    chat = Recorded("r", [exchange("a", "1")])
    waiting = [Prompt(Model("m-1"), "draft", (), (Message("user", words),), words) for words in ("a", "b")]
    found = chat.in_recorded_order(waiting, lambda one, pause: chat.ask(one.call, pause), lambda *_: True)
    assert [one.nonce for one, _ in found] == ["a"]


def test_an_answer_has_its_recorded_cost() -> None:
    assert ask(Recorded("r", [exchange("a", "1")]), "a").cost == Cost(3, 4, usd=0.5)


@each(
    {
        "prose": ("Use warps.", "the reply contains no kernel: no code that begins with /*---", ""),
        "no reply": ("", "the request failed with status 500: no", "the request failed with status 500: no"),
        "cut off": ("/*--- half", "the reply was cut off at the limit", "the reply was cut off at the limit"),
    }
)
def test_failures_to_read_a_reply_are_dropped_and_failed_requests_are_kept(
    reply: str, failure: str, repeated: str
) -> None:
    assert ask(Recorded("r", [exchange("a", reply, failure=failure)]), "a").failure == repeated


def test_a_model_that_was_unusable_is_unusable_again() -> None:
    found = ask(Recorded("r", [exchange("a", "", failure=f"{UNUSABLE}it refused the key")]), "a")
    assert str(found.unusable) == "it refused the key"


@each({form: form for form in [FENCED, WHOLE, EDITS]})
def test_the_settings_of_the_models_are_restored_from_their_requests(form: str) -> None:
    found = models([exchange(f"Write.\n{ANSWERS[form]}", "1"), exchange("again", "2"), exchange("a", "3", model="m-2")])
    assert found == (
        Model("m-1", "http://h/v1", form=form, temperature=0.5, max_tokens=9),
        Model("m-2", "http://h/v1", temperature=0.5, max_tokens=9),
    )


def test_a_recorded_kernel_is_never_a_failure() -> None:
    good = Exchange(exchange("a", "").question, Proposal("center_rows", "draft", "m-1", KERNEL, reply="words"))
    assert ask(Recorded("r", [good]), "a") == Answer("words", "", Cost(), '{"temperature": 0.5, "max_tokens": 9}')

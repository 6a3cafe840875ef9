"""Designs: for an op without kernels a model first names different ideas, and each is then written as a kernel."""

from dataclasses import replace

import pytest
from asked_models import proposer
from each import each
from scripted_endpoint import ScriptedEndpoint, answer, in_fence, status
from small_op import KERNEL_TEXT, OP, request

from archive.kernel import parse
from evolve.prompting.operators import DESIGNS, DRAFT
from evolve.prompting.text import MAX_TOKENS, estimated_tokens
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.questions import designs_in, designs_wanted, opening
from evolve.request import Left, Request

ONE, TWO = "one warp per row, the row in registers", "a cluster per row, sums by distributed shared memory"
NAMED = f"1. {ONE}\n2. {TWO}\n"
MODELS = (Model("m-1"), Model("m-2"))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def untried(wanted: int = 4, evals: int | None = None) -> Request:
    return replace(request(wanted), untried=True, left=Left(evals=evals))


def written(number: int) -> str:
    return in_fence(KERNEL_TEXT.replace("one warp per row", f"kernel {number}"))


def test_designs_are_requested_once_and_each_is_written_more_than_once() -> None:
    drafts = [answer(written(number)) for number in range(4)]
    with ScriptedEndpoint([answer(NAMED), *drafts]) as endpoint:
        found = list(proposer(endpoint).propose(untried()))
    first, *others = [recorded.body["messages"] for recorded in endpoint.requests]
    assert "name 2 clearly different designs" in first[-1]["content"]
    assert "```cuda" not in first[-1]["content"].partition("# Your task")[2]
    asked = [messages[-1]["content"].partition("\n")[0] for messages in others]
    assert sorted(asked) == sorted([f"Write a kernel by design 1: {ONE}", f"Write a kernel by design 2: {TWO}"] * 2)
    assert all(messages[: len(first)] == first for messages in others)
    assert [one.operator for one in found] == [DESIGNS, *[DRAFT] * 4]
    assert len({one.kernel_id for one in found if one.kernel}) == 4


def test_the_answer_about_designs_is_kept_with_its_cost_and_is_not_a_failure() -> None:
    with ScriptedEndpoint([answer(NAMED)], otherwise=answer(written(1))) as endpoint:
        first = next(iter(proposer(endpoint).propose(untried())))
    assert (first.kernel, first.failure, first.reply) == (None, "", NAMED)
    assert first.cost.prompt_tokens == 100
    assert first.question


def test_an_answer_that_names_no_designs_is_followed_by_plain_drafts() -> None:
    with ScriptedEndpoint([answer("I cannot say.")], otherwise=answer(written(1))) as endpoint:
        found = list(proposer(endpoint).propose(untried()))
    assert [one.operator for one in found] == [DESIGNS, *[DRAFT] * 4]
    assert all("by design" not in recorded.prompt for recorded in endpoint.requests)


def test_a_question_about_designs_that_fails_is_followed_by_plain_drafts() -> None:
    with ScriptedEndpoint([status(500)], otherwise=answer(written(1))) as endpoint:
        first, *others = proposer(endpoint).propose(untried())
    assert first.failure
    assert [one.kernel for one in others] == [parse(KERNEL_TEXT.replace("one warp per row", "kernel 1"))] * 4


def test_a_draft_that_cannot_be_read_is_requested_again_with_its_design() -> None:
    with ScriptedEndpoint([answer(NAMED), answer("Hm.")], otherwise=answer(written(1))) as endpoint:
        list(proposer(endpoint).propose(untried(2)))
    again = [r.body["messages"] for r in endpoint.requests if "No kernel could be read" in r.prompt]
    assert len(again) == 1
    assert "by design" in again[0][-3]["content"]


def test_kernels_of_an_op_with_kernels_are_requested_at_once() -> None:
    assert [prompt.operator for prompt in opening(request(3), MODELS, "")] == [DRAFT] * 3


@each({str(case): case for case in [(8, None, 4), (20, None, 5), (2, None, 2), (1, None, 0), (8, 2, 0), (8, 5, 2)]})
def test_enough_designs_are_requested_to_write_each_twice(wanted: int, evals: int | None, expected: int) -> None:
    assert designs_wanted(untried(wanted, evals)) == expected


@each(
    {
        "numbered": "Some words.\n1. first\n2) **second**\n",
        "items": "- first\n* second",
        "repeated": "1. first\n2. second\n3. First",
        "thoughts": "<think>\n1. bad\n</think>\n1. first\n2. second",
    }
)
def test_designs_are_read_from_numbered_lines_or_items(reply: str) -> None:
    assert [design.casefold() for design in designs_in(reply)] == ["first", "second"]


def test_a_question_about_designs_stays_within_the_limit_of_its_model() -> None:
    crowded = replace(untried(), op=replace(OP, note="x" * 50_000, gpu=OP.gpu * 400))
    (prompt,) = opening(crowded, (Model("m-1"),), "y" * 90_000)
    assert estimated_tokens(prompt.messages) <= MAX_TOKENS

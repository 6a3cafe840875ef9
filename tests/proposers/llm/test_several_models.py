"""Several models at once and the limits of their spending, over real HTTP with servers whose faults are scripted."""

import itertools
import time
from dataclasses import replace
from typing import Any

import pytest
from asked_models import only, proposals, proposer
from scripted_endpoint import (
    KEY,
    MODEL,
    ScriptedEndpoint,
    Step,
    answer,
    drip,
    hang_up,
    in_fence,
    stall,
    status,
)
from small_op import BROKEN_TEXT, KERNEL, KERNEL_TEXT, SLOW_TEXT, failed, passed, request

from archive.kernel import Proposal, parse
from evolve.errors import UserError
from evolve.proposers.llm.endpoint import Endpoints
from evolve.proposers.llm.models import CONCURRENCY, Model
from evolve.proposers.llm.proposer import MOST_ALIKE, MOST_UNFINISHED, MOST_WITHOUT_KERNEL, LlmProposer
from evolve.request import Left

GOOD = answer(in_fence(KERNEL_TEXT))
BROKEN = failed(parse(BROKEN_TEXT))
OTHER = "scripted-2"
NO_SERVER = "http://127.0.0.1:9/v1"  # the discard port, which has no listener


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def two(first: str, second: str, **of_second: Any) -> LlmProposer:
    """Return a proposer with a model at each of these addresses."""
    models = Model(MODEL, first, "THE_KEY"), Model(OTHER, second, "THE_KEY", **of_second)
    return LlmProposer(models, Endpoints({"THE_KEY": KEY}, 0))


@pytest.mark.parametrize("fault", [status(401), status(403), status(404)], ids=["401", "403", "404"])
def test_an_unusable_model_does_not_stop_the_others(fault: Step) -> None:
    with ScriptedEndpoint(otherwise=GOOD) as good, ScriptedEndpoint(otherwise=fault) as bad:
        found = list(two(good.base_url, bad.base_url).propose(request(16)))
    notes = [proposal.failure for proposal in found if proposal.proposer == OTHER]
    assert len(notes) == 1
    assert notes[0].startswith("not asked any more for now: ")
    assert {proposal.kernel for proposal in found if proposal.proposer == MODEL} == {KERNEL}


def test_an_address_without_a_server_costs_one_failed_proposal_and_the_other_model_goes_on() -> None:
    with ScriptedEndpoint(otherwise=GOOD) as good:
        found = list(two(good.base_url, NO_SERVER).propose(request(16)))
    assert ["no server answers at" in p.failure for p in found if p.proposer == OTHER] == [True]


def test_a_user_error_is_raised_when_every_model_is_unusable() -> None:
    with ScriptedEndpoint(otherwise=status(401)) as bad, pytest.raises(UserError):
        list(two(bad.base_url, NO_SERVER).propose(request(16)))


def test_replies_are_yielded_before_the_error_that_every_model_is_unusable() -> None:
    found: list[Proposal] = []

    def collect(proposer: LlmProposer) -> None:
        for proposal in proposer.propose(request(8)):
            found.append(proposal)  # noqa: PERF402 - what came before the error counts

    with ScriptedEndpoint([GOOD, GOOD], otherwise=status(401)) as endpoint:
        # One request at a time, because a good answer after a refusal would make the model usable again.
        model = Model(MODEL, endpoint.base_url, "THE_KEY", concurrency=1)
        with pytest.raises(UserError):
            collect(LlmProposer((model,), Endpoints({"THE_KEY": KEY}, 0)))
    assert [proposal.kernel for proposal in found] == [KERNEL, KERNEL]


def test_a_model_that_answers_again_is_usable_again() -> None:
    with ScriptedEndpoint([status(401)], otherwise=GOOD) as endpoint:
        asked = proposer(endpoint)
        with pytest.raises(UserError):
            list(asked.propose(request(1)))
        assert only(list(asked.propose(request(1)))).kernel == KERNEL


def test_the_concurrency_limit_of_an_address_is_respected() -> None:
    with ScriptedEndpoint(otherwise=stall()) as endpoint:
        model = Model(MODEL, endpoint.base_url, "THE_KEY", concurrency=2, timeout_seconds=0.3)
        found = LlmProposer((model,), Endpoints({"THE_KEY": KEY}, 0)).propose(request(8))
        next(found)
        found.close()  # type: ignore[attr-defined]
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize("left", [Left(tokens=0), Left(usd=0.0)])
def test_without_budget_no_request_is_sent(left: Left) -> None:
    with ScriptedEndpoint(otherwise=GOOD) as endpoint:
        assert list(proposer(endpoint).propose(replace(request(4), left=left))) == []
    assert endpoint.requests == []


def test_there_is_no_second_prompt_beyond_the_budget() -> None:
    with ScriptedEndpoint([answer("Use warps.")], otherwise=GOOD) as endpoint:
        found = list(proposer(endpoint).propose(replace(request(4), left=Left(tokens=9_000))))
    assert [proposal.reply for proposal in found] == ["Use warps."]


@pytest.mark.parametrize(
    "failure", [status(500, "out of order"), status(400, "no"), hang_up()], ids=["500", "400", "hang up"]
)
def test_requests_that_all_fail_for_one_reason_end_the_run_with_the_message_of_the_server(failure: Step) -> None:
    said: list[Proposal] = []
    with ScriptedEndpoint(otherwise=failure) as endpoint:
        asked = proposer(endpoint)
        rounds = (asked.propose(replace(request(4), left=Left(tokens=10**6))) for _ in range(9))
        with pytest.raises(UserError) as stopped:
            said.extend(itertools.chain.from_iterable(rounds))
    assert len(endpoint.requests) == MOST_ALIKE
    assert f"answered none of the last {MOST_ALIKE} questions: {said[-1].failure}" in str(stopped.value)


def test_failures_that_differ_only_in_numbers_and_ids_of_the_message_count_as_equal() -> None:
    words = "maximum context length is 8192 tokens, you requested {0} (request req_{0}x)"
    failing = [status(400, words.format(number)) for number in range(20)]
    with ScriptedEndpoint(failing) as endpoint, pytest.raises(UserError, match="maximum context length") as stopped:
        list(proposer(endpoint).propose(request(20)))
    assert MOST_ALIKE <= len(endpoint.requests) < MOST_ALIKE + CONCURRENCY
    assert "prompt_tokens = " in stopped.value.hint


def test_requests_that_fail_do_not_use_up_the_evaluations_that_are_left() -> None:
    steps = [status(400, "one"), status(400, "two"), GOOD]
    with ScriptedEndpoint(steps) as endpoint:
        found = list(proposer(endpoint).propose(replace(request(3), left=Left(evals=1))))
    assert [proposal.answered for proposal in found] == [False, False, True]


def test_replies_without_a_kernel_do_not_use_up_the_evaluations_that_are_left() -> None:
    with ScriptedEndpoint([answer("Use warps."), answer("No."), GOOD]) as endpoint:
        found = list(proposer(endpoint).propose(replace(request(3), left=Left(evals=1))))
    assert [bool(proposal.kernel) for proposal in found] == [False, False, True]


def test_a_model_that_answers_only_in_prose_ends_the_run_with_the_reason() -> None:
    said: list[Proposal] = []
    with ScriptedEndpoint(otherwise=answer("Use warps.")) as endpoint:
        asked = proposer(endpoint)
        rounds = (asked.propose(replace(request(4), left=Left(evals=5))) for _ in range(MOST_WITHOUT_KERNEL))
        with pytest.raises(
            UserError, match=f"no kernel in answer to the last {MOST_WITHOUT_KERNEL} questions; "
        ) as stopped:
            said.extend(itertools.chain.from_iterable(rounds))
    assert len(endpoint.requests) == MOST_WITHOUT_KERNEL
    assert said[-1].failure in str(stopped.value)


CUT_OFF = answer("/*--- half a kernel", finish_reason="length")


def test_consecutive_truncated_replies_end_the_run_early_with_a_hint() -> None:
    with ScriptedEndpoint(otherwise=CUT_OFF) as endpoint:
        asked = proposer(endpoint)
        with pytest.raises(UserError, match=r"finished none of its last [4-7] replies.*cut off") as stopped:
            list(asked.propose(replace(request(20), left=Left(evals=20))))
    assert MOST_UNFINISHED <= len(endpoint.requests) < MOST_UNFINISHED + CONCURRENCY
    assert "max_tokens" in stopped.value.hint


def test_occasional_truncated_replies_do_not_end_the_run() -> None:
    steps = [*[CUT_OFF] * (MOST_UNFINISHED - 1), GOOD] * 3
    with ScriptedEndpoint(steps) as endpoint:
        found = list(proposer(endpoint).propose(replace(request(len(steps)), left=Left(tokens=10**6))))
    assert sum(bool(proposal.kernel) for proposal in found) == 3


def test_other_failures_between_truncated_replies_do_not_end_a_run_early() -> None:
    steps = [*[CUT_OFF, answer("Use warps."), status(400, "no")] * 4, GOOD]
    with ScriptedEndpoint(steps) as endpoint:
        found = list(proposer(endpoint).propose(replace(request(len(steps)), left=Left(tokens=10**6))))
    assert any(proposal.kernel for proposal in found)


def test_no_request_is_sent_after_the_deadline() -> None:
    with ScriptedEndpoint(otherwise=GOOD) as endpoint:
        assert list(proposer(endpoint).propose(replace(request(2), left=Left(deadline=time.monotonic())))) == []
    assert endpoint.requests == []


def test_no_wait_for_retry_after_extends_beyond_the_deadline() -> None:
    with ScriptedEndpoint(otherwise=status(429, retry_after="300")) as endpoint:
        began = time.monotonic()
        found = list(proposer(endpoint, 4).propose(replace(request(6), left=Left(deadline=began + 0.5))))
    assert time.monotonic() - began < 30
    assert {proposal.failure for proposal in found} == {"the deadline passed before an answer arrived"}
    assert len(endpoint.requests) <= 4


@pytest.mark.parametrize("silence", [stall(), drip(0.1)], ids=["silent", "drip"])
def test_requests_in_flight_are_cancelled_when_the_deadline_passes(silence: Step) -> None:
    with ScriptedEndpoint(otherwise=silence) as endpoint:
        began = time.monotonic()
        found = list(
            proposer(endpoint, 4, timeout_seconds=600).propose(replace(request(3), left=Left(deadline=began + 0.5)))
        )
        assert time.monotonic() - began < 30
        assert endpoint.hung_up.wait(10)
    assert [proposal.failure for proposal in found] == ["the deadline passed before an answer arrived"] * 3


def test_a_server_that_sends_a_little_from_time_to_time_has_no_more_time_than_a_silent_one() -> None:
    assert only(proposals(drip(0.1), timeout_seconds=1.0)).failure == "the model did not answer in time"


def test_a_model_that_never_answers_ends_the_run() -> None:
    def ask_on(asked: LlmProposer) -> None:
        for _ in range(MOST_WITHOUT_KERNEL):
            list(asked.propose(replace(request(4), left=Left(tokens=10**6))))

    letters = itertools.cycle("abcdefgh")
    # different failures, which end a run later than equal ones
    failures = [status(400, next(letters)) for _ in range(60)]
    with ScriptedEndpoint([*failures[:20], GOOD, *failures[20:]]) as endpoint:
        with pytest.raises(UserError, match="answered none of the last"):
            ask_on(proposer(endpoint))
        assert 20 + MOST_WITHOUT_KERNEL < len(endpoint.requests) <= 20 + MOST_WITHOUT_KERNEL + 8


def test_a_limit_in_usd_is_refused_after_a_reply_without_a_price() -> None:
    found: list[Proposal] = []

    def collect(endpoint: ScriptedEndpoint) -> None:
        for proposal in proposer(endpoint).propose(replace(request(1), left=Left(usd=1.0))):
            found.append(proposal)  # noqa: PERF402 - what came before the error counts

    with ScriptedEndpoint([GOOD]) as endpoint, pytest.raises(UserError, match="does not report what it costs"):
        collect(endpoint)
    assert only(found).kernel == KERNEL


def test_a_proposal_keeps_its_question_without_the_key() -> None:
    with ScriptedEndpoint([GOOD]) as endpoint:
        question = only(list(proposer(endpoint).propose(request(1)))).question
    assert question
    sent = [(message["role"], message["content"]) for message in endpoint.requests[0].body["messages"]]
    assert (question.model, question.endpoint, list(question.messages)) == (MODEL, endpoint.base_url, sent)
    assert KEY not in repr(question.messages) + question.parameters


def test_equal_answers_to_two_calls_are_two_proposals() -> None:
    first, second = proposals(GOOD, GOOD, wanted=2)
    assert (first.kernel, first.id == second.id) == (second.kernel, False)


def test_a_model_may_answer_with_edits_of_the_parent() -> None:
    edit = '<<<<<<< SEARCH\nnote = "one thread per row"\n=======\nnote = "wider"\n>>>>>>> REPLACE'
    with ScriptedEndpoint(otherwise=answer(f"```edit\n{edit}\n```")) as endpoint:
        found = list(proposer(endpoint).propose(request(16, parents=(passed(parse(SLOW_TEXT)),))))
    improved = {proposal.kernel for proposal in found if proposal.operator == "improve"}
    assert improved == {parse(SLOW_TEXT.replace("one thread per row", "wider"))}

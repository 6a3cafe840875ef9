"""The language model's proposer against a real HTTP server that misbehaves on purpose."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from scripted_endpoint import (
    KEY,
    MODEL,
    Rule,
    ScriptedEndpoint,
    Step,
    answer,
    completion_body,
    hang_up,
    in_fence,
    raw,
    stall,
    status,
    truncated,
)
from small_op import BROKEN_TEXT, COMPILE_ERROR, KERNEL, KERNEL_TEXT, SLOW_TEXT, failed, passed, request

from archive.kernel import parse
from archive.proposals import Proposal
from evolve.errors import UserError
from evolve.proposers.endpoint import Endpoints
from evolve.proposers.llm import SILENT, LlmProposer
from evolve.proposers.models import Model
from evolve.proposers.proposer import Left

GOOD = answer(in_fence(KERNEL_TEXT))
BROKEN = failed(parse(BROKEN_TEXT))
NOBODY = "http://127.0.0.1:9/v1"  # the discard port, where nobody listens


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def at(base_url: str, retries: int = 0, timeout_seconds: float = 10.0) -> LlmProposer:
    model = Model(MODEL, base_url, "THE_KEY", timeout_seconds=timeout_seconds)
    return LlmProposer((model,), Endpoints({"THE_KEY": KEY}, retries))


def proposer(endpoint: ScriptedEndpoint, retries: int = 0, timeout_seconds: float = 10.0) -> LlmProposer:
    return at(endpoint.base_url, retries, timeout_seconds)


def proposals(*steps: Step, wanted: int = 1, retries: int = 0, timeout_seconds: float = 10.0) -> list[Proposal]:
    with ScriptedEndpoint(steps) as endpoint:
        return list(proposer(endpoint, retries, timeout_seconds).propose(request(wanted)))


def only(proposals: Sequence[Proposal]) -> Proposal:
    (proposal,) = proposals
    return proposal


def test_a_reply_becomes_a_proposal_signed_by_the_model() -> None:
    proposal = only(proposals(GOOD))
    assert (proposal.kernel, proposal.proposer, proposal.operator, proposal.run) == (KERNEL, MODEL, "draft", "run-1")


def test_a_proposal_knows_its_tokens() -> None:
    cost = only(proposals(GOOD)).cost
    assert (cost.prompt_tokens, cost.completion_tokens) == (100, 10)


def test_the_model_gets_the_key_and_the_messages() -> None:
    with ScriptedEndpoint([GOOD]) as endpoint:
        list(proposer(endpoint).propose(request(1)))
    (recorded,) = endpoint.requests
    assert recorded.authorization == f"Bearer {KEY}"
    assert recorded.body["messages"][0]["role"] == "system"
    assert "# The op: center_rows" in recorded.prompt


def test_nothing_but_the_model_and_the_messages_is_sent() -> None:
    with ScriptedEndpoint([GOOD]) as endpoint:
        list(proposer(endpoint).propose(request(1)))
    assert set(endpoint.requests[0].body) == {"model", "messages"}


def test_the_reference_is_shown_as_it_stands_in_its_file() -> None:
    with ScriptedEndpoint([GOOD]) as endpoint:
        list(proposer(endpoint).propose(request(1)))
    assert "return x - x.mean(-1, keepdim=True) + shift" in endpoint.requests[0].prompt


@pytest.mark.parametrize("wanted", [0, 1, 7])
def test_each_wanted_proposal_takes_one_request(wanted: int) -> None:
    with ScriptedEndpoint(otherwise=GOOD) as endpoint:
        assert len(list(proposer(endpoint).propose(request(wanted)))) == wanted
    assert len(endpoint.requests) == wanted


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (status(429, "slow down"), "status 429"),
        (status(500, "out of order"), "status 500"),
        (status(400, "the context is too long"), "the context is too long"),
        (truncated(in_fence(KERNEL_TEXT)), "the connection failed"),
        (hang_up(), "the connection failed"),
        (raw("<html>bad gateway</html>"), "no JSON"),
        (raw('{"choices": [{"mess'), "no JSON"),
        (raw("[" * 100_000), "no JSON"),
        (raw("null"), "no JSON object"),
        (raw('{"choices": []}'), "no choices"),
        (raw('{"choices": [{"message": {"content": null}}]}'), "empty"),
        (answer("", finish_reason="content_filter"), "content filter"),
        (answer(in_fence(KERNEL_TEXT)[:300], finish_reason="length"), "cut off"),
    ],
    ids=[
        "429", "500", "400", "truncated", "hang up", "html", "half JSON", "deep JSON", "null", "no choices", "empty",
        "filtered", "length",
    ],
)  # fmt: skip
def test_a_fault_becomes_a_failed_proposal_that_says_why(fault: Step, reason: str) -> None:
    proposal = only(proposals(fault))
    assert proposal.kernel is None
    assert reason in proposal.failure


def test_a_stall_becomes_a_failed_proposal() -> None:
    assert only(proposals(stall(), timeout_seconds=0.3)).failure == "the model did not answer in time"


@pytest.mark.parametrize(
    "fault", [status(429), status(500), hang_up(), truncated(KERNEL_TEXT)], ids=["429", "500", "hang up", "truncated"]
)
def test_a_passing_fault_is_retried(fault: Step) -> None:
    assert only(proposals(fault, GOOD, retries=1)).kernel == KERNEL


def test_a_stall_is_retried() -> None:
    assert only(proposals(stall(), GOOD, retries=1, timeout_seconds=0.5)).kernel == KERNEL


def test_one_fault_among_many_requests_costs_one_proposal() -> None:
    kernels = [proposal.kernel for proposal in proposals(GOOD, status(500), GOOD, GOOD, wanted=4)]
    assert sorted(kernel is None for kernel in kernels) == [False, False, False, True]


def test_a_cut_reply_keeps_what_was_said() -> None:
    assert only(proposals(answer("/*--- half", finish_reason="length"))).reply == "/*--- half"


def test_a_failure_never_repeats_the_key() -> None:
    proposal = only(proposals(status(400, f"the key {KEY} has no quota")))
    assert "the key *** has no quota" in proposal.failure


def test_the_key_is_not_in_the_printed_proposer() -> None:
    assert KEY not in repr(at(NOBODY))


def test_prose_is_asked_for_its_kernel_once_more_and_kept_as_a_failure() -> None:
    prose, kernel = proposals(answer("Use warps."), GOOD)
    assert (prose.kernel, prose.reply) == (None, "Use warps.")
    assert prose.failure
    assert kernel.kernel == KERNEL


def test_a_malformed_kernel_is_asked_for_again_with_the_reason() -> None:
    malformed = in_fence(KERNEL_TEXT.replace("specialize", "specialise"))
    with ScriptedEndpoint([answer(malformed), GOOD]) as endpoint:
        list(proposer(endpoint).propose(request(1)))
    assert "line 5: unknown key `specialise`" in endpoint.requests[1].body["messages"][-1]["content"]


def test_asking_again_goes_on_with_the_conversation() -> None:
    with ScriptedEndpoint([answer("Use warps."), GOOD]) as endpoint:
        list(proposer(endpoint).propose(request(1)))
    first, second = (recorded.body["messages"] for recorded in endpoint.requests)
    assert second[:-1] == [*first, {"role": "assistant", "content": "Use warps."}]


def test_a_reply_is_asked_for_again_only_once() -> None:
    replies = [proposal.reply for proposal in proposals(answer("Use warps."), answer("Use blocks."), GOOD)]
    assert replies == ["Use warps.", "Use blocks."]


def test_each_reply_has_its_own_tokens() -> None:
    assert [proposal.cost.prompt_tokens for proposal in proposals(answer("Use warps."), GOOD)] == [100, 100]


def test_a_fault_while_asking_again_keeps_the_first_words() -> None:
    words, fault = proposals(answer("Use warps."), status(500, "out of order"))
    assert words.reply == "Use warps."
    assert "out of order" in fault.failure


def test_a_failed_kernel_is_repaired_with_its_compile_error_in_the_prompt() -> None:
    rule = Rule(("# Repair this kernel", COMPILE_ERROR), answer(in_fence(SLOW_TEXT)))
    with ScriptedEndpoint(otherwise=GOOD, rules=(rule,)) as endpoint:
        found = list(proposer(endpoint).propose(request(8, failures=(BROKEN,))))
    (repair,) = (proposal for proposal in found if proposal.operator == "repair")
    assert (repair.kernel, repair.parents) == (parse(SLOW_TEXT), (BROKEN.kernel.id,))


@pytest.mark.parametrize("code", [401, 403])
def test_a_refused_key_is_the_users_to_put_right(code: int) -> None:
    with pytest.raises(UserError, match="refused the key"):
        proposals(status(code, f"incorrect key {KEY}"), wanted=3)


def test_a_refused_key_is_not_repeated() -> None:
    with pytest.raises(UserError) as refused:
        proposals(status(401, f"incorrect key {KEY}"))
    assert KEY not in str(refused.value)


def test_an_unknown_model_is_the_users_to_put_right() -> None:
    with pytest.raises(UserError, match=f"knows no model `{MODEL}`"):
        proposals(status(404, "model not found"))


def test_nobody_at_the_address_is_the_users_to_put_right() -> None:
    with pytest.raises(UserError, match=r"nobody answers at http://127\.0\.0\.1:9/v1"):
        list(at(NOBODY).propose(request(2)))


def test_a_name_and_password_in_the_address_are_not_repeated() -> None:
    with pytest.raises(UserError) as unreachable:
        list(at("http://me:hidden@127.0.0.1:9/v1").propose(request(1)))
    assert "hidden" not in f"{unreachable.value} {unreachable.value.hint}"


def test_leaving_early_asks_nothing_more() -> None:
    with ScriptedEndpoint([GOOD], otherwise=stall()) as endpoint:
        found = proposer(endpoint).propose(request(40))
        next(found)
        found.close()  # type: ignore[attr-defined]
    assert len(endpoint.requests) <= 6


def test_a_stalled_request_does_not_keep_the_interpreter_alive() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests/support')\n"
        "from small_op import request\n"
        "from evolve.proposers.llm import from_environment\n"
        "next(from_environment(['m']).propose(request(3)))\n"
    )
    with ScriptedEndpoint([GOOD], otherwise=stall()) as endpoint:
        environment = {**os.environ, **endpoint.environment, "PYTHONPATH": "."}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=50)


def test_a_scripted_completion_is_what_the_client_expects() -> None:
    from openai.types.chat import ChatCompletion

    assert ChatCompletion.model_validate(completion_body("hello")).choices[0].message.content == "hello"


OTHER = "scripted-2"


def two(first: str, second: str, **of_second: Any) -> LlmProposer:
    """A model at each of these addresses."""
    models = Model(MODEL, first, "THE_KEY"), Model(OTHER, second, "THE_KEY", **of_second)
    return LlmProposer(models, Endpoints({"THE_KEY": KEY}, 0))


@pytest.mark.parametrize("fault", [status(401), status(403), status(404)], ids=["401", "403", "404"])
def test_a_model_that_cannot_be_asked_does_not_stop_the_others(fault: Step) -> None:
    with ScriptedEndpoint(otherwise=GOOD) as good, ScriptedEndpoint(otherwise=fault) as bad:
        found = list(two(good.base_url, bad.base_url).propose(request(16)))
    notes = [proposal.failure for proposal in found if proposal.proposer == OTHER]
    assert len(notes) == 1
    assert notes[0].startswith("not asked any more for now: ")
    assert {proposal.kernel for proposal in found if proposal.proposer == MODEL} == {KERNEL}


def test_nobody_at_one_of_two_addresses_is_a_note() -> None:
    with ScriptedEndpoint(otherwise=GOOD) as good:
        found = list(two(good.base_url, NOBODY).propose(request(16)))
    assert ["nobody answers at" in p.failure for p in found if p.proposer == OTHER] == [True]


def test_when_no_model_can_be_asked_it_is_the_users_to_put_right() -> None:
    with ScriptedEndpoint(otherwise=status(401)) as bad, pytest.raises(UserError):
        list(two(bad.base_url, NOBODY).propose(request(16)))


def test_replies_that_arrived_are_passed_on_before_it_is_said_that_no_model_can_be_asked() -> None:
    found: list[Proposal] = []

    def collect(proposer: LlmProposer) -> None:
        for proposal in proposer.propose(request(8)):
            found.append(proposal)  # noqa: PERF402 - what came before the error counts

    with ScriptedEndpoint([GOOD, GOOD], otherwise=status(401)) as endpoint:
        # One after the other: where a good answer came last, the model would be asked on.
        model = Model(MODEL, endpoint.base_url, "THE_KEY", concurrency=1)
        with pytest.raises(UserError):
            collect(LlmProposer((model,), Endpoints({"THE_KEY": KEY}, 0)))
    assert [proposal.kernel for proposal in found] == [KERNEL, KERNEL]


def test_a_model_that_came_back_is_asked_again() -> None:
    with ScriptedEndpoint([status(401)], otherwise=GOOD) as endpoint:
        asked = proposer(endpoint)
        with pytest.raises(UserError):
            list(asked.propose(request(1)))
        assert only(list(asked.propose(request(1)))).kernel == KERNEL


def test_no_more_questions_are_in_flight_at_an_address_than_it_bears() -> None:
    with ScriptedEndpoint(otherwise=stall()) as endpoint:
        model = Model(MODEL, endpoint.base_url, "THE_KEY", concurrency=2, timeout_seconds=0.3)
        found = LlmProposer((model,), Endpoints({"THE_KEY": KEY}, 0)).propose(request(8))
        next(found)
        found.close()  # type: ignore[attr-defined]
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize("left", [Left(tokens=0), Left(usd=0.0)])
def test_where_nothing_is_left_nothing_is_asked(left: Left) -> None:
    with ScriptedEndpoint(otherwise=GOOD) as endpoint:
        assert list(proposer(endpoint).propose(replace(request(4), left=left))) == []
    assert endpoint.requests == []


def test_a_second_chance_is_not_given_for_what_cannot_be_paid() -> None:
    with ScriptedEndpoint([answer("Use warps.")], otherwise=GOOD) as endpoint:
        found = list(proposer(endpoint).propose(replace(request(4), left=Left(tokens=110))))
    assert [proposal.reply for proposal in found] == ["Use warps."]


def test_second_chances_do_not_overrun_the_number_of_proposals() -> None:
    with ScriptedEndpoint(otherwise=answer("Use warps.")) as endpoint:
        found = list(proposer(endpoint).propose(replace(request(6), left=Left(evals=7))))
    assert (len(found), len(endpoint.requests)) == (7, 7)


def test_nobody_is_asked_once_the_time_is_up() -> None:
    with ScriptedEndpoint(otherwise=GOOD) as endpoint:
        assert list(proposer(endpoint).propose(replace(request(2), left=Left(deadline=time.monotonic())))) == []
    assert endpoint.requests == []


def test_a_server_that_wants_to_be_left_alone_is_not_waited_for_beyond_the_time() -> None:
    with ScriptedEndpoint(otherwise=status(429, retry_after="300")) as endpoint:
        began = time.monotonic()
        found = list(proposer(endpoint, 4).propose(replace(request(6), left=Left(deadline=began + 0.5))))
    assert time.monotonic() - began < 30
    assert {proposal.failure for proposal in found} == {"the time was up before an answer came"}
    assert len(endpoint.requests) <= 4


def test_a_model_that_never_answers_is_not_asked_for_ever() -> None:
    def ask_on(asked: LlmProposer) -> None:
        for _ in range(SILENT):
            list(asked.propose(replace(request(4), left=Left(tokens=10**6))))

    words = answer("Use warps.")
    with ScriptedEndpoint([*[status(400)] * 20, words], otherwise=status(400)) as endpoint:
        with pytest.raises(UserError, match="answered none of the last"):
            ask_on(proposer(endpoint))
        assert 20 + SILENT < len(endpoint.requests) <= 20 + SILENT + 8


def test_a_limit_in_dollars_is_refused_once_it_shows_that_nobody_tells_the_price() -> None:
    found: list[Proposal] = []

    def collect(endpoint: ScriptedEndpoint) -> None:
        for proposal in proposer(endpoint).propose(replace(request(1), left=Left(usd=1.0))):
            found.append(proposal)  # noqa: PERF402 - what came before the error counts

    with ScriptedEndpoint([GOOD]) as endpoint, pytest.raises(UserError, match="does not say what it costs"):
        collect(endpoint)
    assert only(found).kernel == KERNEL


def test_the_question_is_kept_with_the_proposal_without_the_key() -> None:
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

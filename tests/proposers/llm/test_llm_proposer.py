"""LLM proposer with a real HTTP server whose faults are scripted."""

import os
import subprocess
import sys

import pytest
from asked_models import at, only, proposals, proposer
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
from small_op import BROKEN_TEXT, COMPILE_ERROR, KERNEL, KERNEL_TEXT, SLOW_TEXT, failed, request

from archive.exchange import MAX_REPLY
from archive.kernel import parse
from evolve.errors import UserError
from evolve.proposers.llm.endpoint import MAX_BYTES

GOOD = answer(in_fence(KERNEL_TEXT))
BROKEN = failed(parse(BROKEN_TEXT))
NO_SERVER = "http://127.0.0.1:9/v1"  # the discard port, which has no listener


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_a_reply_becomes_a_proposal_of_its_model() -> None:
    proposal = only(proposals(GOOD))
    assert (proposal.kernel, proposal.proposer, proposal.operator, proposal.run) == (KERNEL, MODEL, "draft", "run-1")


def test_a_proposal_has_the_tokens_of_its_reply() -> None:
    cost = only(proposals(GOOD)).cost
    assert (cost.prompt_tokens, cost.completion_tokens) == (100, 10)


def test_the_model_gets_the_key_and_the_messages() -> None:
    with ScriptedEndpoint([GOOD]) as endpoint:
        list(proposer(endpoint).propose(request(1)))
    (recorded,) = endpoint.requests
    assert recorded.authorization == f"Bearer {KEY}"
    assert recorded.body["messages"][0]["role"] == "system"
    assert "# The op: center_rows" in recorded.prompt


def test_a_request_holds_only_the_model_and_the_messages() -> None:
    with ScriptedEndpoint([GOOD]) as endpoint:
        list(proposer(endpoint).propose(request(1)))
    assert set(endpoint.requests[0].body) == {"model", "messages"}


def test_the_prompt_shows_the_file_of_the_reference() -> None:
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
        (raw("<html>bad gateway</html>"), "not JSON"),
        (raw('{"choices": [{"mess'), "not JSON"),
        (raw("[" * 100_000), "not JSON"),
        (raw("null"), "not a JSON object"),
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
def test_a_fault_becomes_a_proposal_with_its_reason(fault: Step, reason: str) -> None:
    proposal = only(proposals(fault))
    assert proposal.kernel is None
    assert reason in proposal.failure


def test_a_stall_becomes_a_failed_proposal() -> None:
    assert only(proposals(stall(), timeout_seconds=0.3)).failure == "the model did not answer in time"


@pytest.mark.parametrize(
    "fault", [status(429), status(500), hang_up(), truncated(KERNEL_TEXT)], ids=["429", "500", "hang up", "truncated"]
)
def test_a_temporary_fault_is_retried(fault: Step) -> None:
    assert only(proposals(fault, GOOD, retries=1)).kernel == KERNEL


def test_a_stall_is_retried() -> None:
    assert only(proposals(stall(), GOOD, retries=1, timeout_seconds=0.5)).kernel == KERNEL


def test_one_fault_among_many_requests_costs_one_proposal() -> None:
    kernels = [proposal.kernel for proposal in proposals(GOOD, status(500), GOOD, GOOD, wanted=4)]
    assert sorted(kernel is None for kernel in kernels) == [False, False, False, True]


def test_a_truncated_reply_keeps_its_text() -> None:
    assert only(proposals(answer("/*--- half", finish_reason="length"))).reply == "/*--- half"


def test_the_middle_of_a_huge_reply_is_replaced_by_a_mark() -> None:
    huge = f"{'first ' * 50_000}{'more ' * 1_600_000}{in_fence(KERNEL_TEXT)}"
    proposal = only(proposals(answer(huge)))
    assert proposal.kernel == KERNEL
    assert len(proposal.reply) < MAX_REPLY + 200
    assert proposal.reply.startswith("first first")
    assert proposal.reply.endswith(in_fence(KERNEL_TEXT))
    assert f"{len(huge) - MAX_REPLY} characters of the reply are not stored" in proposal.reply


def test_a_huge_reply_without_a_kernel_is_a_failure_that_names_its_length() -> None:
    proposal = proposals(answer("word " * 1_600_000))[0]
    assert proposal.failure.startswith("the reply is too long to be stored completely")


def test_an_endless_response_is_not_read_for_ever() -> None:
    endless = raw(" " * (MAX_BYTES + 10))
    assert only(proposals(endless)).failure == "the response is longer than 32 MiB"


def test_a_failure_does_not_contain_the_key() -> None:
    proposal = only(proposals(status(400, f"the key {KEY} has no quota")))
    assert "the key *** has no quota" in proposal.failure


def test_the_printed_proposer_does_not_contain_the_key() -> None:
    assert KEY not in repr(at(NO_SERVER))


def test_a_reply_without_a_kernel_is_a_failure_and_gets_a_second_prompt() -> None:
    prose, kernel = proposals(answer("Use warps."), GOOD)
    assert (prose.kernel, prose.reply) == (None, "Use warps.")
    assert prose.failure
    assert kernel.kernel == KERNEL


def test_the_second_prompt_for_a_malformed_kernel_gives_the_reason() -> None:
    malformed = in_fence(KERNEL_TEXT.replace("specialize", "specialise"))
    with ScriptedEndpoint([answer(malformed), GOOD]) as endpoint:
        list(proposer(endpoint).propose(request(1)))
    assert "line 5: unknown key `specialise`" in endpoint.requests[1].body["messages"][-1]["content"]


def test_the_second_prompt_continues_the_conversation() -> None:
    with ScriptedEndpoint([answer("Use warps."), GOOD]) as endpoint:
        list(proposer(endpoint).propose(request(1)))
    first, second = (recorded.body["messages"] for recorded in endpoint.requests)
    assert second[:-1] == [*first, {"role": "assistant", "content": "Use warps."}]


def test_there_is_no_third_prompt() -> None:
    replies = [proposal.reply for proposal in proposals(answer("Use warps."), answer("Use blocks."), GOOD)]
    assert replies == ["Use warps.", "Use blocks."]


def test_each_reply_has_its_own_cost() -> None:
    assert [proposal.cost.prompt_tokens for proposal in proposals(answer("Use warps."), GOOD)] == [100, 100]


def test_a_fault_at_the_second_prompt_keeps_the_first_reply() -> None:
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
def test_a_refused_key_is_a_user_error(code: int) -> None:
    with pytest.raises(UserError, match="refused the key"):
        proposals(status(code, f"incorrect key {KEY}"), wanted=3)


def test_the_error_for_a_refused_key_does_not_contain_it() -> None:
    with pytest.raises(UserError) as refused:
        proposals(status(401, f"incorrect key {KEY}"))
    assert KEY not in str(refused.value)


def test_an_unknown_model_is_a_user_error() -> None:
    with pytest.raises(UserError, match=f"has no model `{MODEL}`"):
        proposals(status(404, "model not found"))


def test_an_address_without_a_server_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"no server answers at http://127\.0\.0\.1:9/v1"):
        list(at(NO_SERVER).propose(request(2)))


def test_errors_do_not_contain_the_credentials_of_the_address() -> None:
    with pytest.raises(UserError) as unreachable:
        list(at("http://me:hidden@127.0.0.1:9/v1").propose(request(1)))
    assert "hidden" not in f"{unreachable.value} {unreachable.value.hint}"


def test_no_request_is_sent_after_the_caller_stops() -> None:
    with ScriptedEndpoint([GOOD], otherwise=stall()) as endpoint:
        found = proposer(endpoint).propose(request(40))
        next(found)
        found.close()  # type: ignore[attr-defined]
    assert len(endpoint.requests) <= 6


def test_a_stalled_request_does_not_keep_the_interpreter_alive() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests/support')\n"
        "from small_op import request\n"
        "from evolve.proposers.llm.proposer import from_environment\n"
        "next(from_environment(['m']).propose(request(3)))\n"
    )
    with ScriptedEndpoint([GOOD], otherwise=stall()) as endpoint:
        environment = {**os.environ, **endpoint.environment, "PYTHONPATH": "."}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=50)


def test_a_scripted_completion_is_what_the_client_expects() -> None:
    from openai.types.chat import ChatCompletion

    assert ChatCompletion.model_validate(completion_body("hello")).choices[0].message.content == "hello"

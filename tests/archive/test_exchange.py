import json

import pytest

from archive.exchange import (
    MAX_CUSTOM_ID,
    BatchReply,
    CustomId,
    completion,
    decode_custom_id,
    encode_custom_id,
    labels,
    read_replies,
    request_line,
    unfinished,
)
from archive.runs import Cost

PARENT, OTHER = "0123456789abcdef", "fedcba9876543210"
LONG = "kernelbench_level2_conv_transpose3d_scale_batch_norm_global_average_pool"


def body(content: object = "hello", finish: str = "stop", **message: object) -> dict[str, object]:
    return {
        "model": "m-1",
        "choices": [{"index": 0, "message": {"content": content, **message}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 22, "completion_tokens": 2},
    }


def line(**entry: object) -> str:
    return json.dumps({"id": "batch_req_1", "custom_id": "a.draft.-.0", "error": None, **entry})


def answered(body: object, status: int = 200) -> str:
    return line(response={"status_code": status, "request_id": "r", "body": body})


def only(text: str) -> BatchReply:
    (reply,) = read_replies(text)
    return reply


def test_a_request_has_the_fields_that_the_batch_api_requires() -> None:
    entry = json.loads(request_line("a.draft.-.0", "m-1", [("system", "s"), ("user", "u\nü")]))
    assert entry == {
        "custom_id": "a.draft.-.0",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "m-1",
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u\nü"}],
        },
    }


def test_a_request_is_one_line() -> None:
    assert "\n" not in request_line("a.draft.-.0", "m-1", [("user", "one\ntwo\r\n")])


def test_a_reply_has_its_text_model_and_tokens() -> None:
    assert only(answered(body())) == BatchReply("a.draft.-.0", "hello", "m-1", Cost(22, 2))


def test_blank_lines_are_skipped_and_windows_line_endings_accepted() -> None:
    assert len(list(read_replies(f"\n{answered(body())}\r\n\n{answered(body())}\n"))) == 2


def test_a_unicode_line_separator_inside_a_string_does_not_split_a_line() -> None:
    text = json.dumps(json.loads(answered(body("one\u2028two"))), ensure_ascii=False)
    assert only(text).text == "one\u2028two"


def test_content_in_parts_is_joined() -> None:
    assert completion(body([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}])).text == "one two"


def test_a_failure_names_its_line_and_the_other_lines_are_still_read() -> None:
    replies = list(read_replies(f"{answered(body())}\n{{broken\n{answered(body())}\n"))
    assert [reply.failure[:25] for reply in replies] == ["", "line 2: this is not JSON ", ""]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "a JSON object, not [1]"),
        ("[" * 100_000, "not JSON"),
        (line(response=None, error={"code": "batch_expired", "message": "too late"}), "too late (batch_expired)"),
        (answered({"error": {"message": "unknown model"}}, status=404), "status 404: unknown model"),
        (line(body={"messages": []}), "this is a request"),
        (line(response="?"), "there is no response"),
        (answered("<html>"), "not a JSON object: <html>"),
        (answered({"choices": []}), "no choices"),
        (answered({"choices": [{"message": None}]}), "no choices"),
        (answered({"choices": None, "error": {"message": "overloaded"}}), "no choices: overloaded"),
        (answered(body("/*--- half", finish="length")), "cut off"),
        (answered(body("", finish="content_filter")), "content filter"),
        (answered(body(None, refusal="I cannot")), "refused: I cannot"),
        (answered(body(None)), "empty"),
    ],
)
def test_a_reply_without_a_complete_answer_fails_with_the_reason(text: str, reason: str) -> None:
    assert reason in only(text).failure


def test_a_truncated_reply_keeps_its_text() -> None:
    assert only(answered(body("/*--- half", finish="length"))).text == "/*--- half"


def used(**usage: object) -> BatchReply:
    return completion({**body(), "usage": usage})


def test_a_lone_surrogate_is_replaced_so_that_the_text_can_be_stored() -> None:
    said = completion(json.loads(r'{"choices": [{"message": {"content": "warps \ud800"}, "finish_reason": "\udfff"}]}'))
    refused = completion(json.loads(r'{"error": "\ud800"}'))
    assert (said.text, refused.failure) == ("warps ?", "the response contains no choices: ?")


@pytest.mark.parametrize(
    "usage",
    [{}, {"prompt_tokens": "many", "completion_tokens": True}, {"prompt_tokens": -1}, {"prompt_tokens": 10**30}],
)
def test_the_cost_is_unknown_without_valid_token_counts(usage: dict[str, object]) -> None:
    assert used(**usage).cost is None


def test_cached_and_reasoning_tokens_are_included_in_prompt_and_completion_tokens() -> None:
    found = used(
        prompt_tokens=100,
        completion_tokens=50,
        total_tokens=150,
        prompt_tokens_details={"cached_tokens": 80},
        completion_tokens_details={"reasoning_tokens": 40},
    )
    assert found.cost == Cost(100, 50, cached_tokens=80, reasoning_tokens=40)


def test_reasoning_tokens_that_a_server_counts_separately_are_added_to_the_completion() -> None:
    found = used(
        prompt_tokens=100,
        completion_tokens=10,
        total_tokens=150,
        completion_tokens_details={"reasoning_tokens": 40},
    )
    assert found.cost == Cost(100, 50, reasoning_tokens=40)


@pytest.mark.parametrize(("told", "usd"), [(0.25, 0.25), (0, 0.0), ("1", None), (True, None), (-1.0, None)])
def test_the_cost_reported_by_a_gateway_is_used_if_it_is_a_valid_price(told: object, usd: float | None) -> None:
    assert used(prompt_tokens=1, completion_tokens=1, cost=told).usd == usd


def test_parameters_are_placed_next_to_the_messages() -> None:
    entry = json.loads(request_line("a.draft.-.0", "m-1", [("user", "u")], {"temperature": 0.5}))
    assert entry["body"] == {"model": "m-1", "messages": [{"role": "user", "content": "u"}], "temperature": 0.5}


@pytest.mark.parametrize(
    "text", [answered(body("half", finish="length")), answered(body(None)), answered(body(None, refusal="no"))]
)
def test_an_unfinished_reply_is_distinguished_from_a_reply_without_a_kernel(text: str) -> None:
    (reply,) = read_replies(text)
    assert unfinished(reply.failure.partition(": ")[2])
    assert not unfinished("the reply contains no kernel")


@pytest.mark.parametrize("parents", [(), (PARENT,), (PARENT, OTHER)])
def test_a_custom_id_decodes_to_the_request_it_was_made_from(parents: tuple[str, ...]) -> None:
    encoded = encode_custom_id("soft.max", "improve", parents, "k3f9")
    assert decode_custom_id(encoded) == CustomId("soft.max", "improve", parents, "k3f9")


@pytest.mark.parametrize(
    ("operator", "parents"),
    [("draft", ()), ("specialise", (PARENT,)), ("crossover", (PARENT, OTHER))],
)
def test_a_custom_id_stays_within_its_limit_for_an_op_with_a_long_name(operator: str, parents: tuple[str, ...]) -> None:
    assert len(encode_custom_id(LONG, operator, parents, "0123456")) <= MAX_CUSTOM_ID


def test_the_label_of_an_op_with_a_long_name_matches_that_op() -> None:
    decoded = decode_custom_id(encode_custom_id(LONG, "improve", (PARENT,), "01234567"))
    assert decoded
    assert labels(decoded.op, LONG)


def test_the_label_of_an_op_with_a_long_name_does_not_match_another_op() -> None:
    decoded = decode_custom_id(encode_custom_id(LONG, "improve", (PARENT,), "01234567"))
    assert decoded
    assert not labels(decoded.op, f"{LONG}2")


def test_too_many_parents_for_an_id_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_custom_id("softmax", "crossover", (PARENT, OTHER, PARENT), "k3f9")


@pytest.mark.parametrize("custom_id", ["", "request-1", "a.b.c", "a..b.c", "...."])
def test_a_foreign_custom_id_is_not_decoded(custom_id: str) -> None:
    assert decode_custom_id(custom_id) is None


@pytest.mark.parametrize(
    ("custom_id", "model", "said"),
    [
        ("gelu.\x1b[31m.-.c", "m-1", "its custom_id has the control character U+001B"),
        ("gelu.draft.-.c", "\x1b]0;title\x07", "the name of its model has the control character U+001B"),
        ("gelu.draft.-.c", "m\u202e", "the name of its model has the character that changes the text direction"),
    ],
)
def test_a_reply_with_a_deceptive_name_is_refused_and_keeps_its_text(custom_id: str, model: str, said: str) -> None:
    reply = only(line(custom_id=custom_id, response={"status_code": 200, "body": {**body(), "model": model}}))
    assert said in reply.failure
    assert (reply.custom_id, reply.model, reply.text) == ("", "", "hello")

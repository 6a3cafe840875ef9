"""Generated batch files: each line becomes a reply or a failure that names the line, whatever it contains."""

import json

from hypothesis import given
from hypothesis import strategies as st

from archive.characters import hidden_in_name
from archive.exchange import MAX_CUSTOM_ID, decode_custom_id, encode_custom_id, read_replies, request_line

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def dictionary(**keys: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Return a strategy for dictionaries in which any of these keys may be missing or hold some other value."""
    return st.fixed_dictionaries({}, optional={key: strategy | values for key, strategy in keys.items()})


usage = dictionary(
    prompt_tokens=st.integers(),
    completion_tokens=st.integers(),
    total_tokens=st.integers(),
    cost=st.floats(),
    prompt_tokens_details=dictionary(cached_tokens=st.integers()),
    completion_tokens_details=dictionary(reasoning_tokens=st.integers()),
)
message = dictionary(content=st.text() | st.lists(dictionary(text=st.text())), refusal=st.text())
choice = dictionary(message=message, finish_reason=st.sampled_from(["stop", "length", "content_filter"]))
body = dictionary(model=st.text(), choices=st.lists(choice), usage=usage, error=dictionary(message=st.text()))
entry = dictionary(
    custom_id=st.text(),
    response=dictionary(status_code=st.sampled_from([200, 429]), body=body),
    error=dictionary(message=st.text()),
)
lines = entry.map(json.dumps) | values.map(json.dumps) | st.text().map(lambda text: text.replace("\n", " "))
parts = st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=1, max_size=10)


@given(st.lists(lines, max_size=4))
def test_a_line_becomes_a_reply_or_a_failure_that_names_the_line(written: list[str]) -> None:
    replies = list(read_replies("\n".join(written)))
    numbers = [number for number, line in enumerate(written, start=1) if line.strip()]
    assert len(replies) == len(numbers)
    for number, reply in zip(numbers, replies, strict=True):
        assert reply.text.strip() or reply.failure
        assert not reply.failure or reply.failure.startswith(f"line {number}: ")
        assert not hidden_in_name(reply.custom_id + reply.model)
        f"{reply.text}{reply.failure}".encode()


@given(st.text(min_size=1, max_size=80), parts, st.lists(parts, max_size=2), parts)
def test_a_custom_id_is_decoded_to_what_was_encoded(op: str, operator: str, parents: list[str], nonce: str) -> None:
    encoded = encode_custom_id(op, operator, parents, nonce)
    found = decode_custom_id(encoded)
    assert len(encoded) <= MAX_CUSTOM_ID
    assert found
    assert (found.operator, found.parents, found.nonce) == (operator, tuple(parents), nonce)
    assert found.op == op or len(op) > len(found.op)


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text()), max_size=4))
def test_a_request_is_one_line_of_json_with_all_its_messages(messages: list[tuple[str, str]]) -> None:
    line = request_line("a.draft.-.0", "m-1", messages)
    assert "\n" not in line
    assert [(said["role"], said["content"]) for said in json.loads(line)["body"]["messages"]] == messages

"""Requests and replies as JSONL in the OpenAI Batch API's format.

Replies come from third-party servers, so a line that cannot be read becomes a failure that names the line.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from archive.characters import described, hidden_in_name
from archive.runs import Cost

URL = "/v1/chat/completions"
MAX_CUSTOM_ID, MIN_LABEL, HASH_CHARACTERS = 64, 12, 8
MAX_EXCERPT = 300
REFUSED, CUT_OFF = "the model refused", "the reply was cut off"
FILTERED, EMPTY = "the reply was stopped", "the reply is empty"
MAX_REPLY = 300_000  # largest number of characters of a reply that are stored
LEFT_OUT = "[... {} characters of the reply are not stored ...]"
MAX_USD = 1e6  # larger prices in replies are ignored
MAX_COUNT = 10**9  # larger token counts in replies are ignored


@dataclass(frozen=True)
class BatchReply:
    """A model's answer, or the reason why there is none."""

    custom_id: str = ""
    text: str = ""
    model: str = ""
    cost: Cost | None = None  # cost in tokens; None if the server does not report them
    usd: float | None = None  # the price in dollars, if the server reports it, as gateways do
    failure: str = ""


@dataclass(frozen=True)
class CustomId:
    """The parts of a request's id, which describe the expected proposal. A long op name is shortened by `op_label`."""

    op: str
    operator: str
    parents: tuple[str, ...]
    nonce: str


def request_line(
    custom_id: str, model: str, messages: Sequence[tuple[str, str]], parameters: Mapping[str, object] | None = None
) -> str:
    """Return one line of a batch's input file; `messages` holds pairs of role and content."""
    conversation = [{"role": role, "content": content} for role, content in messages]
    body = {"model": model, "messages": conversation, **(parameters or {})}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": body}, ensure_ascii=False)


def read_replies(text: str) -> Iterator[BatchReply]:
    """Yield the replies in a batch's output file, or in its error file."""
    # Not splitlines(), which also splits at characters that JSON strings may contain, such as U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            reply = _named(_reply(line))
            yield replace(reply, failure=f"line {number}: {reply.failure}") if reply.failure else reply


def completion(body: object) -> BatchReply:
    """Return the reply in the decoded body of a chat completion; a missing or truncated answer is a failure."""
    if not isinstance(body, dict):
        return BatchReply(failure=f"the response is not a JSON object: {_excerpt(body)}")
    usage = body.get("usage")
    reply = BatchReply(model=_text(body.get("model")), cost=_cost(usage), usd=_usd(usage))
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        said = f": {_excerpt(body['error'])}" if body.get("error") else ""
        return replace(reply, failure=f"the response contains no choices{said}")
    text, refusal = shortened(_text(message.get("content"))), _text(message.get("refusal"))
    return replace(reply, text=text, failure=_unfinished(_text(choice.get("finish_reason")), text, refusal))


def shortened(text: str) -> str:
    """Return a reply, with a mark in place of the middle if it is longer than any reasonable reply."""
    if len(text) <= MAX_REPLY:
        return text
    head, tail = MAX_REPLY * 2 // 3, MAX_REPLY // 3
    return f"{text[:head]}\n{LEFT_OUT.format(len(text) - head - tail)}\n{text[-tail:]}"


def storable(text: str) -> str:
    """Return the text with lone surrogates replaced, which JSON can contain but UTF-8 files cannot."""
    return text.encode(errors="replace").decode()


def unfinished(failure: str) -> bool:
    """Return whether a failure means that the model gave no complete answer, rather than a wrong one."""
    return failure.startswith((REFUSED, CUT_OFF, FILTERED, EMPTY))


def encode_custom_id(op: str, operator: str, parents: Sequence[str], nonce: str) -> str:
    """Return an id of at most 64 characters, such as `softmax.improve.0123456789abcdef.k3f9`."""
    rest = f".{operator}.{'-'.join(parents) or '-'}.{nonce}"
    if "." in operator or "." in nonce or len(rest) > MAX_CUSTOM_ID - MIN_LABEL:
        raise ValueError(f"`{rest}` does not fit in the id of a batch request")
    return op_label(op, MAX_CUSTOM_ID - len(rest)) + rest


def decode_custom_id(custom_id: str) -> CustomId | None:
    """Return the parts of an id that `encode_custom_id` made, or None for any other id."""
    parts = custom_id.rsplit(".", 3)
    if len(parts) != 4 or not all(parts):
        return None
    op, operator, parents, nonce = parts
    return CustomId(op, operator, tuple(parent for parent in parents.split("-") if parent), nonce)


def op_label(op: str, characters: int) -> str:
    """Return the op's name or, if it is too long, its beginning and a hash of the whole name."""
    if len(op) <= characters:
        return op
    return f"{op[: characters - HASH_CHARACTERS - 1]}~{hashlib.sha256(op.encode()).hexdigest()[:HASH_CHARACTERS]}"


def labels(label: str, op: str) -> bool:
    """Return whether the label in a decoded id is that of this op."""
    return label == op or (len(op) > len(label) >= MIN_LABEL and label == op_label(op, len(label)))


def _reply(line: str) -> BatchReply:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BatchReply(failure=f"this is not JSON ({error}): {_excerpt(line)}")
    if not isinstance(entry, dict):
        return BatchReply(failure=f"a reply is a JSON object, not {_excerpt(entry)}")
    custom_id = _text(entry.get("custom_id"))
    response, fault = entry.get("response"), entry.get("error")
    if fault:
        return BatchReply(custom_id, failure=f"the request failed: {_excerpt(fault)}")
    if not isinstance(response, dict):
        asked = " (this is a request: give the batch's output file)" if "body" in entry else ""
        return BatchReply(custom_id, failure=f"there is no response{asked}")
    status, body = response.get("status_code"), response.get("body")
    if status != 200:
        said = body.get("error", body) if isinstance(body, dict) else body
        return BatchReply(custom_id, failure=f"the request failed with status {status}: {_excerpt(said)}")
    return replace(completion(body), custom_id=custom_id)


def _named(reply: BatchReply) -> BatchReply:
    """Return the reply, or a failure if one of its names, which go into proposals, has hidden characters."""
    for what, name in (("its custom_id", reply.custom_id), ("the name of its model", reply.model)):
        if found := hidden_in_name(name):
            return replace(reply, custom_id="", model="", failure=f"{what} has {described(found)}")
    return reply


def _unfinished(finish_reason: str, text: str, refusal: str) -> str:
    if refusal:
        return f"{REFUSED}: {_excerpt(refusal)}"
    if finish_reason == "length":
        return f"{CUT_OFF} at the token limit (finish_reason length)"
    if finish_reason == "content_filter":
        return f"{FILTERED} by a content filter"
    return "" if text.strip() else f"{EMPTY} (finish_reason {finish_reason or 'missing'})"


def _text(value: object) -> str:
    """Return a string unchanged, and a list of content parts as their joined texts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return storable(value) if isinstance(value, str) else ""


def _cost(usage: object) -> Cost | None:
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    details = ("prompt_tokens_details", "completion_tokens_details")
    prompt_details, completion_details = (usage.get(key) if isinstance(usage, dict) else None for key in details)
    reasoning = _count(completion_details, "reasoning_tokens")
    if reasoning and _count(usage, "total_tokens") == prompt + completion + reasoning:
        completion += reasoning  # some servers do not include reasoning in the completion
    cost = Cost(prompt, completion, cached_tokens=_count(prompt_details, "cached_tokens"), reasoning_tokens=reasoning)
    return cost if cost.tokens else None


def _usd(usage: object) -> float | None:
    value = usage.get("cost") if isinstance(usage, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < MAX_USD else None


def _count(usage: object, key: str) -> int:
    value = usage.get(key) if isinstance(usage, dict) else 0
    return value if type(value) is int and 0 <= value <= MAX_COUNT else 0


def _excerpt(value: object) -> str:
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        code = value.get("code")
        value = f"{value['message']} ({code})" if code else value["message"]
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = storable(" ".join(text.split()))
    return text if len(text) <= MAX_EXCERPT else f"{text[:MAX_EXCERPT]}..."

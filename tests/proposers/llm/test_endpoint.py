"""Calls over real HTTP: requests, retries and costs."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from scripted_endpoint import (
    KEY,
    MODEL,
    ScriptedEndpoint,
    Step,
    answer,
    completion_body,
    hang_up,
    raw,
    status,
    truncated,
)

from archive.runs import Cost
from evolve.prompting.text import Message, estimated_tokens, tokens
from evolve.proposers.llm.chat import Answer, Call, RateLimit
from evolve.proposers.llm.endpoint import LONGEST_SECONDS, Endpoints, redacted
from evolve.proposers.llm.models import Model, Prices

MESSAGES = (Message("system", "You write kernels."), Message("user", "Write one."))
PLAIN = Model(MODEL, key_env="THE_KEY")
HELLO = answer("hello")
Change = Callable[[Model], Model]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@dataclass
class Waiting:
    """A clock that advances only when `pause` is called, so that tests do not really wait."""

    waits: list[float] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        if seconds:
            self.waits.append(seconds)

    def clock(self) -> float:
        return sum(self.waits)


def asked(
    *steps: Step, model: Model = PLAIN, times: int = 1, retries: int = 4
) -> tuple[list[Answer], ScriptedEndpoint, Waiting]:
    """Return the answers, the server with its requests, and the waits."""
    waiting = Waiting()
    with ScriptedEndpoint(steps) as endpoint:
        chat = Endpoints({"THE_KEY": KEY}, retries, lambda: RateLimit(waiting.clock))
        call = Call(replace(model, base_url=endpoint.base_url), "draft", MESSAGES)
        return [chat.ask(call, waiting.pause) for _ in range(times)], endpoint, waiting


def sent(endpoint: ScriptedEndpoint) -> list[dict[str, object]]:
    """Return the parameters of each request other than model and messages."""
    return [{k: v for k, v in one.body.items() if k not in ("model", "messages")} for one in endpoint.requests]


def refused(parameter: str) -> Step:
    return status(400, f"Unsupported parameter: '{parameter}' is not supported with this model.", param=parameter)


def test_an_answer_has_its_text_and_its_cost() -> None:
    (found,), _, _ = asked(HELLO)
    assert (found.text, found.failure, found.cost.prompt_tokens, found.cost.completion_tokens) == ("hello", "", 100, 10)


@pytest.mark.parametrize("wait", [0.02, 61.0, LONGEST_SECONDS])
def test_no_request_is_sent_before_retry_after_has_passed(wait: float) -> None:
    (found,), _, waiting = asked(status(429, retry_after=str(wait)), HELLO)
    assert (found.text, waiting.waits) == ("hello", [wait])


def test_a_retry_after_beyond_the_longest_wait_is_a_failure() -> None:
    (found,), endpoint, waiting = asked(status(429, retry_after=str(LONGEST_SECONDS + 1)), HELLO)
    assert ("status 429" in found.failure, len(endpoint.requests), waiting.waits) == (True, 1, [])


@pytest.mark.parametrize(
    "fault", [status(408), status(409), status(429), status(500), status(503), hang_up(), truncated("x")]
)
def test_a_request_without_a_reply_is_repeated_with_the_same_idempotency_key(fault: Step) -> None:
    (found,), endpoint, _ = asked(fault, fault, HELLO)
    keys = {request.headers["idempotency-key"] for request in endpoint.requests}
    assert (found.text, len(endpoint.requests), len(keys)) == ("hello", 3, 1)


def test_each_call_has_its_own_idempotency_key() -> None:
    _, endpoint, _ = asked(HELLO, HELLO, times=2)
    assert len({request.headers["idempotency-key"] for request in endpoint.requests}) == 2


def test_a_request_is_repeated_at_most_max_retries_times() -> None:
    (found,), endpoint, _ = asked(*[status(503)] * 9, retries=2)
    assert ("status 503" in found.failure, len(endpoint.requests)) == (True, 3)


@pytest.mark.parametrize(
    "step",
    [
        raw("<html>"),
        raw('{"choices": [{"mess'),
        raw("{}"),
        answer(""),
        answer("half", "length"),
        status(400),
        status(413),
    ],
    ids=["html", "half JSON", "no choices", "empty", "cut off", "400", "413"],
)
def test_a_reply_that_may_have_cost_money_and_a_lasting_fault_are_not_retried(step: Step) -> None:
    (found,), endpoint, _ = asked(step, HELLO)
    assert (bool(found.failure), len(endpoint.requests)) == (True, 1)


def test_an_answer_with_the_wrong_content_type_is_read() -> None:
    (found,), _, _ = asked(raw(json.dumps(completion_body("hello")), kind="text/html"))
    assert found.text == "hello"


@pytest.mark.parametrize(
    ("model", "steps", "bodies"),
    [
        (PLAIN, [], [{}]),
        (replace(PLAIN, temperature=0.0), [], [{"temperature": 0.0}]),
        (replace(PLAIN, reasoning_effort="high", max_tokens=9), [], [{"reasoning_effort": "high", "max_tokens": 9}]),
        (replace(PLAIN, temperature=0.5), [refused("temperature")], [{"temperature": 0.5}, {}]),
        (
            replace(PLAIN, max_tokens=9),
            [refused("max_tokens"), refused("max_completion_tokens")],
            [{"max_tokens": 9}, {"max_completion_tokens": 9}, {}],
        ),
    ],
    ids=["nothing", "temperature", "effort and limit", "refused temperature", "refused limits"],
)
def test_parameters_are_sent_until_the_server_refuses_them(
    model: Model, steps: list[Step], bodies: list[dict[str, object]]
) -> None:
    (found,), endpoint, _ = asked(*steps, HELLO, model=model)
    assert (sent(endpoint), json.loads(found.parameters), found.text) == (bodies, bodies[-1], "hello")


def test_a_refused_parameter_is_not_sent_again() -> None:
    model = replace(PLAIN, temperature=0.5)
    _, endpoint, _ = asked(refused("temperature"), HELLO, HELLO, model=model, times=2)
    assert sent(endpoint) == [{"temperature": 0.5}, {}, {}]


def test_a_server_that_refuses_every_request_is_a_failure() -> None:
    (found,), endpoint, _ = asked(*[refused("temperature")] * 9, model=replace(PLAIN, temperature=0.5))
    assert ("Unsupported" in found.failure, len(endpoint.requests)) == (True, 2)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (status(401), "refused the key"),
        (status(402), "requires payment"),
        (status(403), "refused the key"),
        (status(404), "has no model"),
        (status(429, "quota", code="insufficient_quota"), "requires payment"),
    ],
)
def test_a_lasting_fault_makes_the_model_unusable(step: Step, reason: str) -> None:
    (found,), endpoint, _ = asked(step, HELLO)
    assert (reason in str(found.unusable), len(endpoint.requests)) == (True, 1)


def test_the_limit_of_requests_per_minute_is_respected() -> None:
    _, _, waiting = asked(*[HELLO] * 3, model=replace(PLAIN, requests_per_minute=2), times=3)
    assert waiting.waits == [60.0]


def test_a_repeated_request_counts_towards_the_limit() -> None:
    _, _, waiting = asked(status(429), HELLO, model=replace(PLAIN, requests_per_minute=1))
    assert sum(waiting.waits) == 60.0


PRICED = replace(PLAIN, usd_per_million=Prices(prompt=2.0, completion=10.0, cached=0.5))
CACHED = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 600}}


@pytest.mark.parametrize(
    ("model", "usage", "usd"),
    [
        (PRICED, CACHED, (400 * 2.0 + 600 * 0.5 + 100 * 10.0) / 1e6),
        (replace(PRICED, usd_per_million=Prices(2.0, 10.0)), CACHED, (1000 * 2.0 + 100 * 10.0) / 1e6),
        (PRICED, {**CACHED, "cost": 0.125}, 0.125),
        (PLAIN, {**CACHED, "cost": 0.125}, 0.125),
        (PLAIN, CACHED, 0.0),
    ],
    ids=["cached", "no price for cached", "told", "told without prices", "unknown"],
)
def test_the_cost_in_usd_is_reported_by_the_server_or_computed_from_the_prices(
    model: Model, usage: dict[str, object], usd: float
) -> None:
    (found,), _, _ = asked(answer("hello", usage=usage), model=model)
    assert found.cost.usd == pytest.approx(usd)


@pytest.mark.parametrize(
    ("model", "usage", "unpriced"),
    [(PLAIN, CACHED, True), (PLAIN, {**CACHED, "cost": 0}, False), (PRICED, CACHED, False)],
)
def test_an_answer_without_a_known_price_is_marked_unpriced(
    model: Model, usage: dict[str, object], unpriced: bool
) -> None:
    (found,), _, _ = asked(answer("hello", usage=usage), model=model)
    assert found.unpriced == unpriced


def test_tokens_are_estimated_where_the_server_does_not_count_them() -> None:
    (found,), _, _ = asked(answer("hello, world", usage=None), model=PRICED)
    prompt, completion = estimated_tokens(MESSAGES), tokens("hello, world")
    assert (found.cost.prompt_tokens, found.cost.completion_tokens) == (prompt, completion)
    assert found.cost.usd == pytest.approx(PRICED.usd_per_million.usd(Cost(prompt, completion)))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "step",
    [
        answer(f"your key is {KEY}"),
        raw(f'{{"error": {{"message": "bad key {KEY}"}}}}'),
        status(400, KEY),
        status(401, KEY),
        raw(json.dumps({"choices": [{"message": {"content": [{"text": KEY[:9]}, {"text": KEY[9:]}]}}]})),
    ],
)
def test_no_answer_contains_the_key(step: Step) -> None:
    (found,), _, _ = asked(step)
    assert KEY not in repr(found)


@pytest.mark.parametrize("before", range(280, 300, 3))
def test_a_key_is_redacted_before_its_text_is_shortened(before: int) -> None:
    long = f"{'z' * before}{KEY}"
    refusal = {"choices": [{"message": {"content": "", "refusal": long}}]}
    (found,), _, _ = asked(raw(json.dumps({"error": {"message": long}})))
    (refused,), _, _ = asked(raw(json.dumps(refusal)))
    assert "zsk" not in f"{found.failure} {refused.failure}"


@pytest.mark.parametrize("key", ["x", "0", "local"])
def test_a_short_key_is_not_redacted_in_a_kernel(key: str) -> None:
    with ScriptedEndpoint([answer("x0 is local")]) as endpoint:
        call = Call(replace(PLAIN, base_url=endpoint.base_url), "draft", MESSAGES)
        assert Endpoints({"THE_KEY": key}).ask(call, Waiting().pause).text == "x0 is local"


def test_no_reply_contains_the_credentials_of_the_address() -> None:
    with ScriptedEndpoint([answer("you are hidden-word")]) as endpoint:
        call = Call(Model("m", endpoint.base_url.replace("//", "//me:hidden-word@")), "draft", MESSAGES)
        assert Endpoints({}).ask(call, Waiting().pause).text == "you are ***"
    assert redacted(["hidden-too"], Model("m", "http://h/v1?version=1&key=hidden-too"), "") == ["***"]


def test_the_printed_endpoints_do_not_contain_the_key() -> None:
    assert KEY not in repr(Endpoints({"THE_KEY": KEY}))


def test_a_password_in_the_address_is_never_shown() -> None:
    call = Call(Model("m", "http://me:hidden-word@127.0.0.1:9/v1?api-key=hidden-too"), "draft", MESSAGES)
    found = Endpoints({}, max_retries=0).ask(call, Waiting().pause)
    assert found.unusable
    assert "hidden" not in f"{found!r} {call!r} {found.unusable} {found.unusable.hint}"


def limited(*steps: Step, tokens: int = 5_000) -> tuple[list[Answer], ScriptedEndpoint]:
    """Return the answers to calls whose replies the budget limits."""
    with ScriptedEndpoint(steps) as endpoint:
        call = Call(replace(PLAIN, base_url=endpoint.base_url), "draft", MESSAGES, reply_limit=tokens)
        chat = Endpoints({"THE_KEY": KEY}, 0)
        return [chat.ask(call, Waiting().pause) for _ in range(2)], endpoint


def test_the_limit_of_a_reply_by_the_budget_is_sent() -> None:
    _, endpoint = limited(HELLO, HELLO)
    assert sent(endpoint) == [{"max_tokens": 5_000}] * 2


def test_a_limit_beyond_the_models_own_is_not_sent_again() -> None:
    large = status(400, "max_tokens is too large: 5000. This model supports at most 4096.")
    found, endpoint = limited(large, status(400, "maximum context length is 4096"), HELLO, HELLO)
    assert [answer.text for answer in found] == ["hello", "hello"]
    assert sent(endpoint) == [{"max_tokens": 5_000}, {"max_completion_tokens": 5_000}, {}, {}]


def test_a_wait_is_reported_with_its_reason_until_it_is_over() -> None:
    told: list[tuple[str, str]] = []
    with ScriptedEndpoint(
        [status(429, "slow down", retry_after="7"), status(500, "broken", retry_after=""), HELLO]
    ) as endpoint:
        waiting = Waiting()
        chat = Endpoints({}, 4, lambda: RateLimit(waiting.clock), lambda key, text: told.append((key, text)))
        chat.ask(Call(replace(PLAIN, base_url=endpoint.base_url), "draft", MESSAGES), waiting.pause)
    assert len({key for key, _ in told}) == 1
    said = [text for _, text in told]
    assert [bool(text) for text in said] == [False, True, False, True, False]
    assert "scripted-1 again in 7 s: the request failed with status 429" in said[1]
    assert "slow down" in said[1]
    assert "429" not in said[1].partition("status 429")[2]  # openai's client repeats the status, which is removed
    assert "broken" in said[3]

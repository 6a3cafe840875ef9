"""Chat over HTTP with any endpoint that speaks OpenAI's chat completions, and what each of its errors means."""

import json
import os
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import openai

from archive.exchange import completion, storable
from evolve.errors import UserError
from evolve.prompting.compose import estimated_tokens
from evolve.proposers.llm.chat import Answer, Call, Pause, RateLimit, cost_of
from evolve.proposers.llm.models import MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME, Model

PASSING = frozenset({408, 409, 425, 429})  # and whatever is 500 or more
SPENT_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0
LONGEST_SECONDS = 900.0  # a server that wants to be left alone for longer is not waited for
REFUSES = re.compile(
    r"unsupported|not support|unknown|unrecogni[sz]ed|not permitted|not allowed|unexpected|extra inputs|deprecated"
)
OTHER_NAME = {MAX_TOKENS_NAME: OPENAI_MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME: MAX_TOKENS_NAME}


@dataclass(frozen=True)
class Fault:
    """Why a request brought no reply, and what may be done about it."""

    reason: str
    tries: int = 0  # how often it may be asked again
    wait_seconds: float | None = None  # as the server requested
    stops: str = ""  # what is wrong with the model or its address, where asking on is pointless
    hint: str = ""


def passing(status: int) -> bool:
    return status in PASSING or status >= 500


def requested_wait(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that a server asks for in Retry-After, as a number or as a date, or None."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) * unit
        except ValueError:
            seconds = _until(value, now) if value else -1.0
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def back_off(attempt: int, rng: random.Random) -> float:
    """Twice as long each time, and never the same for all who were refused together."""
    return min(FIRST_SECONDS * 2.0**attempt, MOST_SECONDS) * rng.uniform(0.5, 1.0)


def code_of(body: object, key: str) -> str:
    """A field of the error that a server sent, wherever it put it."""
    for place in (body, body.get("error") if isinstance(body, dict) else None):
        if isinstance(place, dict) and isinstance(place.get(key), str):
            return str(place[key])
    return ""


def refused_parameter(status: int, message: str, body: object, sent: Iterable[str]) -> str:
    """The parameter that a server does not know or does not want, of those that were sent, or nothing."""
    if status not in (400, 422):
        return ""
    said = message.lower()
    if not (REFUSES.search(said) or code_of(body, "code").startswith("unsupported")):
        return ""
    blamed = code_of(body, "param")
    # The longest first: one name is a part of another.
    names = sorted(sent, key=len, reverse=True)
    mentioned = sorted((name for name in names if re.search(rf"\b{name}\b", said)), key=said.index)
    return blamed if blamed in names else next(iter(mentioned), "")


def changed(parameters: Mapping[str, Any], learned: Mapping[str, str]) -> dict[str, Any]:
    """The parameters as this server takes them; what was learned maps a name to another one, or to nothing."""
    found = {}
    for name, value in parameters.items():
        kept = name
        while kept in learned:
            kept = learned[kept]
        if kept:
            found[kept] = value
    return found


def lesson(refused: str, learned: Mapping[str, str]) -> str:
    """What to send instead of a refused parameter: the other name of the same thing, once, or nothing."""
    other = OTHER_NAME.get(refused, "")
    return "" if other in learned else other


def _until(date: str, now: float) -> float:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return -1.0


MAX_REASON, SHORTEST_SECRET = 600, 4
SHORTEST_IN_REPLY = 8  # a local server's key is often a mere word or letter, which a kernel may well hold
TRIES, TRIES_AFTER_TIME_OUT = 99, 1  # as often as is allowed at all; waiting in vain is dear
# The causes of a failed connection are the HTTP library's own, which is httpx or httpx2: known by their names.
UNREACHABLE = frozenset({"ConnectError", "ConnectTimeout", "UnsupportedProtocol", "InvalidURL", "LocalProtocolError"})


def fault_of(error: Exception, model: Model, secret: str) -> Fault:
    """What it means that a request raised this."""
    reason = hidden(_reason(error), model, secret)
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, reason, model)
    if isinstance(error, openai.APIConnectionError) and type(error.__cause__).__name__ in UNREACHABLE:
        hint = "Check the address (OPENAI_BASE_URL, or what follows the @ of --model), and that the server is up."
        return Fault(reason, TRIES, stops=f"nobody answers at {model.endpoint}: {reason}", hint=hint)
    if isinstance(error, openai.APITimeoutError):
        return Fault(reason, TRIES_AFTER_TIME_OUT)
    connection = isinstance(error, openai.APIConnectionError) or not isinstance(error, openai.OpenAIError | ValueError)
    return Fault(reason, TRIES if connection else 0)


def hidden(text: str, model: Model, secret: str) -> str:
    """In one line and without secrets, which servers and libraries like to repeat."""
    text = storable(" ".join(text.split()))
    for one in _secrets(model, secret):
        text = text.replace(one, "***")
    text = re.sub(r"//[^/\s@]+@", "//", text)
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."


def scrubbed(said: Any, model: Model, secret: str) -> Any:
    """What a server said, decoded from JSON, without secrets; before it is shortened, which could cut one in two."""
    if isinstance(said, dict):
        return {scrubbed(key, model, secret): scrubbed(value, model, secret) for key, value in said.items()}
    if isinstance(said, list):
        return [scrubbed(value, model, secret) for value in said]
    if isinstance(said, str):
        for one in _secrets(model, secret):
            said = said.replace(one, "***") if len(one) >= SHORTEST_IN_REPLY else said
    return said


def _secrets(model: Model, key: str) -> list[str]:
    """The key, and what the address holds of the kind, the longest first: one may be a part of another."""
    parts = urlsplit(model.base_url)
    name, _, password = parts.netloc.rpartition("@")[0].partition(":")
    credential = password or name
    queried = [value for _, value in parse_qsl(parts.query)]
    found = {key, credential, unquote(credential), parts.query, *queried}
    return sorted((one for one in found if len(one) >= SHORTEST_SECRET), key=len, reverse=True)


def _of_status(error: openai.APIStatusError, reason: str, model: Model) -> Fault:
    status, where = error.status_code, model.endpoint
    variable = model.key_env or "a key (`key_env` in a .toml file names the variable that holds it)"
    if status in (401, 403):
        hint = f"Check {variable}, and that it may use this model."
        return Fault(reason, stops=f"{where} refused the key: {reason}", hint=hint)
    if status == 402 or code_of(error.body, "code") in SPENT_CODES:
        return Fault(reason, stops=f"{where} wants to be paid: {reason}", hint="Top up the account, or take another.")
    if status == 404:
        hint = "Name another with --model; an address usually ends in /v1."
        return Fault(reason, stops=f"{where} knows no model `{model.name}`: {reason}", hint=hint)
    if not passing(status):
        return Fault(reason)
    return Fault(reason, TRIES, requested_wait(error.response.headers, time.time()))


def _reason(error: Exception) -> str:
    if isinstance(error, openai.APITimeoutError):
        return "the model did not answer in time"
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__
        return f"the connection failed: {type(cause).__name__}: {cause}" if cause else "the connection failed"
    if isinstance(error, openai.APIStatusError):
        return f"the request failed with status {error.status_code}: {error.message}"
    if isinstance(error, ValueError | RecursionError):
        return f"the response is no JSON: {error}"
    return f"the request failed: {type(error).__name__}: {error}"


CONNECT_SECONDS, MAX_RETRIES, MAX_CHANGES = 10.0, 4, 6
PLACEHOLDER_KEY = "none"  # a local server wants no key, but the client insists on one


@dataclass(frozen=True)
class Endpoints:
    """The servers behind all models of a run; it remembers what each of them refused."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    max_retries: int = MAX_RETRIES
    window: Callable[[], RateLimit] = RateLimit
    _clients: dict[str, openai.OpenAI] = field(default_factory=dict, repr=False, compare=False)
    _windows: dict[str, RateLimit] = field(default_factory=dict, repr=False, compare=False)
    _learned: dict[str, dict[str, str]] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def ask(self, call: Call, pause: Pause) -> Answer:
        window, started = self._window(call.model), time.monotonic()
        tokens = estimated_tokens(call.messages) + (call.model.max_tokens or 0)
        key, asked, changes = secrets.token_hex(16), 0, 0
        rng = random.Random(key)
        while True:
            entry = window.enter(call.model, tokens, pause)
            parameters = changed(call.model.parameters, self._lessons(call.model))
            found = self._tried(call, parameters, f"{key}-{changes}")
            if isinstance(found, str):  # a parameter that this model refuses
                changes += 1
                continue
            if isinstance(found, Answer):
                entry.tokens = max(found.cost.tokens, 1)
                return replace(found, cost=replace(found.cost, seconds=time.monotonic() - started))
            entry.tokens = 0
            wait = found.wait_seconds
            if asked >= min(found.tries, self.max_retries) or (wait or 0.0) > LONGEST_SECONDS:
                return _given_up(found, parameters)
            if wait is not None:
                window.hold(wait)
            else:
                pause(back_off(asked, rng))
            asked += 1

    def _tried(self, call: Call, parameters: dict[str, Any], key: str) -> Answer | Fault | str:
        """An answer, why there is none, or the parameter without which it is to be asked again."""
        model, secret = call.model, self._key(call.model)
        conversation: Any = [{"role": message.role, "content": message.content} for message in call.messages]
        try:
            # The raw response, because the client's own reading of a malformed one differs between its versions.
            raw = self._client(model).chat.completions.with_raw_response.create(
                model=model.name,
                messages=conversation,
                extra_body=parameters,
                extra_headers={"Idempotency-Key": key},
            )
            text = raw.http_response.text
        except Exception as error:  # noqa: BLE001 - the HTTP library's own errors get through the client
            refused = _refused(error, parameters)
            if refused and self._learn(model, refused):
                return refused
            return fault_of(error, model, secret)
        return _answer(text, call, parameters, secret)

    def _client(self, model: Model) -> openai.OpenAI:
        with self._lock:
            if model.signature not in self._clients:
                seconds = model.timeout_seconds
                timeout = openai.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
                key = self._key(model) or PLACEHOLDER_KEY
                self._clients[model.signature] = openai.OpenAI(
                    base_url=model.base_url, api_key=key, timeout=timeout, max_retries=0
                )
            return self._clients[model.signature]

    def _key(self, model: Model) -> str:
        return self.environment.get(model.key_env, "").strip() if model.key_env else ""

    def _window(self, model: Model) -> RateLimit:
        with self._lock:
            return self._windows.setdefault(model.base_url, self.window())

    def _lessons(self, model: Model) -> dict[str, str]:
        with self._lock:
            return dict(self._learned.get(model.signature, {}))

    def _learn(self, model: Model, refused: str) -> bool:
        """Remember a refused parameter; whether the model is worth asking again."""
        with self._lock:
            learned = self._learned.setdefault(model.signature, {})
            learned.setdefault(refused, lesson(refused, learned))
            return len(learned) <= MAX_CHANGES


def first_model(base_url: str, key: str, seconds: float) -> str:
    """The first model that a server of one's own offers."""
    model = Model("", base_url)
    hint = "Name a model yourself with --model."
    try:
        with openai.OpenAI(
            base_url=base_url, api_key=key or PLACEHOLDER_KEY, timeout=min(seconds, 60.0), max_retries=2
        ) as client:
            listed = json.loads(client.models.with_raw_response.list().http_response.text)
    except Exception as error:  # noqa: BLE001 - the HTTP library's own errors get through the client
        fault = fault_of(error, model, key)
        if fault.stops and getattr(error, "status_code", 0) != 404:
            raise UserError(fault.stops, fault.hint) from None
        raise UserError(f"{model.endpoint} does not list its models: {fault.reason}", hint) from None
    models = listed.get("data") if isinstance(listed, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    name = first.get("id") if isinstance(first, dict) else None
    if not isinstance(name, str) or not name:
        raise UserError(f"{model.endpoint} offers no models", hint)
    return name


def _refused(error: Exception, parameters: Mapping[str, Any]) -> str:
    if not isinstance(error, openai.APIStatusError):
        return ""
    return refused_parameter(error.status_code, error.message, error.body, parameters)


def _answer(text: str, call: Call, parameters: Mapping[str, Any], secret: str) -> Answer:
    """What a response says. It is never asked for again, whatever it is: it may have been paid for."""
    sent = json.dumps(parameters, sort_keys=True)
    try:
        reply = completion(scrubbed(json.loads(text), call.model, secret))
    except (ValueError, RecursionError) as error:
        return Answer(failure=hidden(f"the response is no JSON: {error}", call.model, secret), parameters=sent)
    cost = cost_of(reply, call.messages, call.model.usd_per_million)
    return Answer(
        text=scrubbed(reply.text, call.model, secret),  # again: it may have come in parts
        failure=hidden(reply.failure, call.model, secret),
        cost=cost,
        parameters=sent,
        unpriced=bool(cost.tokens) and reply.usd is None and call.model.usd_per_million is None,
    )


def _given_up(fault: Fault, parameters: Mapping[str, Any]) -> Answer:
    stops = UserError(fault.stops, fault.hint) if fault.stops else None
    return Answer(failure=fault.reason, parameters=json.dumps(parameters, sort_keys=True), fault=stops)

"""HTTP endpoints: chat with any server that offers OpenAI's chat completions API, and handling of its errors."""

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
from evolve.prompting.text import estimated_tokens
from evolve.proposers.llm.chat import (
    Answer,
    Call,
    CancelledError,
    DeadlinePassedError,
    Pause,
    RateLimit,
    cost_of,
)
from evolve.proposers.llm.models import MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME, Model

CONNECT_SECONDS, LIST_SECONDS, MAX_RETRIES, MAX_CHANGES = 10.0, 10.0, 4, 6
LEAST_SECONDS = 0.05  # shortest time-out of a request, because 0 would mean none
MAX_BYTES = 1 << 25  # limit on a response; the rest of a longer one is not read
PLACEHOLDER_KEY = "none"  # a local server needs no key, but the client requires one
MAX_REASON, SHORTEST_SECRET = 600, 4  # lengths in characters
SHORTEST_IN_REPLY = 8  # a local server's key is often a short word that kernels contain too
# retries are also limited by `max_retries`; a timeout takes too long to repeat more than once
RETRIES, RETRIES_AFTER_TIME_OUT = 99, 1
# Class names, because the cause of a failed connection may be a class of httpx or of httpx2.
UNREACHABLE = frozenset({"ConnectError", "ConnectTimeout", "UnsupportedProtocol", "InvalidURL", "LocalProtocolError"})
TEMPORARY = frozenset({408, 409, 425, 429})  # temporary statuses, in addition to all from 500 up
SPENT_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0  # shortest and longest wait between retries
LONGEST_SECONDS = 900.0  # longest Retry-After that is respected
REFUSES = re.compile(
    r"unsupported|not support|unknown|unrecogni[sz]ed|not permitted|not allowed|unexpected|extra inputs|deprecated"
)
TOO_MANY_TOKENS = re.compile(r"max_tokens|max_completion_tokens|maximum context|context length")
OTHER_NAME = {MAX_TOKENS_NAME: OPENAI_MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME: MAX_TOKENS_NAME}


# called with a call's key and the reason why it waits, or with an empty text when the wait is over
Watch = Callable[[str, str], None]


def unwatched(_key: str, _reason: str) -> None:
    pass


@dataclass(frozen=True)
class Endpoints:
    """A chat with the servers of a run's models. It remembers which parameters each model refused."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    max_retries: int = MAX_RETRIES
    rate_limit: Callable[[], RateLimit] = RateLimit
    watch: Watch = unwatched
    _clients: dict[str, openai.OpenAI] = field(default_factory=dict, repr=False, compare=False)
    _rate_limits: dict[str, RateLimit] = field(default_factory=dict, repr=False, compare=False)
    _replacements: dict[str, dict[str, str]] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def ask(self, call: Call, pause: Pause) -> Answer:
        """Send a call without the parameters that the model refuses, and retry if a failure may be temporary."""
        rate_limit, started = self._rate_limit(call.model), time.monotonic()
        tokens = estimated_tokens(call.messages) + (call.reply_limit or call.model.max_tokens or 0)
        key, retries, changes = secrets.token_hex(16), 0, 0
        rng = random.Random(key)
        while True:
            try:
                sent = rate_limit.acquire(call.model, tokens, pause)
            finally:
                self.watch(key, "")
            parameters = accepted(call.parameters, self._replacements_for(call.model))
            found = self._send(call, parameters, f"{key}-{changes}", pause)
            if isinstance(found, str):  # the name of a parameter that the model refuses
                changes += 1
                continue
            if isinstance(found, Answer):
                sent.tokens = max(found.cost.tokens, 1)
                return replace(found, cost=replace(found.cost, seconds=time.monotonic() - started))
            sent.tokens = 0
            pause(0.0)  # raises after the deadline, when a fault is not the server's
            wait = found.wait_seconds
            if retries >= min(found.retries, self.max_retries) or (wait or 0.0) > LONGEST_SECONDS:
                return _failed(found, parameters)
            delay = back_off(retries, rng) if wait is None else wait
            self.watch(key, f"{call.model.signature} again in {max(delay, 1.0):.0f} s: {found.reason}")
            if wait is None:
                pause(delay)
            else:
                rate_limit.hold(delay)
            retries += 1

    def _send(self, call: Call, parameters: dict[str, Any], key: str, pause: Pause) -> "Answer | RequestFault | str":
        """Send one request. Return its answer, its fault, or the name of a parameter that the model refuses."""
        model, secret = call.model, self._key(call.model)
        conversation: Any = [{"role": message.role, "content": message.content} for message in call.messages]
        ends = min(time.monotonic() + model.timeout_seconds, call.deadline)
        try:
            # The raw response is read, because client versions differ in how they parse a malformed one.
            with self._client(model).chat.completions.with_streaming_response.create(
                model=model.name,
                messages=conversation,
                extra_body=parameters,
                extra_headers={"Idempotency-Key": key},
                timeout=_timeout(ends - time.monotonic()),
            ) as raw:
                text = _body(raw.iter_bytes(), ends, pause)
        except (CancelledError, DeadlinePassedError):
            raise
        except Exception as error:  # noqa: BLE001 - the client lets errors of the HTTP library through
            refused = _refused(error, call, parameters)
            if refused and self._replace(model, refused):
                return refused
            return fault_of(error, model, secret)
        return _answer(text, call, parameters, secret)

    def _client(self, model: Model) -> openai.OpenAI:
        with self._lock:
            if model.signature not in self._clients:
                key = self._key(model) or PLACEHOLDER_KEY
                self._clients[model.signature] = openai.OpenAI(base_url=model.base_url, api_key=key, max_retries=0)
            return self._clients[model.signature]

    def _key(self, model: Model) -> str:
        return self.environment.get(model.key_env, "").strip() if model.key_env else ""

    def _rate_limit(self, model: Model) -> RateLimit:
        with self._lock:
            return self._rate_limits.setdefault(model.base_url, self.rate_limit())

    def _replacements_for(self, model: Model) -> dict[str, str]:
        with self._lock:
            return dict(self._replacements.get(model.signature, {}))

    def _replace(self, model: Model, refused: str) -> bool:
        """Remember a refused parameter. Return whether to send the request again without it."""
        with self._lock:
            replacements = self._replacements.setdefault(model.signature, {})
            replacements.setdefault(refused, replacement(refused, replacements))
            return len(replacements) <= MAX_CHANGES


def first_model(base_url: str, key: str, seconds: float) -> str:
    """Return the name of the first model that a server lists."""
    model = Model("", base_url)
    hint = "Name a model with --model."
    try:
        with openai.OpenAI(
            base_url=base_url, api_key=key or PLACEHOLDER_KEY, timeout=min(seconds, LIST_SECONDS), max_retries=1
        ) as client:
            listed = json.loads(client.models.with_raw_response.list().http_response.text)
    except Exception as error:  # noqa: BLE001 - the client lets errors of the HTTP library through
        fault = fault_of(error, model, key)
        if fault.unusable and getattr(error, "status_code", 0) != 404:
            raise UserError(fault.unusable, fault.hint) from None
        raise UserError(f"{model.endpoint} does not list its models: {fault.reason}", hint) from None
    models = listed.get("data") if isinstance(listed, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    name = first.get("id") if isinstance(first, dict) else None
    if not isinstance(name, str) or not name:
        raise UserError(f"{model.endpoint} offers no models", hint)
    return name


def _timeout(seconds: float) -> openai.Timeout:
    seconds = max(seconds, LEAST_SECONDS)
    return openai.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))


class TooLongError(ValueError):
    """Raised when a response is longer than any useful one."""


def _body(chunks: Iterable[bytes], ends: float, pause: Pause) -> str:
    """Read a response. A server that sends a few bytes at intervals does not get more time than a silent server."""
    found = bytearray()
    for chunk in chunks:
        pause(0.0)
        found += chunk
        if len(found) > MAX_BYTES:
            raise TooLongError(f"the response is longer than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > ends:
            raise TimeoutError
    return found.decode(errors="replace")


def _answer(text: str, call: Call, parameters: Mapping[str, Any], secret: str) -> Answer:
    """Read a response. Even an unreadable response is not requested again, because it may have been paid for."""
    sent = json.dumps(parameters, sort_keys=True)
    try:
        reply = completion(redacted(json.loads(text), call.model, secret))
    except (ValueError, RecursionError) as error:
        return Answer(failure=redacted_line(f"the response is not JSON: {error}", call.model, secret), parameters=sent)
    cost = cost_of(reply, call.messages, call.model.usd_per_million)
    return Answer(
        # done again, because a secret may have been split into two parts
        text=redacted(reply.text, call.model, secret),
        failure=redacted_line(reply.failure, call.model, secret),
        cost=cost,
        parameters=sent,
        unpriced=bool(cost.tokens) and reply.usd is None and call.model.usd_per_million is None,
    )


def _failed(fault: "RequestFault", parameters: Mapping[str, Any]) -> Answer:
    unusable = UserError(fault.unusable, fault.hint) if fault.unusable else None
    return Answer(failure=fault.reason, parameters=json.dumps(parameters, sort_keys=True), unusable=unusable)


@dataclass(frozen=True)
class RequestFault:
    """The reason why a request got no reply, and whether to send it again."""

    reason: str
    retries: int = 0  # number of times that the request may be sent again
    wait_seconds: float | None = None  # time requested by the server
    unusable: str = ""  # the error of the model or its address, if every request would fail
    hint: str = ""


def fault_of(error: Exception, model: Model, secret: str) -> RequestFault:
    """Return the meaning of an error from the client for the request and for the model."""
    reason = redacted_line(_reason(error), model, secret)
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, reason, model)
    if isinstance(error, openai.APIConnectionError) and type(error.__cause__).__name__ in UNREACHABLE:
        hint = "Check the address (OPENAI_BASE_URL, or what follows the @ of --model), and that the server is up."
        return RequestFault(reason, RETRIES, unusable=f"no server answers at {model.endpoint}: {reason}", hint=hint)
    if _timed_out(error):
        return RequestFault(reason, RETRIES_AFTER_TIME_OUT)
    connection = isinstance(error, openai.APIConnectionError) or not isinstance(error, openai.OpenAIError | ValueError)
    return RequestFault(reason, RETRIES if connection else 0)


def _of_status(error: openai.APIStatusError, reason: str, model: Model) -> RequestFault:
    status, where = error.status_code, model.endpoint
    variable = model.key_env or "a key (`key_env` in a .toml file names the variable that holds it)"
    if status in (401, 403):
        hint = f"Check {variable}, and that it may use this model."
        return RequestFault(reason, unusable=f"{where} refused the key: {reason}", hint=hint)
    if status == 402 or code_of(error.body, "code") in SPENT_CODES:
        hint = "Top up the account, or use another account."
        return RequestFault(reason, unusable=f"{where} requires payment: {reason}", hint=hint)
    if status == 404:
        hint = "Name another model with --model, or check the address, which usually ends in /v1."
        return RequestFault(reason, unusable=f"{where} has no model `{model.name}`: {reason}", hint=hint)
    if not temporary(status):
        return RequestFault(reason)
    return RequestFault(reason, RETRIES, requested_wait(error.response.headers, time.time()))


def _timed_out(error: Exception) -> bool:
    return isinstance(error, openai.APITimeoutError | TimeoutError) or type(error).__name__.endswith("Timeout")


def _reason(error: Exception) -> str:
    if _timed_out(error):
        return "the model did not answer in time"
    if isinstance(error, openai.APIConnectionError) or type(error).__module__.startswith("httpx"):
        cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
        return f"the connection failed: {type(cause).__name__}: {cause}" if cause else "the connection failed"
    if isinstance(error, openai.APIStatusError):
        said = error.message.removeprefix(f"Error code: {error.status_code} - ")  # openai's client repeats the status
        return f"the request failed with status {error.status_code}: {said}"
    if isinstance(error, ValueError | RecursionError):
        return str(error) if isinstance(error, TooLongError) else f"the response is not JSON: {error}"
    return f"the request failed: {type(error).__name__}: {error}"


def temporary(status: int) -> bool:
    """Return whether a request that failed with this status may succeed later."""
    return status in TEMPORARY or status >= 500


def requested_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds to wait given by a Retry-After header, which holds a number or a date; None without one."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) * unit
        except ValueError:
            seconds = _until(value, now) if value else -1.0
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _until(date: str, now: float) -> float:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return -1.0


def back_off(attempt: int, rng: random.Random) -> float:
    """Return the seconds to wait before a retry. They double with each retry, with jitter."""
    return min(FIRST_SECONDS * 2.0**attempt, MOST_SECONDS) * rng.uniform(0.5, 1.0)


def code_of(body: object, key: str) -> str:
    """Return a field of the error that a server sent, at the top level or under `error`."""
    for place in (body, body.get("error") if isinstance(body, dict) else None):
        if isinstance(place, dict) and isinstance(place.get(key), str):
            return str(place[key])
    return ""


def _refused(error: Exception, call: Call, parameters: Mapping[str, Any]) -> str:
    if not isinstance(error, openai.APIStatusError):
        return ""
    if call.reply_limit and error.status_code in (400, 422) and TOO_MANY_TOKENS.search(error.message.lower()):
        # the budget would allow a longer reply than this model can give
        return next((name for name in OTHER_NAME if name in parameters), "")
    return refused_parameter(error.status_code, error.message, error.body, parameters)


def refused_parameter(status: int, message: str, body: object, sent: Iterable[str]) -> str:
    """Return which of the sent parameters the server rejects, or an empty string."""
    if status not in (400, 422):
        return ""
    text = message.lower()
    if not (REFUSES.search(text) or code_of(body, "code").startswith("unsupported")):
        return ""
    blamed = code_of(body, "param")
    # The longest first, because one name is part of another.
    names = sorted(sent, key=len, reverse=True)
    mentioned = sorted((name for name in names if re.search(rf"\b{name}\b", text)), key=text.index)
    return blamed if blamed in names else next(iter(mentioned), "")


def accepted(parameters: Mapping[str, Any], replacements: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters with their replacements: another name, or an empty name, which drops the parameter."""
    found = {}
    for name, value in parameters.items():
        kept = name
        while kept in replacements:
            kept = replacements[kept]
        if kept:
            found[kept] = value
    return found


def replacement(refused: str, replacements: Mapping[str, str]) -> str:
    """Return the other name of a refused parameter, or an empty string if there is none or it was refused too."""
    other = OTHER_NAME.get(refused, "")
    return "" if other in replacements else other


def redacted_line(text: str, model: Model, key: str) -> str:
    """Return the text on one line, without secrets, which servers and libraries tend to repeat."""
    text = storable(" ".join(text.split()))
    for secret in _secrets(model, key):
        text = text.replace(secret, "***")
    text = re.sub(r"//[^/\s@]+@", "//", text)
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."


def redacted(value: Any, model: Model, key: str) -> Any:
    """Return a decoded JSON value without secrets.

    Text may be shortened only afterwards, because shortening could cut a secret in two.
    """
    if isinstance(value, dict):
        return {redacted(name, model, key): redacted(item, model, key) for name, item in value.items()}
    if isinstance(value, list):
        return [redacted(item, model, key) for item in value]
    if isinstance(value, str):
        for secret in _secrets(model, key):
            value = value.replace(secret, "***") if len(secret) >= SHORTEST_IN_REPLY else value
    return value


def _secrets(model: Model, key: str) -> list[str]:
    """Return the key and the credentials in the address, longest first, because one may be part of another."""
    parts = urlsplit(model.base_url)
    name, _, password = parts.netloc.rpartition("@")[0].partition(":")
    credential = password or name
    queried = [value for _, value in parse_qsl(parts.query)]
    found = {key, credential, unquote(credential), parts.query, *queried}
    return sorted((secret for secret in found if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)

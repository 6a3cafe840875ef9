"""Chat over HTTP with any endpoint that speaks OpenAI's chat completions.

The client is OpenAI's; what to do about a fault is decided here, because it asks again in fewer cases than servers
wish for, and nothing may be paid for twice.
"""

import json
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import openai

from archive.exchange import completion
from evolve.errors import UserError
from evolve.prompting.compose import estimated_tokens
from evolve.proposers.llm import faults
from evolve.proposers.llm.chat import Answer, Call, cost_of
from evolve.proposers.llm.endpoint_faults import fault_of, hidden, scrubbed
from evolve.proposers.llm.faults import Fault
from evolve.proposers.llm.limits import Pause, Window
from evolve.proposers.llm.models import Model

CONNECT_SECONDS, MAX_RETRIES, MAX_CHANGES = 10.0, 4, 6
PLACEHOLDER_KEY = "none"  # a local server wants no key, but the client insists on one


@dataclass(frozen=True)
class Endpoints:
    """The servers behind all models of a run; it remembers what each of them refused."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    max_retries: int = MAX_RETRIES
    window: Callable[[], Window] = Window
    _clients: dict[str, openai.OpenAI] = field(default_factory=dict, repr=False, compare=False)
    _windows: dict[str, Window] = field(default_factory=dict, repr=False, compare=False)
    _learned: dict[str, dict[str, str]] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def ask(self, call: Call, pause: Pause) -> Answer:
        window, started = self._window(call.model), time.monotonic()
        tokens = estimated_tokens(call.messages) + (call.model.max_tokens or 0)
        key, asked, changes = secrets.token_hex(16), 0, 0
        rng = random.Random(key)
        while True:
            entry = window.enter(call.model, tokens, pause)
            parameters = faults.changed(call.model.parameters, self._lessons(call.model))
            found = self._tried(call, parameters, f"{key}-{changes}")
            if isinstance(found, str):  # a parameter that this model refuses
                changes += 1
                continue
            if isinstance(found, Answer):
                entry.tokens = max(found.cost.tokens, 1)
                return replace(found, cost=replace(found.cost, seconds=time.monotonic() - started))
            entry.tokens = 0
            wait = found.wait_seconds
            if asked >= min(found.tries, self.max_retries) or (wait or 0.0) > faults.LONGEST_SECONDS:
                return _given_up(found, parameters)
            if wait is not None:
                window.hold(wait)
            else:
                pause(faults.back_off(asked, rng))
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

    def _window(self, model: Model) -> Window:
        with self._lock:
            return self._windows.setdefault(model.base_url, self.window())

    def _lessons(self, model: Model) -> dict[str, str]:
        with self._lock:
            return dict(self._learned.get(model.signature, {}))

    def _learn(self, model: Model, refused: str) -> bool:
        """Remember a refused parameter; whether the model is worth asking again."""
        with self._lock:
            learned = self._learned.setdefault(model.signature, {})
            learned.setdefault(refused, faults.lesson(refused, learned))
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
    return faults.refused_parameter(error.status_code, error.message, error.body, parameters)


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

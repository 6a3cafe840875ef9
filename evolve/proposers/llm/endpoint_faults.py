"""The errors of OpenAI's client, and of the HTTP library below it, as faults in words without secrets."""

import re
import time
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import openai

from archive.exchange import storable
from evolve.proposers.llm import faults
from evolve.proposers.llm.faults import Fault
from evolve.proposers.llm.models import Model

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
    if status == 402 or faults.code_of(error.body, "code") in faults.SPENT_CODES:
        return Fault(reason, stops=f"{where} wants to be paid: {reason}", hint="Top up the account, or take another.")
    if status == 404:
        hint = "Name another with --model; an address usually ends in /v1."
        return Fault(reason, stops=f"{where} knows no model `{model.name}`: {reason}", hint=hint)
    if not faults.passing(status):
        return Fault(reason)
    return Fault(reason, TRIES, faults.wished_wait(error.response.headers, time.time()))


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

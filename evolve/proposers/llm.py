"""Kernels from a language model behind any endpoint that speaks OpenAI's chat completions.

A request that fails becomes a Proposal that says why. Only what makes every further request pointless
(a wrong key, an unknown model, nobody at the address) is an error, the user's to put right.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import openai

from archive.exchange import BatchReply, completion
from archive.proposals import Cost, Proposal
from evolve.errors import UserError
from evolve.prompting.compose import Message, ask_again
from evolve.proposers.asking import Ask, asks, reference_source
from evolve.proposers.in_flight import answers
from evolve.proposers.proposer import Request
from evolve.proposers.reply import proposal_from, without_thoughts

DEFAULT_MODEL, OPENAI_URL = "gpt-5", "https://api.openai.com/v1"
TIMEOUT_SECONDS, CONNECT_SECONDS, MAX_RETRIES, CONCURRENCY = 600.0, 10.0, 4, 4
PLACEHOLDER_KEY = "none"  # a local server wants no key, but the client insists on one
MAX_FAILURE = 600
# The causes of a failed connection are the HTTP library's own, which is httpx or httpx2: known by their names.
UNREACHABLE = frozenset({"ConnectError", "ConnectTimeout", "UnsupportedProtocol", "InvalidURL", "LocalProtocolError"})


@dataclass(frozen=True)
class LlmProposer:
    """Asks a language model, several requests at a time."""

    model: str
    base_url: str
    api_key: str = field(repr=False)
    concurrency: int = CONCURRENCY
    timeout_seconds: float = TIMEOUT_SECONDS
    max_retries: int = MAX_RETRIES

    @property
    def name(self) -> str:
        return self.model

    def propose(self, request: Request) -> Iterator[Proposal]:
        questions = asks(request, reference_source(request.op))
        unreached: list[_Answered] = []
        with _client(self.base_url, self.api_key, self.timeout_seconds, self.max_retries) as client:
            chat = _Chat(client, self.model, self.base_url, self.api_key)
            replies = answers(questions, lambda ask: chat.answer(ask, request), self.concurrency)
            with closing(replies):
                for answered in replies:
                    if answered.reached:
                        yield from answered.proposals
                    else:
                        unreached.append(answered)
        if unreached and len(unreached) == len(questions):
            raise _unreachable(self.base_url, unreached[0].proposals[0].failure)
        for answered in unreached:
            yield from answered.proposals


def from_environment(wished: str = "", environment: Mapping[str, str] = os.environ) -> LlmProposer:
    """The proposer that OPENAI_BASE_URL, OPENAI_API_KEY and EVOLVE_LLM_TIMEOUT describe."""
    base_url, key = environment.get("OPENAI_BASE_URL", "").strip(), environment.get("OPENAI_API_KEY", "").strip()
    if not base_url and not key:
        raise UserError(
            "no language model is configured",
            "Set OPENAI_API_KEY, or OPENAI_BASE_URL for any other OpenAI-compatible server "
            "(such as http://localhost:8000/v1).",
        )
    if base_url and not re.match(r"https?://[^\s/]", base_url):
        raise UserError(f"OPENAI_BASE_URL is no address: {base_url!r}", "It looks like http://localhost:8000/v1.")
    if not key.isascii() or any(character.isspace() or not character.isprintable() for character in key):
        raise UserError("OPENAI_API_KEY holds characters that no key has", "Copy the key again, without line breaks.")
    timeout = _timeout(environment.get("EVOLVE_LLM_TIMEOUT", ""))
    model = choose_model(base_url, key, wished)
    return LlmProposer(model, base_url or OPENAI_URL, key or PLACEHOLDER_KEY, timeout_seconds=timeout)


def choose_model(base_url: str, key: str, wished: str) -> str:
    """The wished model, else the first that a server of one's own offers, else a default."""
    if wished or not base_url:
        return wished or DEFAULT_MODEL
    hint = "Name a model yourself with --model."
    try:
        with _client(base_url, key or PLACEHOLDER_KEY, TIMEOUT_SECONDS / 10, 2) as client:
            listed = json.loads(client.models.with_raw_response.list().http_response.text)
    except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
        raise _refused(base_url, error, key) from None
    except openai.APIConnectionError as error:
        raise _unreachable(base_url, _reason(error, key)) from None
    except (openai.OpenAIError, ValueError) as error:
        raise UserError(f"{_shown(base_url)} does not list its models: {_reason(error, key)}", hint) from None
    models = listed.get("data") if isinstance(listed, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    name = first.get("id") if isinstance(first, dict) else None
    if not isinstance(name, str) or not name:
        raise UserError(f"{_shown(base_url)} offers no models", hint)
    return name


class _UnreachableError(Exception):
    """Nobody answered at the address."""


@dataclass(frozen=True)
class _Answered:
    """What a question led to: one proposal, or a failed reply and what came of its second chance."""

    proposals: tuple[Proposal, ...]
    reached: bool = True


@dataclass(frozen=True)
class _Chat:
    """A model at an address, asked one question at a time."""

    client: openai.OpenAI
    model: str
    base_url: str
    api_key: str = field(repr=False)

    def answer(self, ask: Ask, request: Request) -> _Answered:
        try:
            first, complete = self._proposal(ask, ask.messages, request)
        except _UnreachableError as error:
            return _Answered((replace(self._origin(ask, request), failure=str(error)),), reached=False)
        if first.kernel or not complete:
            return _Answered((first,))
        # A second chance, just one, for a reply that cannot be read.
        messages = (*ask.messages, *ask_again(without_thoughts(first.reply), first.failure))
        try:
            second, _ = self._proposal(ask, messages, request)
        except _UnreachableError:
            return _Answered((first,))
        return _Answered((first, second))

    def _proposal(self, ask: Ask, messages: tuple[Message, ...], request: Request) -> tuple[Proposal, bool]:
        """What one exchange gave, and whether the model had its say in full."""
        started = time.monotonic()
        reply = self._complete(messages)
        cost = Cost(reply.prompt_tokens, reply.completion_tokens, time.monotonic() - started)
        origin = replace(self._origin(ask, request), cost=cost)
        if reply.failure:
            return replace(origin, reply=reply.text, failure=reply.failure), False
        return proposal_from(reply.text, request.op, origin), True

    def _origin(self, ask: Ask, request: Request) -> Proposal:
        return Proposal(request.op.name, ask.operator, self.model, None, ask.parents, request.run, created=time.time())

    def _complete(self, messages: tuple[Message, ...]) -> BatchReply:
        conversation: Any = [{"role": message.role, "content": message.content} for message in messages]
        try:
            # The raw response, because the client's own reading of a malformed one differs between its versions.
            raw = self.client.chat.completions.with_raw_response.create(model=self.model, messages=conversation)
            return completion(json.loads(raw.http_response.text))
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise _refused(self.base_url, error, self.api_key) from None
        except openai.NotFoundError as error:
            raise UserError(
                f"{_shown(self.base_url)} knows no model `{self.model}`: {_reason(error, self.api_key)}",
                "Name another with --model; an OPENAI_BASE_URL usually ends in /v1.",
            ) from None
        except openai.APIConnectionError as error:
            if type(error.__cause__).__name__ in UNREACHABLE:
                raise _UnreachableError(_reason(error, self.api_key)) from None
            return BatchReply(failure=_reason(error, self.api_key))
        except (openai.OpenAIError, ValueError, RecursionError) as error:
            return BatchReply(failure=_reason(error, self.api_key))
        except Exception as error:  # noqa: BLE001 - errors of the HTTP library that the client lets through
            return BatchReply(failure=_reason(error, self.api_key))


def _client(base_url: str, key: str, timeout_seconds: float, max_retries: int) -> openai.OpenAI:
    timeout = openai.Timeout(timeout_seconds, connect=min(timeout_seconds, CONNECT_SECONDS))
    return openai.OpenAI(base_url=base_url, api_key=key, timeout=timeout, max_retries=max_retries)


def _timeout(text: str) -> float:
    try:
        seconds = float(text or TIMEOUT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UserError(f"EVOLVE_LLM_TIMEOUT is no number of seconds: {text!r}", "Set it to a number such as 120.")
    return seconds


def _reason(error: BaseException, key: str) -> str:
    """What went wrong, in one line and without secrets, which servers and libraries like to repeat."""
    if isinstance(error, openai.APITimeoutError):
        text = "the model did not answer in time"
    elif isinstance(error, openai.APIConnectionError):
        cause = error.__cause__
        text = f"the connection failed: {type(cause).__name__}: {cause}" if cause else "the connection failed"
    elif isinstance(error, openai.APIStatusError):
        text = f"the request failed with status {error.status_code}: {error.message}"
    elif isinstance(error, ValueError | RecursionError):
        text = f"the response is no JSON: {error}"
    else:
        text = f"the request failed: {type(error).__name__}: {error}"
    text = " ".join(text.split())
    if key not in ("", PLACEHOLDER_KEY):
        text = text.replace(key, "***")
    text = re.sub(r"//[^/\s@]+@", "//", text)
    return text if len(text) <= MAX_FAILURE else f"{text[:MAX_FAILURE]}..."


def _shown(base_url: str) -> str:
    """The address without a name and password, and without a query, where some servers want the key."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _unreachable(base_url: str, reason: str) -> UserError:
    return UserError(
        f"nobody answers at {_shown(base_url)}: {reason}",
        "Check OPENAI_BASE_URL, and that the server is up and can be reached from here.",
    )


def _refused(base_url: str, error: openai.APIStatusError, key: str) -> UserError:
    return UserError(
        f"{_shown(base_url)} refused the key: {_reason(error, key)}",
        "Check OPENAI_API_KEY, and that it may use this model.",
    )

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
from archive.records import Cost, Proposal
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
    base_url: str = OPENAI_URL
    api_key: str = field(default=PLACEHOLDER_KEY, repr=False)
    concurrency: int = CONCURRENCY
    timeout_seconds: float = TIMEOUT_SECONDS
    max_retries: int = MAX_RETRIES

    @property
    def name(self) -> str:
        return self.model

    def propose(self, request: Request) -> Iterator[Proposal]:
        questions = asks(request, reference_source(request.op))
        unreached: list[_UnreachableError] = []
        with _client(self.base_url, self.api_key, self.timeout_seconds, self.max_retries) as client:

            def converse(ask: Ask) -> Proposal | _UnreachableError:
                origin = Proposal(
                    request.op.name, ask.operator, self.model, None, ask.parents, request.run, created=time.time()
                )
                try:
                    return self._converse(client, ask, request, origin)
                except _UnreachableError as error:
                    return error.about(origin)

            with closing(_replies(questions, converse, self.concurrency)) as replies:
                for reply in replies:
                    if isinstance(reply, Proposal):
                        yield reply
                    else:
                        unreached.append(reply)
        if unreached and len(unreached) == len(questions):
            raise _unreachable(self.base_url, unreached[0])
        for error in unreached:
            yield error.proposal

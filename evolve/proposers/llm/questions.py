"""Which model to ask, by which operator, with which words: the same for live models and for a batch."""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from archive.exchange import encode_custom_id, request_line
from archive.kernel import Kernel
from evolve.prompting.compose import Message, answer_form, ask_again, compose
from evolve.proposers.llm import bandit, openings
from evolve.proposers.llm.chat import Call
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.reply import without_thoughts
from evolve.request import Candidate, Request

NONCE_CHARACTERS = 7  # with two parents there is no room for more in the id of a batch request


@dataclass(frozen=True)
class Ask:
    """One question: to whom, the operator, what it is applied to, and the words."""

    model: Model
    operator: str
    parents: tuple[str, ...]
    messages: tuple[Message, ...]
    nonce: str  # tells it from every other question of the run
    kernels: tuple[Kernel, ...] = ()  # the parents, which edits in the reply are meant for
    again: bool = False  # it follows a reply that could not be read

    @property
    def call(self) -> Call:
        return Call(self.model, self.operator, self.messages)

    def once_more(self, reply: str, failure: str) -> "Ask":
        """The same conversation with a request for what the reply lacks."""
        form = answer_form(self.operator, self.model.form)
        messages = (*self.messages, *ask_again(without_thoughts(reply), failure, form))
        return replace(self, messages=messages, nonce=_nonce(self.nonce, "again"), again=True)


def asks(request: Request, models: Sequence[Model], reference_source: str) -> tuple[Ask, ...]:
    """Up to `request.wanted` questions, chosen as the request's seed and what became of earlier ones have it."""
    rng = random.Random(request.seed)
    by_signature = {model.signature: model for model in models}
    arms = [(signature, operator) for signature in by_signature for operator in openings.operators(request)]
    chosen = bandit.choose(arms, request.trials, max(request.wanted, 0), rng, openings.most(request))
    turns = Counter[str]()
    found = []
    for index, (signature, operator) in enumerate(chosen):
        parents = openings.parents(request, operator, turns[operator], rng)
        turns[operator] += 1
        found.append(asked(request, by_signature[signature], operator, parents, reference_source, index))
    return tuple(found)


def asked(
    request: Request, model: Model, operator: str, parents: tuple[Candidate, ...], reference_source: str, index: int
) -> Ask:
    """One question; `index` tells it from the request's others."""
    kernels = tuple(parent.kernel for parent in parents)
    messages = compose(request, operator, parents, reference_source, model.form, model.prompt_tokens)
    nonce = _nonce(request.run, request.seed, index)
    return Ask(model, operator, tuple(kernel.id for kernel in kernels), messages, nonce, kernels)


def requests(request: Request, models: Sequence[Model], reference_source: str) -> Iterator[str]:
    """The same questions as lines of a Batch API input file."""
    return (line(request.op.name, ask) for ask in asks(request, models, reference_source))


def line(op: str, ask: Ask) -> str:
    """A question as a line of a Batch API input file."""
    custom_id = encode_custom_id(op, ask.operator, ask.parents, ask.nonce)
    messages = [(message.role, message.content) for message in ask.messages]
    return request_line(custom_id, ask.model.name, messages, ask.model.parameters)


def _nonce(*parts: object) -> str:
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:NONCE_CHARACTERS]

"""Kernels from language models: choose whom to ask what, ask, and read what they say.

A request that fails becomes a Proposal that says why. Only when no model at all can be asked is it an error, the
user's to put right. A reply that arrived is passed on whatever became of the others: it was paid for.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, MutableSequence, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from archive.proposals import Proposal, Question
from evolve.errors import UserError
from evolve.proposers.llm import model_words
from evolve.proposers.llm.chat import UNUSABLE, Answer, Chat
from evolve.proposers.llm.endpoint import Endpoints, first_model
from evolve.proposers.llm.in_flight import answers
from evolve.proposers.llm.limits import Pause, TimeUpError, until
from evolve.proposers.llm.models import DEFAULT_MODEL, OPENAI_URL, Model, price_hint
from evolve.proposers.llm.purse import Purse
from evolve.proposers.llm.questions import Ask, asks
from evolve.proposers.llm.reference_text import reference_source
from evolve.proposers.llm.reply import proposal_from
from evolve.request import Request

__all__ = ["DEFAULT_MODEL", "LlmProposer", "from_environment"]

Flight = Callable[
    [MutableSequence[Ask], Callable[[Ask, Pause], Answer], Callable[[Ask, Sequence[Ask]], bool]],
    Generator[tuple[Ask, Answer], None, None],
]
SILENT = 32  # questions in a row without a word or a token in answer, after which it is not worth asking on


@dataclass(frozen=True)
class LlmProposer:
    """Asks language models, several questions at a time."""

    models: tuple[Model, ...]
    chat: Chat
    flight: Flight = answers  # how several questions are under way, and in what order their answers come
    _unusable: dict[str, UserError] = field(default_factory=dict, repr=False, compare=False)  # by signature
    _silent: list[str] = field(default_factory=list, repr=False, compare=False)  # why there was no answer, each time

    @property
    def name(self) -> str:
        return ", ".join(model.signature for model in self.models)

    def propose(self, request: Request) -> Iterator[Proposal]:
        waiting = deque(asks(request, self.models, reference_source(request.op)))
        purse, out = Purse(request.left), dict[str, Proposal]()  # by signature: who cannot be asked any more
        purse.learn(request.trials)
        unpriced, answered = "", 0

        def may_start(ask: Ask, running: Sequence[Ask]) -> bool:
            usable = ask.model.signature not in out and _in_time(request, answered + len(running))
            return usable and _has_room(ask, running) and purse.admits(ask.call, [one.call for one in running])

        def in_time(ask: Ask, pause: Pause) -> Answer:
            return self._answer(ask, until(request.left.deadline, pause))

        with closing(self.flight(waiting, in_time, may_start)) as found:
            for ask, answer in found:
                signature, proposal = ask.model.signature, _proposal(ask, answer, request)
                answered += 1
                purse.pay(signature, answer.cost)
                if answer.fault:
                    self._unusable[signature] = answer.fault
                    out.setdefault(signature, proposal)
                    continue
                if not answer.failure:
                    self._unusable.pop(signature, None)
                self._listen(answer)
                unpriced = unpriced or (signature if answer.unpriced and request.left.usd is not None else "")
                # A second chance, just one, for a reply that cannot be read.
                if not (proposal.kernel or answer.failure or ask.again):
                    waiting.appendleft(ask.once_more(proposal.reply, proposal.failure))
                yield proposal
        if out and all(model.signature in self._unusable for model in self.models):
            raise self._unusable[self.models[0].signature]
        yield from out.values()
        if unpriced:
            raise UserError(f"{unpriced} does not say what it costs, so no limit in USD can be kept", price_hint())
        self._check_answered()

    def _answer(self, ask: Ask, pause: Pause) -> Answer:
        try:
            return self.chat.ask(ask.call, pause)
        except TimeUpError:
            return Answer(failure="the time was up before an answer came")

    def _check_answered(self) -> None:
        """Without this a run that is limited in tokens alone would ask for ever."""
        if len(self._silent) < SILENT:
            return
        why = self._silent[-1]
        self._silent.clear()
        raise UserError(
            f"{self.name} answered none of the last {SILENT} questions: {why}",
            "`evolve run --resume last` goes on, once that is put right.",
        )

    def _listen(self, answer: Answer) -> None:
        if answer.text or answer.cost.tokens:
            self._silent.clear()
        else:
            self._silent.append(answer.failure)


def from_environment(words: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> LlmProposer:
    """The models meant by what was typed after `--model`, and else by OPENAI_BASE_URL and OPENAI_API_KEY."""
    models = model_words.read(words, environment)
    key = environment.get(model_words.KEY_ENV, "").strip()
    own = environment.get(model_words.URL_ENV, "").strip()
    if not key and any(model.key_env == model_words.KEY_ENV and model.base_url == OPENAI_URL for model in models):
        raise UserError(
            "no language model is configured",
            "Set OPENAI_API_KEY, or OPENAI_BASE_URL for any other OpenAI-compatible server "
            "(such as http://localhost:8000/v1).",
        )
    model_words.check_keys(models, environment)
    if not words and own:
        (usual,) = models
        models = (replace(usual, name=first_model(usual.base_url, key, usual.timeout_seconds)),)
    return LlmProposer(models, Endpoints(environment))


def _has_room(ask: Ask, running: Sequence[Ask]) -> bool:
    return sum(one.model.base_url == ask.model.base_url for one in running) < ask.model.concurrency


def _in_time(request: Request, asked: int) -> bool:
    """Whether one more question may be asked, as far as time and the number of proposals go."""
    evals, deadline = request.left.evals, request.left.deadline
    return time.monotonic() < deadline and (evals is None or asked < evals)


def _proposal(ask: Ask, answer: Answer, request: Request) -> Proposal:
    conversation = tuple((message.role, message.content) for message in ask.messages)
    origin = Proposal(
        request.op.name,
        ask.operator,
        ask.model.signature,
        None,
        ask.parents,
        request.run,
        cost=answer.cost,
        created=time.time(),
        call=ask.nonce,
        question=Question(ask.model.name, ask.model.endpoint, answer.parameters, conversation),
    )
    if answer.fault:
        return replace(origin, failure=f"{UNUSABLE}{answer.fault}")
    if answer.failure:
        return replace(origin, reply=answer.text, failure=answer.failure)
    return proposal_from(answer.text, request.op, origin, ask.kernels)

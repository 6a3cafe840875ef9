"""The LLM proposer: it asks language models, several prompts at a time, within the run's spending limits."""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from archive.proposals import Cost, Proposal, Question
from evolve.errors import UserError
from evolve.prompting.operators import DESIGNS
from evolve.prompting.text import estimated_tokens
from evolve.proposers.llm import models as model_words
from evolve.proposers.llm.chat import (
    UNUSABLE,
    Answer,
    Call,
    Chat,
    DeadlinePassedError,
    Pause,
    ask_concurrently,
    pause_until,
)
from evolve.proposers.llm.endpoint import Endpoints, first_model
from evolve.proposers.llm.models import OPENAI_URL, Model, price_hint
from evolve.proposers.llm.questions import Prompt, drafts, opening, reference_source
from evolve.proposers.llm.reply import proposal_from
from evolve.request import Left, Request, Trial

MOST_UNANSWERED = 32  # prompts in a row without any answer, after which the run stops

Dispatch = Callable[
    [MutableSequence[Prompt], Callable[[Prompt, Pause], Answer], Callable[[Prompt, Sequence[Prompt]], bool]],
    Generator[tuple[Prompt, Answer], None, None],
]


@dataclass(frozen=True)
class LlmProposer:
    """A proposer that asks language models, several prompts at a time."""

    models: tuple[Model, ...]
    chat: Chat
    dispatch: Dispatch = ask_concurrently  # sends prompts and yields answers; a replay keeps the recorded order
    _unusable: dict[str, UserError] = field(default_factory=dict, repr=False, compare=False)  # by signature
    _unanswered: list[str] = field(default_factory=list, repr=False, compare=False)  # why, since the last answer

    @property
    def name(self) -> str:
        return ", ".join(model.signature for model in self.models)

    def propose(self, request: Request) -> Iterator[Proposal]:
        """Send the prompts for a request, and yield a proposal for each answer as it arrives.

        A reply that cannot be read gets one follow-up prompt. A UserError ends the run if no model can be used.
        """
        waiting = deque(opening(request, self.models, reference_source(request.op)))
        limit, excluded = SpendingLimit(request.left), dict[str, Proposal]()  # the models that failed, by signature
        limit.learn(request.trials)
        unpriced, answered = "", 0

        def may_start(prompt: Prompt, running: Sequence[Prompt]) -> bool:
            usable = prompt.model.signature not in excluded and _in_time(request, answered + len(running))
            return usable and _has_room(prompt, running) and limit.admits(prompt.call, [one.call for one in running])

        def ask(prompt: Prompt, pause: Pause) -> Answer:
            return self._ask(prompt, pause_until(request.left.deadline, pause))

        with closing(self.dispatch(waiting, ask, may_start)) as found:
            for prompt, answer in found:
                signature, proposal = prompt.model.signature, _proposal(prompt, answer, request)
                answered += 1
                limit.pay(signature, answer.cost)
                self._follow_up(prompt, answer, proposal, request, waiting)
                if answer.unusable:
                    self._unusable[signature] = answer.unusable
                    excluded.setdefault(signature, proposal)
                    continue
                if not answer.failure:
                    self._unusable.pop(signature, None)
                self._count_unanswered(answer)
                unpriced = unpriced or (signature if answer.unpriced and request.left.usd is not None else "")
                yield proposal
        if excluded and all(model.signature in self._unusable for model in self.models):
            raise self._unusable[self.models[0].signature]
        yield from excluded.values()
        if unpriced:
            raise UserError(
                f"{unpriced} does not report what it costs, so a limit in USD cannot be enforced", price_hint()
            )
        self._check_answered()

    def _follow_up(
        self, prompt: Prompt, answer: Answer, proposal: Proposal, request: Request, waiting: deque[Prompt]
    ) -> None:
        """Add the prompts that follow from an answer: drafts of designs, or a second try at an unreadable kernel."""
        if prompt.operator == DESIGNS:
            waiting.extend(drafts(request, self.models, reference_source(request.op), prompt, answer.text))
        elif not (proposal.kernel or answer.failure or answer.unusable or prompt.again):
            waiting.appendleft(prompt.once_more(proposal.reply, proposal.failure))

    def _ask(self, prompt: Prompt, pause: Pause) -> Answer:
        try:
            return self.chat.ask(prompt.call, pause)
        except DeadlinePassedError:
            return Answer(failure="the deadline passed before an answer arrived")

    def _count_unanswered(self, answer: Answer) -> None:
        if answer.text or answer.cost.tokens:
            self._unanswered.clear()
        else:
            self._unanswered.append(answer.failure)

    def _check_answered(self) -> None:
        """Raise a UserError after too many unanswered prompts, because a limit in tokens would never end the run."""
        if len(self._unanswered) < MOST_UNANSWERED:
            return
        reason = self._unanswered[-1]
        self._unanswered.clear()
        raise UserError(
            f"{self.name} answered none of the last {MOST_UNANSWERED} questions: {reason}",
            "`evolve run --resume last` continues the run once the cause is removed.",
        )


def from_environment(words: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> LlmProposer:
    """Return the proposer for the models given by `--model`, or by OPENAI_BASE_URL and OPENAI_API_KEY."""
    models = model_words.read_models(words, environment)
    key = environment.get(model_words.KEY_ENV, "").strip()
    server = environment.get(model_words.URL_ENV, "").strip()
    if not key and any(model.key_env == model_words.KEY_ENV and model.base_url == OPENAI_URL for model in models):
        raise UserError(
            "no language model is configured",
            "Set OPENAI_API_KEY, or OPENAI_BASE_URL for any other OpenAI-compatible server "
            "(such as http://localhost:8000/v1).",
        )
    model_words.check_keys(models, environment)
    if not words and server:
        (default,) = models
        models = (replace(default, name=first_model(default.base_url, key, default.timeout_seconds)),)
    return LlmProposer(models, Endpoints(environment))


def _has_room(prompt: Prompt, running: Sequence[Prompt]) -> bool:
    return sum(one.model.base_url == prompt.model.base_url for one in running) < prompt.model.concurrency


def _in_time(request: Request, asked: int) -> bool:
    """Return whether the deadline and the budget of evaluations allow one more prompt."""
    evals, deadline = request.left.evals, request.left.deadline
    return time.monotonic() < deadline and (evals is None or asked < evals)


def _proposal(prompt: Prompt, answer: Answer, request: Request) -> Proposal:
    conversation = tuple((message.role, message.content) for message in prompt.messages)
    origin = Proposal(
        request.op.name,
        prompt.operator,
        prompt.model.signature,
        None,
        prompt.parents,
        request.run,
        cost=answer.cost,
        created=time.time(),
        call=prompt.nonce,
        question=Question(prompt.model.name, prompt.model.endpoint, answer.parameters, conversation),
    )
    if answer.unusable:
        return replace(origin, failure=f"{UNUSABLE}{answer.unusable}")
    if answer.failure:
        return replace(origin, reply=answer.text, failure=answer.failure)
    if prompt.operator == DESIGNS:
        return replace(origin, reply=answer.text)  # not a failure: it was not asked for a kernel
    return proposal_from(answer.text, request.op, origin, prompt.kernels)


MARGIN = 2.0  # a reply is assumed to be at most this many times as long as the longest so far
LEAST_REPLY = 8_192  # tokens that are reserved for a reply even if earlier ones were shorter
DEARER = 8.0  # highest ratio of the prices of a completion token and a prompt token at any provider
UNKNOWN = float("inf")


@dataclass
class SpendingLimit:
    """A limit that admits a prompt if all prompts in flight stay within it, or if the prompt is alone.

    It is therefore exceeded by one reply at most, unless a reply is longer than expected.
    """

    left: Left
    longest: dict[str, int] = field(default_factory=dict)  # tokens of the longest reply, by signature
    dearest: dict[str, float] = field(default_factory=dict)  # highest price in USD per token, by signature
    tokens: int = 0  # spent so far, like `usd`
    usd: float = 0.0

    def learn(self, trials: Iterable[Trial]) -> None:
        """Take the costs of earlier replies into account."""
        for trial in trials:
            self._see(trial.proposer, trial.cost)

    def pay(self, signature: str, cost: Cost) -> None:
        """Count the cost of a reply."""
        self.tokens += cost.tokens
        self.usd += cost.usd
        self._see(signature, cost)

    def admits(self, call: Call, in_flight: Iterable[Call]) -> bool:
        """Return whether one more call is within the limits, in addition to those in flight."""
        tokens, usd = self.left.tokens, self.left.usd
        if tokens is None and usd is None:
            return True
        if _reached(self.tokens, tokens) or _reached(self.usd, usd):
            return False
        expected = [self._most(one) for one in in_flight]
        if not expected:
            return True
        most_tokens, most_usd = (sum(column) for column in zip(*expected, self._most(call), strict=True))
        fits_tokens = tokens is None or self.tokens + most_tokens <= tokens
        return fits_tokens and (usd is None or self.usd + most_usd <= usd)

    def _most(self, call: Call) -> tuple[float, float]:
        """Return the maximum that a call is expected to cost, in tokens and in USD."""
        model = call.model
        prompt, seen = estimated_tokens(call.messages), self.longest.get(model.signature)
        reply = UNKNOWN if seen is None else max(MARGIN * seen, LEAST_REPLY)
        if model.max_tokens is not None and (seen or 0) <= model.max_tokens:
            reply = min(reply, model.max_tokens)
        if model.usd_per_million:
            dearer = max(model.usd_per_million.prompt, model.usd_per_million.cached or 0.0)
            return prompt + reply, (prompt * dearer + reply * model.usd_per_million.completion) / 1e6
        per_token = self.dearest.get(model.signature)
        return prompt + reply, UNKNOWN if per_token is None else per_token * (prompt + DEARER * reply)

    def _see(self, signature: str, cost: Cost) -> None:
        if cost.tokens:
            self.longest[signature] = max(self.longest.get(signature, 0), cost.completion_tokens)
            self.dearest[signature] = max(self.dearest.get(signature, 0.0), cost.usd / cost.tokens)


def _reached(spent: float, limit: float | None) -> bool:
    return limit is not None and spent >= limit

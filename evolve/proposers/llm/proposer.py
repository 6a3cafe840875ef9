"""The LLM proposer: it asks language models, several prompts at a time, within the run's spending limits."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import takewhile

from archive.exchange import unfinished
from archive.kernel import Proposal
from archive.runs import Cost, Question
from archive.summaries import Trial
from evolve.errors import UserError, kind_of
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
from evolve.proposers.llm.endpoint import TOO_MANY_TOKENS, Endpoints, Watch, first_model, unwatched
from evolve.proposers.llm.models import Model, price_hint
from evolve.proposers.llm.questions import Prompt, drafts, opening, reference_source
from evolve.proposers.llm.reply import proposal_from
from evolve.request import Left, Request

MOST_WITHOUT_KERNEL = 32  # number of prompts in a row without a kernel after which the run stops
MOST_ALIKE = 8  # the same for prompts that get no reply, all for the same reason
MOST_UNFINISHED = 4  # the same for replies that are paid for but incomplete, all for the same reason
TOO_LATE = "the deadline passed before an answer arrived"

Dispatch = Callable[
    [MutableSequence[Prompt], Callable[[Prompt, Pause], Answer], Callable[[Prompt, Sequence[Prompt]], bool], float],
    Generator[tuple[Prompt, Answer], None, None],
]


@dataclass(frozen=True)
class WithoutKernel:
    """A prompt that gave no kernel."""

    failure: str
    replied: bool
    unfinished: bool = False  # whether the model ended its reply too early, although the budget did not limit it


@dataclass(frozen=True)
class LlmProposer:
    """A proposer that asks language models, several prompts at a time."""

    models: tuple[Model, ...]
    chat: Chat
    dispatch: Dispatch = ask_concurrently  # sends prompts and yields answers; a replay keeps the recorded order
    _unusable: dict[str, UserError] = field(default_factory=dict, repr=False, compare=False)  # key: signature
    _without_kernel: list["WithoutKernel"] = field(
        default_factory=list, repr=False, compare=False
    )  # prompts since the last kernel

    @property
    def name(self) -> str:
        return ", ".join(model.signature for model in self.models)

    def propose(self, request: Request) -> Iterator[Proposal]:
        """Send the prompts for a request, and yield a proposal for each answer as it arrives.

        A reply that cannot be read gets one follow-up prompt. A UserError ends the run if no model can be used.
        """
        waiting = deque(opening(request, self.models, reference_source(request.op)))
        limit = SpendingLimit(request.left, keeps_half=not (request.population or request.failures))
        excluded = dict[str, Proposal]()  # the models that failed, by signature
        limit.learn(request.trials)
        unpriced, kernels = "", 0
        reply_limits = dict[str, int | None]()  # key: nonce of the prompt

        def may_start(prompt: Prompt, running: Sequence[Prompt]) -> bool:
            usable = prompt.model.signature not in excluded and _in_time(request, kernels + len(running))
            others = [one.call for one in running]
            if not (usable and self._hopeful() and _has_room(prompt, running) and limit.admits(prompt.call, others)):
                return False
            reply_limits[prompt.nonce] = limit.reply_limit(prompt.call, others)
            return True

        def ask(prompt: Prompt, pause: Pause) -> Answer:
            until = request.left.deadline
            call = replace(prompt.call, deadline=until, reply_limit=reply_limits[prompt.nonce])
            return self._ask(call, pause_until(until, pause))

        with closing(self.dispatch(waiting, ask, may_start, request.left.deadline)) as found:
            for prompt, answer in found:
                signature, proposal = prompt.model.signature, _proposal(prompt, answer, request)
                kernels += proposal.kernel is not None
                limit.pay(prompt.call, answer.cost)
                self._follow_up(prompt, answer, proposal, request, waiting)
                if answer.unusable:
                    self._unusable[signature] = answer.unusable
                    excluded.setdefault(signature, proposal)
                    continue
                if not answer.failure:
                    self._unusable.pop(signature, None)
                self._note(answer, proposal, limited=reply_limits.get(prompt.nonce) is not None)
                unpriced = unpriced or (signature if answer.unpriced and request.left.usd is not None else "")
                yield proposal
        if excluded and all(model.signature in self._unusable for model in self.models):
            raise self._unusable[self.models[0].signature]
        yield from excluded.values()
        if unpriced:
            raise UserError(
                f"{unpriced} does not report what it costs, so a limit in USD cannot be enforced", price_hint()
            )
        self._check_hopeful()

    def _follow_up(
        self, prompt: Prompt, answer: Answer, proposal: Proposal, request: Request, waiting: deque[Prompt]
    ) -> None:
        """Add the prompts that follow from an answer: drafts of designs, or a new attempt at an unreadable kernel."""
        if prompt.operator == DESIGNS:
            waiting.extend(drafts(request, self.models, reference_source(request.op), prompt, answer.text))
        elif not (proposal.kernel or answer.failure or answer.unusable or prompt.again):
            waiting.appendleft(prompt.once_more(proposal.reply, proposal.failure))

    def _ask(self, call: Call, pause: Pause) -> Answer:
        try:
            return self.chat.ask(call, pause)
        except DeadlinePassedError:
            return Answer(failure=TOO_LATE)

    def _note(self, answer: Answer, proposal: Proposal, *, limited: bool) -> None:
        if not proposal.failure:  # the reply holds a kernel, or the requested designs
            self._without_kernel.clear()
        elif answer.failure != TOO_LATE:
            replied, whole = bool(answer.text or answer.cost.tokens), limited or not unfinished(answer.failure)
            self._without_kernel.append(WithoutKernel(proposal.failure, replied, unfinished=not whole))

    def _unanswered(self) -> list[str]:
        """Return the reasons why the prompts since the last reply got no reply."""
        return [one.failure for one in takewhile(lambda one: not one.replied, reversed(self._without_kernel))]

    def _hopeful(self) -> bool:
        """Return whether more prompts make sense, because not all of the last prompts failed."""
        unanswered = self._unanswered()
        alike = len(unanswered) >= MOST_ALIKE and len(set(map(kind_of, unanswered[:MOST_ALIKE]))) == 1
        return (
            not alike and len(self._unfinished()) < MOST_UNFINISHED and len(self._without_kernel) < MOST_WITHOUT_KERNEL
        )

    def _unfinished(self) -> list[str]:
        """Return the reason why the last replies were incomplete, and how many in a row have the same reason."""
        last = [one.failure for one in takewhile(lambda one: one.unfinished, reversed(self._without_kernel))]
        return list(takewhile(lambda failure: kind_of(failure) == kind_of(last[0]), last))

    def _check_hopeful(self) -> None:
        """Raise a UserError after too many prompts without a kernel, because --evals would never end the run."""
        if self._hopeful():
            return
        silent, number, reason = len(self._unanswered()), len(self._without_kernel), self._without_kernel[-1].failure
        cut = len(self._unfinished())
        self._without_kernel.clear()
        if cut >= MOST_UNFINISHED:
            raise UserError(
                f"{self.name} finished none of its last {cut} replies, which were paid for: {reason}", unfinished_hint()
            )
        too_long = TOO_MANY_TOKENS.search(reason.lower())
        shorter = (
            "Shorter prompts: `--model models.toml` with prompt_tokens = 8000 under [[model]]. " if too_long else ""
        )
        what = f"gave no kernel in answer to the last {number} questions; the last failure"
        if silent >= MOST_ALIKE:
            what = f"answered none of the last {silent} questions"
        raise UserError(
            f"{self.name} {what}: {reason}",
            f"{shorter}`evolve run --resume last` continues the run once the cause is removed.",
        )


def unfinished_hint() -> str:
    return (
        "A model that reasons at length needs a larger max_tokens or a lower reasoning_effort, both under [[model]] in "
        "`--model models.toml`. `evolve top OP --failures` lists the replies, `evolve run --resume last` continues."
    )


def from_environment(
    words: Sequence[str] = (), environment: Mapping[str, str] = os.environ, watch: Watch = unwatched
) -> LlmProposer:
    """Return the proposer for the models given by `--model`, or by OPENAI_BASE_URL and OPENAI_API_KEY.

    `watch` is called with the reason why a call waits.
    """
    models = model_words.usable_models(words, environment)
    key = environment.get(model_words.KEY_ENV, "").strip()
    if not words and environment.get(model_words.URL_ENV, "").strip():
        (default,) = models
        models = (replace(default, name=first_model(default.base_url, key, default.timeout_seconds)),)
    return LlmProposer(models, Endpoints(environment, watch=watch))


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
        return replace(origin, reply=answer.text)  # not a failure: the prompt did not ask for a kernel
    return proposal_from(answer.text, request.op, origin, prompt.kernels)


MARGIN = 2.0  # factor of the longest reply so far that a reply is assumed not to exceed
LEAST_REPLY = 32_768  # number of tokens reserved for a reply even if earlier replies were shorter
LEAST_USEFUL = 1_024  # number of tokens; no prompt is sent for a reply that must be shorter
LONGEST_REPLY = 131_072  # number of tokens; replies are not limited while this much is left for each prompt in flight
DEARER = 8.0  # highest ratio of the prices of a completion token and a prompt token at any provider
UNKNOWN = float("inf")


@dataclass
class SpendingLimit:
    """A limit that admits a prompt if the budget can pay for its longest reply and for all prompts in flight.

    When the rest of the budget is small, replies are limited to lengths that it can pay for. The budget can still be
    exceeded, because some costs are not known beforehand: a model's first prompt may have a few more tokens than
    estimated, a server may ignore the limit of a reply, and the price of the first reply may be known only to the
    server.
    """

    left: Left
    # whether to keep half for prompts after the first verdicts, if more than one prompt can be paid for
    keeps_half: bool = False
    longest: dict[str, int] = field(default_factory=dict)  # tokens of the longest reply, by signature
    dearest: dict[str, float] = field(default_factory=dict)  # highest price in USD per token, by signature
    # largest ratio of a prompt's tokens to their estimate
    underestimated: dict[str, float] = field(default_factory=dict)
    tokens: int = 0  # spent so far, like `usd`
    usd: float = 0.0

    def learn(self, trials: Iterable[Trial]) -> None:
        """Take the costs of earlier replies into account."""
        for trial in trials:
            self._see(trial.proposer, trial.cost)

    def pay(self, call: Call, cost: Cost) -> None:
        """Count the cost of the reply to a call."""
        self.tokens += cost.tokens
        self.usd += cost.usd
        signature = call.model.signature
        ratio = cost.prompt_tokens / max(estimated_tokens(call.messages), 1)
        self.underestimated[signature] = max(self.underestimated.get(signature, 1.0), ratio)
        self._see(signature, cost)

    def admits(self, call: Call, in_flight: Sequence[Call]) -> bool:
        """Return whether one more call is within the limits, in addition to those in flight."""
        expected = self._reply(call.model)
        if self.keeps_half and (self.tokens or in_flight) and self._is_half_spent(call, in_flight):
            return False
        if in_flight:
            return self._room(call, in_flight) >= expected or not self._limited
        useful = max(LEAST_USEFUL, self.longest.get(call.model.signature, 0))
        return self._room(call, in_flight) >= min(useful, expected)

    def reply_limit(self, call: Call, in_flight: Sequence[Call]) -> int | None:
        """Return the most tokens that the reply to an admitted call may have, or None without such a limit."""
        room, own = self._room(call, in_flight), call.model.max_tokens or UNKNOWN
        if not self._limited or room >= LONGEST_REPLY * (1 + len(in_flight)):
            return None
        limit = min(room, self._reply(call.model))
        return None if limit >= own else int(limit)

    def _is_half_spent(self, call: Call, in_flight: Sequence[Call]) -> bool:
        """Return whether this call and those in flight may take more than half of a limit."""
        spent = [(self.tokens, self.usd), *(self._most(one, self._reply(one.model)) for one in (*in_flight, call))]
        limits = self.left.tokens, self.left.usd
        return any(
            limit is not None and sum(column) > limit / 2
            for limit, column in zip(limits, zip(*spent, strict=True), strict=True)
        )

    @property
    def _limited(self) -> bool:
        return self.left.tokens is not None or self.left.usd is not None

    def _room(self, call: Call, in_flight: Sequence[Call]) -> float:
        """Return how many tokens a reply may have such that this call and all calls in flight can be paid for."""
        spent = [(float(self.tokens), self.usd), *(self._most(one, self._reply(one.model)) for one in in_flight)]
        tokens, usd = (sum(column) for column in zip(*[*spent, self._most(call, 0.0)], strict=True))
        room = UNKNOWN if self.left.tokens is None else self.left.tokens - tokens
        if self.left.usd is None:
            return room
        if self.left.usd <= self.usd:
            return -UNKNOWN
        _, price = self._prices(call.model)
        if price == UNKNOWN:  # the price is known after the first reply
            return -UNKNOWN if in_flight else room
        left_usd = self.left.usd - usd
        return min(room, left_usd / price if price else math.copysign(UNKNOWN, left_usd))

    def _reply(self, model: Model) -> float:
        """Return the largest number of tokens that a reply is expected to have."""
        seen = self.longest.get(model.signature)
        expected = UNKNOWN if seen is None else max(MARGIN * seen, LEAST_REPLY)
        if model.max_tokens is not None and (seen or 0) <= model.max_tokens:
            return min(expected, model.max_tokens)
        return expected

    def _most(self, call: Call, reply: float) -> tuple[float, float]:
        """Return the maximum that a call with a reply of this length is expected to cost, in tokens and in USD."""
        prompt = estimated_tokens(call.messages) * self.underestimated.get(call.model.signature, 1.0)
        of_prompt, of_reply = self._prices(call.model)
        usd = UNKNOWN if of_reply == UNKNOWN else prompt * of_prompt + (reply * of_reply if of_reply else 0.0)
        return prompt + reply, usd

    def _prices(self, model: Model) -> tuple[float, float]:
        """Return the prices of a token of a prompt and of a reply in USD."""
        if prices := model.usd_per_million:
            return max(prices.prompt, prices.cached or 0.0) / 1e6, prices.completion / 1e6
        per_token = self.dearest.get(model.signature, UNKNOWN)
        return per_token, DEARER * per_token

    def _see(self, signature: str, cost: Cost) -> None:
        if cost.tokens:
            self.longest[signature] = max(self.longest.get(signature, 0), cost.completion_tokens)
            self.dearest[signature] = max(self.dearest.get(signature, 0.0), cost.usd / cost.tokens)

"""Proposer that asks language models: several questions at a time, within what the run may spend."""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableSequence, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Event, Thread
from typing import TypeVar

from archive.proposals import Cost, Proposal, Question
from evolve.errors import UserError
from evolve.prompting.compose import estimated_tokens
from evolve.proposers.llm import models as model_words
from evolve.proposers.llm.chat import UNUSABLE, Answer, Call, Chat, Pause, TimeUpError, until
from evolve.proposers.llm.endpoint import Endpoints, first_model
from evolve.proposers.llm.models import DEFAULT_MODEL, OPENAI_URL, Model, price_hint
from evolve.proposers.llm.questions import Ask, asks, reference_source
from evolve.proposers.llm.reply import proposal_from
from evolve.request import Left, Request, Trial

Q = TypeVar("Q")
A = TypeVar("A")


class AbandonedError(Exception):
    """Nobody waits for the answer any more."""


def answers(
    waiting: MutableSequence[Q],
    answer: Callable[[Q, Pause], A],
    may_start: Callable[[Q, Sequence[Q]], bool],
) -> Generator[tuple[Q, A], None, None]:
    """Each answer as soon as it is there. `waiting` may grow meanwhile; what may not start in the end stays in it.

    `may_start` is told what is in flight. Where `answer` raises, the others in flight are still waited for.
    Leaving early asks nothing more and waits for nobody: the threads are daemons, because those of a
    ThreadPoolExecutor would keep the interpreter alive until a stalled server lets go.
    """
    done: SimpleQueue[tuple[Q, Future[A]]] = SimpleQueue()
    left = Event()
    running: list[Q] = []
    error: BaseException | None = None

    def pause(seconds: float) -> None:
        if left.wait(seconds):
            raise AbandonedError

    def settle(question: Q) -> None:
        done.put((question, _settled(question, lambda asked: answer(asked, pause))))

    try:
        while True:
            for question in () if error else started(waiting, running, may_start):
                Thread(target=settle, args=(question,), daemon=True, name="question").start()
            if not running:
                break
            question, future = done.get()
            running.remove(question)
            if raised := future.exception():
                error = error or raised
            else:
                yield question, future.result()
    finally:
        left.set()
    if error:
        raise error


def started(
    waiting: MutableSequence[Q],
    running: MutableSequence[Q],
    may_start: Callable[[Q, Sequence[Q]], bool],
) -> list[Q]:
    """Those that may start now, which are moved from `waiting` to `running`."""
    found = []
    for question in tuple(waiting):
        if may_start(question, running):
            waiting.remove(question)
            running.append(question)
            found.append(question)
    return found


def _settled(question: Q, answer: Callable[[Q], A]) -> Future[A]:
    future: Future[A] = Future()
    try:
        future.set_result(answer(question))
    except BaseException as error:  # noqa: BLE001 - it is raised again where the answers are read
        future.set_exception(error)
    return future


MARGIN = 2.0  # over the dearest reply seen so far
LEAST_REPLY = 8_192  # tokens: a model that was brief so far may yet think for long
DEARER = 8.0  # times a prompt's, which is the most that a reply's token costs anywhere
UNKNOWN = float("inf")


@dataclass
class SpendingLimit:
    """Admits a question if all in flight together stay within the limits, or if it is alone and something is left.

    So a limit is overrun by one reply at most, as long as no reply is dearer than could be foreseen.
    """

    left: Left
    longest: dict[str, int] = field(default_factory=dict)  # tokens of a reply, by who signed it
    dearest: dict[str, float] = field(default_factory=dict)  # USD per token
    tokens: int = 0  # spent
    usd: float = 0.0

    def learn(self, trials: Iterable[Trial]) -> None:
        """What replies have cost before."""
        for trial in trials:
            self._see(trial.proposer, trial.cost)

    def pay(self, signature: str, cost: Cost) -> None:
        self.tokens += cost.tokens
        self.usd += cost.usd
        self._see(signature, cost)

    def admits(self, call: Call, in_flight: Iterable[Call]) -> bool:
        """Whether one more question may be put, beside those in flight."""
        tokens, usd = self.left.tokens, self.left.usd
        if tokens is None and usd is None:
            return True
        if _over(self.tokens, tokens) or _over(self.usd, usd):
            return False
        flying = [self._most(one) for one in in_flight]
        if not flying:
            return True
        both = [*flying, self._most(call)]
        most_tokens, most_usd = (sum(column) for column in zip(*both, strict=True))
        fits_tokens = tokens is None or self.tokens + most_tokens <= tokens
        return fits_tokens and (usd is None or self.usd + most_usd <= usd)

    def _most(self, call: Call) -> tuple[float, float]:
        """What a question may cost at most, in tokens and in USD, as far as that can be foreseen."""
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


def _over(spent: float, limit: float | None) -> bool:
    return limit is not None and spent >= limit


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
        spending, out = SpendingLimit(request.left), dict[str, Proposal]()  # by signature: who cannot be asked any more
        spending.learn(request.trials)
        unpriced, answered = "", 0

        def may_start(ask: Ask, running: Sequence[Ask]) -> bool:
            usable = ask.model.signature not in out and _in_time(request, answered + len(running))
            return usable and _has_room(ask, running) and spending.admits(ask.call, [one.call for one in running])

        def in_time(ask: Ask, pause: Pause) -> Answer:
            return self._answer(ask, until(request.left.deadline, pause))

        with closing(self.flight(waiting, in_time, may_start)) as found:
            for ask, answer in found:
                signature, proposal = ask.model.signature, _proposal(ask, answer, request)
                answered += 1
                spending.pay(signature, answer.cost)
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
    models = model_words.read_models(words, environment)
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

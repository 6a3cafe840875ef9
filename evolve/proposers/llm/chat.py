"""The contract of a chat: calls to models and their answers, several at a time and within limits per minute."""

import threading
import time
from collections.abc import Callable, Generator, MutableSequence, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from archive.exchange import BatchReply
from archive.runs import Cost
from evolve.errors import UserError
from evolve.prompting.text import Message, estimated_tokens, tokens
from evolve.proposers.llm.models import Model, Prices

UNUSABLE = "not asked any more for now: "  # prefix of the archived failure if a model cannot be used
WINDOW_SECONDS = 60.0  # limits are given per minute
GRACE_SECONDS = 0.5  # time after the deadline in which requests in flight may end by themselves

P = TypeVar("P")
A = TypeVar("A")
Clock = Callable[[], float]
Pause = Callable[[float], None]  # waits, and raises an exception once the answer is not needed any more


@dataclass(frozen=True)
class Call:
    """Messages for one model, with the operator that they request."""

    model: Model
    operator: str
    messages: tuple[Message, ...]
    deadline: float = float("inf")  # time of time.monotonic after which the call is cancelled
    # number of tokens that the rest of the budget can pay for; None if the budget sets no limit
    reply_limit: int | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters in the body of the request, besides model and messages."""
        return (replace(self.model, max_tokens=self.reply_limit) if self.reply_limit else self.model).parameters


@dataclass(frozen=True)
class Answer:
    """The text that a model returned, or the reason why it is missing or incomplete."""

    text: str = ""
    failure: str = ""
    cost: Cost = field(default=Cost())
    parameters: str = "{}"  # the parameters that were finally sent, as JSON
    unpriced: bool = False  # whether neither the server nor the model's settings give its cost
    unusable: UserError | None = None  # the reason why further calls to this model would fail, too


class Chat(Protocol):
    def ask(self, call: Call, pause: Pause) -> Answer:
        """Send a call and return the answer. Failures are returned as an Answer; only `pause` may raise."""


class CancelledError(Exception):
    """Raised when the caller no longer reads answers."""


class DeadlinePassedError(Exception):
    """Raised when the deadline of a run passes before the answer arrives."""


def ask_concurrently(
    waiting: MutableSequence[P],
    ask: Callable[[P, Pause], A],
    may_start: Callable[[P, Sequence[P]], bool],
    deadline: float = float("inf"),
) -> Generator[tuple[P, A], None, None]:
    """Ask all waiting prompts, several at a time, and yield each answer as soon as it arrives.

    `waiting` may grow meanwhile. `may_start` is called with a prompt and those in flight; prompts that may not start
    stay in `waiting`. If `ask` raises, the prompts in flight are finished first. Closing the generator cancels them
    without waiting. Soon after the deadline, a value of time.monotonic, prompts in flight are cancelled: `ask` must
    then return at once, and its results are their answers. The threads are daemons, because a ThreadPoolExecutor would
    keep the interpreter alive if a server stalls.
    """
    done: SimpleQueue[tuple[P, Future[A]]] = SimpleQueue()
    cancelled = threading.Event()
    running: list[P] = []
    error: BaseException | None = None

    def pause(seconds: float) -> None:
        if cancelled.wait(seconds):
            raise CancelledError

    def settle(prompt: P) -> None:
        done.put((prompt, _settled(prompt, lambda one: ask(one, pause))))

    try:
        while True:
            for prompt in () if error else take_startable(waiting, running, may_start):
                threading.Thread(target=settle, args=(prompt,), daemon=True, name="prompt").start()
            if not running:
                break
            prompt, future = _next_done(done, deadline) or _given_up(running[0], ask, pause)
            running.remove(prompt)
            if raised := future.exception():
                error = error or raised
            else:
                yield prompt, future.result()
    finally:
        cancelled.set()
    if error:
        raise error


def take_startable(
    waiting: MutableSequence[P],
    running: MutableSequence[P],
    may_start: Callable[[P, Sequence[P]], bool],
) -> list[P]:
    """Move the prompts that may start now from `waiting` to `running`, and return them."""
    found = []
    for prompt in tuple(waiting):
        if may_start(prompt, running):
            waiting.remove(prompt)
            running.append(prompt)
            found.append(prompt)
    return found


def _next_done(done: "SimpleQueue[tuple[P, Future[A]]]", deadline: float) -> "tuple[P, Future[A]] | None":
    """Return the next prompt that is answered, or None if the deadline passes first."""
    left = max(deadline + GRACE_SECONDS - time.monotonic(), 0.0)
    try:
        return done.get(timeout=None if left == float("inf") else min(left, threading.TIMEOUT_MAX))
    except Empty:
        return None


def _given_up(prompt: P, ask: Callable[[P, Pause], A], pause: Pause) -> "tuple[P, Future[A]]":
    return prompt, _settled(prompt, lambda one: ask(one, pause))


def _settled(prompt: P, ask: Callable[[P], A]) -> Future[A]:
    future: Future[A] = Future()
    try:
        future.set_result(ask(prompt))
    except BaseException as error:  # noqa: BLE001 - raised again where the answers are read
        future.set_exception(error)
    return future


def pause_until(deadline: float, pause: Pause) -> Pause:
    """Return a pause that raises once the deadline, a value of time.monotonic, has passed."""

    def shortened(seconds: float) -> None:
        pause(max(0.0, min(seconds, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            raise DeadlinePassedError

    return shortened


def cost_of(reply: BatchReply, messages: Sequence[Message], prices: Prices | None) -> Cost:
    """Return the cost of a reply as reported by the server, or else computed from the model's prices."""
    # Tokens are estimated if the server does not count them, so that budgets work with such servers too.
    cost = reply.cost or Cost(estimated_tokens(tuple(messages)), tokens(reply.text)) if _worked(reply) else Cost()
    by_price = prices.usd(cost) if prices else 0.0
    return replace(cost, usd=by_price if reply.usd is None else reply.usd)


def _worked(reply: BatchReply) -> bool:
    """Return whether the model produced anything: text, or at least a token count."""
    return bool(reply.text or reply.cost)


@dataclass
class SentRequest:
    """A request sent in the last minute."""

    moment: float
    tokens: int  # an estimate until the answer arrives


@dataclass
class RateLimit:
    """A limit on the requests per minute to one address, shared by all threads that send to it."""

    clock: Clock = time.monotonic
    _sent: list[SentRequest] = field(default_factory=list)
    _held_until: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, model: Model, tokens: int, pause: Pause) -> SentRequest:
        """Wait until a request of this many tokens is allowed, then count it."""
        pause(0.0)
        while isinstance(found := self._try(model, tokens), float):
            pause(found)
        return found

    def hold(self, seconds: float) -> None:
        """Allow no request for a while, as the server requested."""
        with self._lock:
            self._held_until = max(self._held_until, self.clock() + seconds)

    def _try(self, model: Model, tokens: int) -> SentRequest | float:
        """Count the request, or return the seconds after which to try again."""
        with self._lock:
            now = self.clock()
            if now < self._held_until:
                return self._held_until - now
            self._sent = [sent for sent in self._sent if now - sent.moment < WINDOW_SECONDS]
            if self._full(model, tokens):
                return max(self._sent[0].moment + WINDOW_SECONDS - now, 1e-3)
            self._sent.append(SentRequest(now, tokens))
            return self._sent[-1]

    def _full(self, model: Model, tokens: int) -> bool:
        requests, allowed = model.requests_per_minute, model.tokens_per_minute
        # A request that exceeds the limit by itself is sent once the window is empty.
        if not self._sent:
            return False
        if requests is not None and len(self._sent) >= max(requests, 1):
            return True
        return allowed is not None and sum(sent.tokens for sent in self._sent) + tokens > allowed

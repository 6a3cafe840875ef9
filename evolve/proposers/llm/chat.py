"""The contract of a chat: a question in, an answer out; and the limits on requests and tokens per minute."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from archive.exchange import BatchReply
from archive.proposals import Cost
from evolve.errors import UserError
from evolve.prompting.compose import Message, estimated_tokens
from evolve.prompting.text import tokens
from evolve.proposers.llm.models import Model, Prices

SECONDS = 60.0
Clock = Callable[[], float]
Pause = Callable[[float], None]  # waits, or raises when nobody wants the answer any more


class TimeUpError(Exception):
    """The time of a run is over before what was waited for has come."""


def until(deadline: float, pause: Pause) -> Pause:
    """The same pause, but no longer than to a moment of time.monotonic."""

    def shortened(seconds: float) -> None:
        pause(max(0.0, min(seconds, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            raise TimeUpError

    return shortened


@dataclass
class SentRequest:
    """A request of the last minute."""

    moment: float
    tokens: int  # an estimate until the answer is there


@dataclass
class RateLimit:
    """The last minute at one address, shared by all threads that ask there."""

    clock: Clock = time.monotonic
    _entries: list[SentRequest] = field(default_factory=list)
    _held_until: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, model: Model, tokens: int, pause: Pause) -> SentRequest:
        """Wait until a request of so many tokens is allowed, and count it."""
        pause(0.0)
        while isinstance(found := self._try(model, tokens), float):
            pause(found)
        return found

    def hold(self, seconds: float) -> None:
        """The server wants to be left alone for a while, by everybody."""
        with self._lock:
            self._held_until = max(self._held_until, self.clock() + seconds)

    def _try(self, model: Model, tokens: int) -> SentRequest | float:
        """A place in the window, or the seconds after which it is worth trying again."""
        with self._lock:
            now = self.clock()
            if now < self._held_until:
                return self._held_until - now
            self._entries = [entry for entry in self._entries if now - entry.moment < SECONDS]
            if self._full(model, tokens):
                return max(self._entries[0].moment + SECONDS - now, 1e-3)
            self._entries.append(SentRequest(now, tokens))
            return self._entries[-1]

    def _full(self, model: Model, tokens: int) -> bool:
        requests, allowed = model.requests_per_minute, model.tokens_per_minute
        # What alone is more than a whole minute allows is asked all the same, once nothing else is there.
        if not self._entries:
            return False
        if requests is not None and len(self._entries) >= max(requests, 1):
            return True
        return allowed is not None and sum(entry.tokens for entry in self._entries) + tokens > allowed


UNUSABLE = "not asked any more for now: "  # begins the failure of a proposal whose model cannot be asked


@dataclass(frozen=True)
class Call:
    """One question to one model."""

    model: Model
    operator: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Answer:
    """A model's words, or the reason why there are none or not all."""

    text: str = ""
    failure: str = ""
    cost: Cost = field(default=Cost())
    parameters: str = "{}"  # as they were sent in the end, as JSON
    unpriced: bool = False  # nobody says what it cost
    fault: UserError | None = None  # why asking this model anything more is pointless for now


class Chat(Protocol):
    def ask(self, call: Call, pause: Pause) -> Answer:
        """Put a question. Whatever goes wrong is an Answer too; `pause` raises once nobody wants it any more."""


def cost_of(reply: BatchReply, messages: Sequence[Message], prices: Prices | None) -> Cost:
    """What a reply cost, by its server's own words where there are any."""
    # Without a count from the server the texts are measured: a budget must hold with such servers too.
    cost = reply.cost or Cost(estimated_tokens(tuple(messages)), tokens(reply.text)) if _said(reply) else Cost()
    by_price = prices.usd(cost) if prices else 0.0
    return replace(cost, usd=by_price if reply.usd is None else reply.usd)


def _said(reply: BatchReply) -> bool:
    """Whether a model was at work at all: there are words, or at least a count of them."""
    return bool(reply.text or reply.cost)

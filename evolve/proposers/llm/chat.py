"""Where questions leave us: one method, which a server answers over HTTP, or the archive from memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from archive.exchange import BatchReply
from archive.proposals import Cost
from evolve.errors import UserError
from evolve.prompting.compose import Message, estimated_tokens
from evolve.prompting.text import tokens
from evolve.proposers.llm.limits import Pause
from evolve.proposers.llm.models import Model, Prices

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

"""Answers from the archive: what models said in an earlier run, without a key and without a network."""

import json
from collections.abc import Callable, Generator, MutableSequence, Sequence
from dataclasses import dataclass

from archive.exchange import unfinished
from archive.proposals import AskedQuestion, Proposal, Question
from archive.store import Store
from evolve.errors import UserError
from evolve.prompting.compose import EDITS, FENCED, WHOLE
from evolve.prompting.operators import ANSWERS
from evolve.proposers.llm.chat import UNUSABLE, Answer, Call, Pause
from evolve.proposers.llm.models import MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME, Model
from evolve.proposers.llm.proposer import started
from evolve.proposers.llm.questions import Ask

Conversation = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Exchange:
    """A recorded question, and the proposal that answers it."""

    question: Question
    proposal: Proposal


@dataclass
class Recorded:
    """Gives each recorded answer once: to the very question it answered, or else to the next one of its kind."""

    run: str
    unused: list[Exchange]

    def ask(self, call: Call, pause: Pause) -> Answer:
        pause(0.0)
        found = self._next(call)
        if found is None:
            who = f"{call.model.signature} ({call.operator})"
            return Answer(failure=f"run {self.run} holds no further answer of {who}")
        self.unused.remove(found)
        return _answer(found)

    def in_order(
        self,
        waiting: MutableSequence[Ask],
        answer: Callable[[Ask, Pause], Answer],
        may_start: Callable[[Ask, Sequence[Ask]], bool],
    ) -> Generator[tuple[Ask, Answer], None, None]:
        """As `in_flight.answers`, but of those in flight the one is next that was answered first then."""
        running: list[Ask] = []
        while started(waiting, running, may_start) or running:
            ask = min(running, key=self._turn)
            running.remove(ask)
            yield ask, answer(ask, lambda _: None)

    def _turn(self, ask: Ask) -> tuple[int, bool]:
        """When it was answered; of equal questions the one that was, where this is the same run."""
        found = self._next(ask.call)
        return (self.unused.index(found), ask.nonce != found.proposal.call) if found else (len(self.unused), False)

    def _next(self, call: Call) -> Exchange | None:
        kin = [one for one in self.unused if _kind(one) == (call.model.signature, call.operator)]
        words: Conversation = tuple((message.role, message.content) for message in call.messages)
        exact = (one for one in kin if one.question.messages == words)
        return next(exact, next(iter(kin), None))


def recorded(store: Store, run: str) -> list[Exchange]:
    """Every exchange of a run with a model, in the order in which the answers came."""
    asked = {one.proposal_id: one.question for one in store.find(AskedQuestion)}
    found = [
        Exchange(asked[proposal.id], proposal)
        for proposal in store.find(Proposal)
        if proposal.run == run and proposal.id in asked
    ]
    if not found:
        raise UserError(f"run {run} asked no model, so there is nothing to replay", "`evolve runs` lists the runs.")
    return found


def models(exchanges: Sequence[Exchange]) -> tuple[Model, ...]:
    """The models that were asked, as far as what was said to them tells."""
    signatures = dict.fromkeys(exchange.proposal.proposer for exchange in exchanges)
    return tuple(_model([one for one in exchanges if one.proposal.proposer == signature]) for signature in signatures)


def _model(exchanges: Sequence[Exchange]) -> Model:
    question, signature = exchanges[-1].question, exchanges[-1].proposal.proposer
    ends = [exchange.question.messages[-1][1] for exchange in exchanges]
    form = next((form for form in (EDITS, WHOLE) if any(end.endswith(ANSWERS[form]) for end in ends)), FENCED)
    sent = json.loads(question.parameters)
    return Model(
        question.model,
        question.endpoint,
        label=signature if signature != question.model else "",
        form=form,
        temperature=sent.get("temperature"),
        reasoning_effort=sent.get("reasoning_effort", ""),
        max_tokens=sent.get(MAX_TOKENS_NAME, sent.get(OPENAI_MAX_TOKENS_NAME)),
    )


def _answer(found: Exchange) -> Answer:
    """What the server had answered. Whether a kernel can be read from it is found out again."""
    said = found.proposal
    fault = UserError(said.failure.removeprefix(UNUSABLE)) if said.failure.startswith(UNUSABLE) else None
    silent = not said.kernel and (not said.reply or unfinished(said.failure))
    return Answer(said.reply, said.failure if silent else "", said.cost, found.question.parameters, fault=fault)


def _kind(exchange: Exchange) -> tuple[str, str]:
    return exchange.proposal.proposer, exchange.proposal.operator

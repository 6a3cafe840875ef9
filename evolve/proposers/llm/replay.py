"""Replay of an earlier run's answers from the archive, without a key or a network."""

import json
from collections.abc import Callable, Generator, Iterator, MutableSequence, Sequence
from dataclasses import dataclass

from archive.exchange import unfinished
from archive.kernel import Proposal
from archive.runs import AskedQuestion, Question
from archive.store import Store
from archive.summaries import ProposalSummary
from evolve.errors import UserError
from evolve.prompting.operators import ANSWERS, EDITS, FENCED, WHOLE
from evolve.proposers.llm.chat import UNUSABLE, Answer, Call, Pause, take_startable
from evolve.proposers.llm.models import MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME, Model
from evolve.proposers.llm.questions import Prompt
from evolve.request import Proposer, Request

Conversation = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Exchange:
    """A recorded question, and the proposal that answers it."""

    question: Question
    proposal: Proposal


@dataclass
class Recorded:
    """A chat that gives each recorded answer once, to the same messages or else to the next call of the same kind."""

    run: str
    unused: list[Exchange]

    def ask(self, call: Call, pause: Pause) -> Answer:
        """Return a recorded answer by the same model for the same operator."""
        pause(0.0)
        found = self._next(call)
        if found is None:
            raise UserError(
                f"the replay of run {self.run} differs from the run: it has one more question of the kind "
                f"`{call.operator}` for {call.model.signature}, and {len(self.unused)} recorded answers are left over",
                "the device, the package or earlier records of the archive differ, or another run used the archive at "
                "the same time; the proposals replayed so far are archived",
            )
        self.unused.remove(found)
        return _answer(found)

    def in_recorded_order(
        self,
        waiting: MutableSequence[Prompt],
        ask: Callable[[Prompt, Pause], Answer],
        may_start: Callable[[Prompt, Sequence[Prompt]], bool],
        _deadline: float = float("inf"),
    ) -> Generator[tuple[Prompt, Answer], None, None]:
        """Yield the answers like `chat.ask_concurrently`, but in the order of their arrival in the recorded run.

        When all answers are used, the remaining prompts are dropped.
        """
        running: list[Prompt] = []
        while take_startable(waiting, running, may_start) or running:
            prompt = min(running, key=self._position)
            running.remove(prompt)
            if not self.unused:  # the recorded run ended at this point
                return
            yield prompt, ask(prompt, lambda _: None)

    def _position(self, prompt: Prompt) -> tuple[int, bool]:
        """Return the prompt's position in the recorded order. The nonce distinguishes equal prompts."""
        found = self._next(prompt.call)
        return (self.unused.index(found), prompt.nonce != found.proposal.call) if found else (len(self.unused), False)

    def _next(self, call: Call) -> Exchange | None:
        alike = [one for one in self.unused if _kind(one) == (call.model.signature, call.operator)]
        messages: Conversation = tuple((message.role, message.content) for message in call.messages)
        exact = (one for one in alike if one.question.messages == messages)
        return next(exact, next(iter(alike), None))


def recorded(store: Store, run: str) -> list[Exchange]:
    """Return the exchanges of a run with its models, in the order in which the answers arrived."""
    asked = {one.proposal_id: one.question for one in store.find(AskedQuestion)}
    found = [
        Exchange(asked[proposal.id], proposal)
        for proposal in store.find(Proposal)
        if proposal.run == run and proposal.id in asked
    ]
    if not found:
        raise UserError(f"run {run} asked no model, so it cannot be replayed", "`evolve runs` lists the runs.")
    return found


@dataclass(frozen=True)
class AsManyProposals:
    """A proposer that ends after as many proposals as the recorded run made, with models and tuner together."""

    proposer: Proposer
    left: list[int]  # number of proposals left; a list, so that it can be counted down

    @property
    def name(self) -> str:
        return self.proposer.name

    def propose(self, request: Request) -> Iterator[Proposal]:
        proposals = self.proposer.propose(request) if self.left[0] else ()
        for proposal in proposals:
            self.left[0] -= 1
            yield proposal
            if not self.left[0]:
                return


def number_of_proposals(store: Store, run: str) -> int:
    return len(store.find(ProposalSummary, run=run))


def models(exchanges: Sequence[Exchange]) -> tuple[Model, ...]:
    """Return the models of the exchanges, with the settings found in their requests."""
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
    """Return the server's answer without failures to read a kernel from it, because the answer is read again."""
    proposal = found.proposal
    unusable = UserError(proposal.failure.removeprefix(UNUSABLE)) if proposal.failure.startswith(UNUSABLE) else None
    failed = not proposal.kernel and (not proposal.reply or unfinished(proposal.failure))
    failure = proposal.failure if failed else ""
    return Answer(proposal.reply, failure, proposal.cost, found.question.parameters, unusable=unusable)


def _kind(exchange: Exchange) -> tuple[str, str]:
    return exchange.proposal.proposer, exchange.proposal.operator

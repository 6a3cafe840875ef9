"""The records of what was proposed: by whom, in answer to which words, at what cost, in which run."""

from dataclasses import dataclass, field
from functools import cached_property

from archive.kernel import Kernel
from archive.records import content_id


@dataclass(frozen=True)
class Cost:
    """What a proposal cost at its model."""

    prompt_tokens: int = 0
    completion_tokens: int = 0  # reasoning included
    seconds: float = 0.0
    cached_tokens: int = 0  # the part of the prompt that the server had seen before
    reasoning_tokens: int = 0
    usd: float = 0.0  # 0 where nobody said what a token costs

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Question:
    """What was sent to a model, word for word, but for the key."""

    model: str
    endpoint: str  # the address, without credentials
    parameters: str  # whatever else the request's body says, as JSON
    messages: tuple[tuple[str, str], ...]  # role and content


@dataclass(frozen=True)
class Proposal:
    """A kernel someone offered, or a reply that holds none and the reason (`failure`)."""

    op: str
    operator: str  # how it was made: seed, knobs, crossover, draft, improve, repair, tell
    proposer: str  # who made it: offline, tell, or the model's name
    kernel: Kernel | None
    parents: tuple[str, ...] = ()
    run: str = ""
    reply: str = ""  # a model's words, kept whether or not they held a kernel
    failure: str = ""
    cost: Cost = field(default=Cost())
    created: float = 0.0
    call: str = ""  # tells equal answers to several calls apart: each was paid for
    # Goes into the archive with a new proposal, and is read back as Asked: it is long, and hardly ever wanted.
    question: Question | None = field(default=None, compare=False, repr=False)

    @property
    def kernel_id(self) -> str:
        return self.kernel.id if self.kernel else ""

    @cached_property
    def id(self) -> str:
        """The moment and the cost do not count: the same proposal told twice is one."""
        said = [self.kernel_id, list(self.parents), self.run, self.reply, self.failure]
        return content_id([self.op, self.operator, self.proposer, *said, *([self.call] if self.call else [])])


@dataclass(frozen=True)
class AskedQuestion:
    """The question that a proposal answers."""

    proposal_id: str
    op: str
    question: Question

    @property
    def id(self) -> str:
        return self.proposal_id


@dataclass(frozen=True)
class Budget:
    """What a run may spend, and when it has found enough; None where there is no limit."""

    evals: int | None = None  # evaluations, and proposals that give nothing to evaluate
    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None
    until_light: float | None = None  # the share of the speed of light after which no workload is worth more


@dataclass(frozen=True)
class Run:
    """One `evolve run` of one op, so that its proposals can be told from another's and it can go on."""

    id: str
    op: str
    device: str
    proposer: str
    seed: int
    created: float
    strategy: str = "evolve"
    budget: Budget = field(default=Budget())
    campaign: str = ""  # what the runs over several ops that share one budget have in common
    words: tuple[str, ...] = ()  # the options it was started with


@dataclass(frozen=True)
class Leg:
    """A stretch of a run. One that goes on has several; of one that was killed nobody says when it ended."""

    run: str
    started: float
    ended: float = 0.0  # told by a second record when it is over

    @property
    def id(self) -> str:
        return content_id([self.run, self.started, self.ended])

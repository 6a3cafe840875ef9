"""Runs: their budgets and strategies, their questions to models, and the costs of the questions."""

from dataclasses import dataclass, field

EVOLVE, BEST_OF_N = "evolve", "best-of-n"
STRATEGIES = (EVOLVE, BEST_OF_N)


@dataclass(frozen=True)
class Cost:
    """The tokens, the time and the money that a proposal cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0  # including reasoning
    seconds: float = 0.0
    cached_tokens: int = 0  # the part of the prompt that the server had cached
    reasoning_tokens: int = 0
    usd: float = 0.0  # 0 if the price of a token is unknown

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Question:
    """The exact request that was sent to a model, without the API key."""

    model: str
    endpoint: str  # the address, without credentials
    parameters: str  # the rest of the request's body, as JSON
    messages: tuple[tuple[str, str], ...]  # pairs of role and content


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
    """The limits of a run: its maximum costs, and a result that is good enough. None means no limit."""

    evals: int | None = None  # number of evaluations; requests that give no kernel do not count
    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None
    until_light: float | None = None  # share of the speed of light that is enough on every workload


@dataclass(frozen=True)
class Run:
    """One `evolve run` of one op. Its proposals refer to it, and a later command can continue it."""

    id: str
    op: str
    device: str
    proposer: str
    seed: int
    created: float
    strategy: str = "evolve"
    budget: Budget = field(default=Budget())
    campaign: str = ""  # common id of the runs over several ops that share one budget
    words: tuple[str, ...] = ()  # the command-line options with which the run was started


@dataclass(frozen=True)
class Scope:
    """The part of the archive that a run uses."""

    run: str = ""
    strategy: str = EVOLVE  # best-of-n is the control experiment: every request is made as if it were the first
    fresh: bool = False  # whether to use only kernels that this run itself has proposed
    excluded: frozenset[str] = frozenset()  # ids of shipped kernels that count only if another proposer proposes them

    @property
    def only_run(self) -> str:
        """The run whose own kernels are the only ones that are used; an empty string if others are used, too."""
        return self.run if self.fresh else ""


EVERYTHING = Scope()

"""What a request may spend on models, held also while several questions are in flight."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from archive.proposals import Cost
from evolve.prompting.compose import estimated_tokens
from evolve.proposers.llm.chat import Call
from evolve.request import Left, Trial

MARGIN = 2.0  # over the dearest reply seen so far
LEAST_REPLY = 8_192  # tokens: a model that was brief so far may yet think for long
DEARER = 8.0  # times a prompt's, which is the most that a reply's token costs anywhere
UNKNOWN = float("inf")


@dataclass
class Purse:
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

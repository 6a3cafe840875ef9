"""The language models that may be asked: their names, where they answer, how they are to be asked, what they cost."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from archive.proposals import Cost
from evolve.errors import UserError
from evolve.prompting.compose import FENCED, MAX_TOKENS

OPENAI_URL, DEFAULT_MODEL = "https://api.openai.com/v1", "gpt-5"
TIMEOUT_SECONDS, CONCURRENCY = 600.0, 4
MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME = "max_tokens", "max_completion_tokens"
# Their `usage.cost` says what a reply cost.
TELLING_HOSTS = ("openrouter.ai",)


@dataclass(frozen=True)
class Prices:
    """In USD per million tokens."""

    prompt: float
    completion: float  # reasoning included
    cached: float | None = None  # the part of a prompt that the server has seen before; None: like the rest

    def usd(self, cost: Cost) -> float:
        cached = min(cost.cached_tokens, cost.prompt_tokens)
        cached_price = self.prompt if self.cached is None else self.cached
        fresh = cost.prompt_tokens - cached
        return (fresh * self.prompt + cached * cached_price + cost.completion_tokens * self.completion) / 1e6


@dataclass(frozen=True)
class Model:
    """A model at an address. Its key stands in the environment and is read only where a connection is made."""

    name: str
    base_url: str = field(default=OPENAI_URL, repr=False)  # may hold a password: show `endpoint` instead
    key_env: str = ""  # the variable that holds the key; a local server wants none
    label: str = ""  # who signs the proposals, where the name is not enough
    form: str = FENCED  # of its replies
    usd_per_million: Prices | None = None
    tells_cost: bool = False  # the server itself says what each reply cost
    concurrency: int = CONCURRENCY  # with whatever else is asked at the same address
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    temperature: float | None = None  # reasoning models refuse it: it is sent only where it was asked for
    reasoning_effort: str = ""
    max_tokens: int | None = None  # of a reply
    prompt_tokens: int = MAX_TOKENS  # of a question, about
    timeout_seconds: float = TIMEOUT_SECONDS

    @property
    def signature(self) -> str:
        return self.label or self.name

    @property
    def endpoint(self) -> str:
        return shown(self.base_url)

    @property
    def parameters(self) -> dict[str, Any]:
        """What a request's body says beside the model and the messages."""
        limit = OPENAI_MAX_TOKENS_NAME if self.base_url == OPENAI_URL else MAX_TOKENS_NAME
        wished = {"temperature": self.temperature, limit: self.max_tokens}
        found: dict[str, Any] = {name: value for name, value in wished.items() if value is not None}
        return found | ({"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {})

    @property
    def priced(self) -> bool:
        """Whether it will be known what a reply cost."""
        host = urlsplit(self.base_url).hostname or ""
        return self.usd_per_million is not None or self.tells_cost or host.endswith(TELLING_HOSTS)


def priced(models: Iterable[Model]) -> None:
    """A UserError unless a limit in USD can be kept with all of these models."""
    if unknown := [model.signature for model in models if not model.priced]:
        raise UserError(f"nobody says what {', '.join(unknown)} costs, so no limit in USD can be kept", price_hint())


def free(models: Iterable[Model]) -> bool:
    """Whether all of these models cost nothing, so that a limit in USD would never end a run."""
    prices = [model.usd_per_million for model in models]
    return all(price is not None and not (price.prompt or price.completion or price.cached) for price in prices)


def price_hint() -> str:
    return (
        "Limit tokens instead, or give the model's prices: `--model models.toml` with a table [[model]] that holds "
        'name = "..." and usd_per_million = { prompt = 1.25, cached = 0.125, completion = 10.0 }.'
    )


def shown(base_url: str) -> str:
    """The address without a name and password, and without a query, where some servers want the key."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

"""Language models: their settings, read from `--model`, from a .toml file or from the environment."""

import difflib
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from archive.runs import Cost
from evolve.errors import UserError
from evolve.prompting.operators import FENCED, FORMS
from evolve.prompting.text import MAX_TOKENS

OPENAI_URL, DEFAULT_MODEL = "https://api.openai.com/v1", "gpt-5"
TIMEOUT_SECONDS, CONCURRENCY = 600.0, 4
MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME = "max_tokens", "max_completion_tokens"
PRICED_HOSTS = ("openrouter.ai",)  # servers that report the cost of a reply as `usage.cost`


@dataclass(frozen=True)
class Prices:
    """Prices in USD per million tokens."""

    prompt: float
    completion: float  # price of completion tokens, including reasoning
    cached: float | None = None  # price of the part of a prompt that the server has cached; None: same as `prompt`

    def usd(self, cost: Cost) -> float:
        """Return the cost of a request's tokens in USD."""
        cached = min(cost.cached_tokens, cost.prompt_tokens)
        cached_price = self.prompt if self.cached is None else self.cached
        fresh = cost.prompt_tokens - cached
        return (fresh * self.prompt + cached * cached_price + cost.completion_tokens * self.completion) / 1e6


@dataclass(frozen=True)
class Model:
    """A model at an address. Its key stays in the environment and is read only to make a connection."""

    name: str
    base_url: str = field(default=OPENAI_URL, repr=False)  # may contain a password, so print `endpoint` instead
    key_env: str = ""  # the environment variable that holds the key; empty for a local server
    label: str = ""  # name of the proposer if `name` is not unique
    form: str = FENCED  # the form of the model's replies
    usd_per_million: Prices | None = None
    tells_cost: bool = False  # whether the server reports the cost of each reply
    concurrency: int = CONCURRENCY  # limit on simultaneous requests to this address, for all models at it
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    temperature: float | None = None  # sent only if set, because reasoning models refuse it
    reasoning_effort: str = ""
    max_tokens: int | None = None  # largest number of tokens of a reply
    prompt_tokens: int = MAX_TOKENS  # approximate largest number of tokens of a prompt
    timeout_seconds: float = TIMEOUT_SECONDS

    @property
    def signature(self) -> str:
        """The name under which its proposals are archived."""
        return self.label or self.name

    @property
    def endpoint(self) -> str:
        """The address without credentials."""
        return without_credentials(self.base_url)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters in the body of a request, besides model and messages."""
        limit = OPENAI_MAX_TOKENS_NAME if self.base_url == OPENAI_URL else MAX_TOKENS_NAME
        requested = {"temperature": self.temperature, limit: self.max_tokens}
        found: dict[str, Any] = {name: value for name, value in requested.items() if value is not None}
        return found | ({"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {})

    @property
    def priced(self) -> bool:
        """Whether the cost of a reply will be known."""
        host = urlsplit(self.base_url).hostname or ""
        return self.usd_per_million is not None or self.tells_cost or host.endswith(PRICED_HOSTS)


def require_prices(models: Iterable[Model]) -> None:
    """Raise a UserError unless a limit in USD can be enforced with all of these models."""
    if unknown := [model.signature for model in models if not model.priced]:
        raise UserError(
            f"the price of {', '.join(unknown)} is not known, so a limit in USD cannot be enforced", price_hint()
        )


def free(models: Iterable[Model]) -> bool:
    """Return whether all of these models cost nothing. A limit in USD would never end such a run."""
    prices = [model.usd_per_million for model in models]
    return all(price is not None and not (price.prompt or price.completion or price.cached) for price in prices)


def price_hint() -> str:
    """Return a hint on how to limit a run whose models have no known price."""
    return (
        "Limit tokens instead, or give the model's prices: `--model models.toml` with a table [[model]] "
        'that contains name = "..." and usd_per_million = { prompt = 1.25, cached = 0.125, completion = 10.0 }.'
    )


def without_credentials(base_url: str) -> str:
    """Return the address without name, password and query, because some servers expect the key in the query."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


KEY_ENV, URL_ENV, TIMEOUT_ENV = "OPENAI_API_KEY", "OPENAI_BASE_URL", "EVOLVE_LLM_TIMEOUT"
NAME_AT_URL = re.compile(r"(\S+?)@(https?://\S+)")
URL = re.compile(r"https?://[^\s/]")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")  # usual form of an environment variable's name, unlike that of a key
TEXTS = ("name", "base_url", "key_env", "label", "form", "reasoning_effort")
COUNTS = ("concurrency", "max_tokens", "prompt_tokens")
POSITIVE = ("requests_per_minute", "tokens_per_minute", "timeout_seconds")
KEYS = tuple(field.name for field in fields(Model))
PRICE_KEYS = tuple(field.name for field in fields(Prices))


def read_models(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> tuple[Model, ...]:
    """Return the models given by `--model`, or the default one. No key is read and no server is contacted."""
    default = _default_model(environment)
    models = [model for word in words for model in _models(word.strip(), default)]
    return _distinct(models or [default])


def usable_models(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> tuple[Model, ...]:
    """Return these models, or raise a UserError if a key is missing or malformed. No server is contacted."""
    models = read_models(words, environment)
    key = environment.get(KEY_ENV, "").strip()
    if not key and any(model.key_env == KEY_ENV and model.base_url == OPENAI_URL for model in models):
        raise UserError(
            "no language model is configured",
            "Set OPENAI_API_KEY, or OPENAI_BASE_URL for any other OpenAI-compatible server "
            "(such as http://localhost:8000/v1).",
        )
    check_keys(models, environment)
    return models


def check_keys(models: Sequence[Model], environment: Mapping[str, str] = os.environ) -> None:
    """Raise a UserError if a key is missing or malformed."""
    for model in models:
        key = environment.get(model.key_env, "").strip() if model.key_env else ""
        if not key.isascii() or any(character.isspace() or not character.isprintable() for character in key):
            raise UserError(
                f"{model.key_env} contains characters that cannot be part of a key",
                "Copy the key again, without line breaks.",
            )
        if not key and model.key_env not in ("", KEY_ENV):
            if not VARIABLE.fullmatch(model.key_env):
                raise UserError(
                    f"{model.signature} needs a key, but key_env does not name a variable that is set",
                    "key_env is the name of a variable such as MY_KEY, never the key itself.",
                )
            raise UserError(
                f"{model.signature} needs a key, but {model.key_env} is not set", f"export {model.key_env}=..."
            )


def check_priced(words: Sequence[str], default: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise a UserError unless a limit in USD can be enforced with the models given by `--model`.

    Without `--model`, the model is `default`, such as the first one that a local server lists.
    """
    require_prices([model if words else replace(model, name=default) for model in read_models(words, environment)])


def check_spends(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """Raise a UserError if all models are free, because a limit in USD alone would never end the run."""
    if free(read_models(words, environment)):
        raise UserError("these models cost nothing, so --usd would never end the run", "add --minutes or --tokens")


def without_secrets(word: str) -> str:
    """Return an argument of `--model` without the credentials in its address."""
    match = NAME_AT_URL.fullmatch(word)
    return f"{match.group(1)}@{without_credentials(match.group(2))}" if match else _without_secrets(word)


def _default_model(environment: Mapping[str, str]) -> Model:
    """Return the default model, with the address, key and timeout that the environment sets."""
    base_url = environment.get(URL_ENV, "").strip()
    _check_url(base_url or OPENAI_URL, URL_ENV)
    text = environment.get(TIMEOUT_ENV, "")
    try:
        seconds = float(text or TIMEOUT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UserError(f"{TIMEOUT_ENV} must be a number of seconds, got {text!r}", "Set it to a number such as 120.")
    return Model(DEFAULT_MODEL, base_url or OPENAI_URL, KEY_ENV, timeout_seconds=seconds)


def _models(word: str, default: Model) -> list[Model]:
    if word.endswith(".toml"):
        return _in_file(Path(word), default)
    if match := NAME_AT_URL.fullmatch(word):
        name, base_url = match.groups()
        _check_url(base_url, "--model")
        return [_at(replace(default, name=name), base_url)]
    if "://" in word:
        raise UserError(
            f"--model must name a model at this address, got {_without_secrets(word)!r}",
            "Give it as NAME@http://localhost:8000/v1.",
        )
    if not word:
        raise UserError("--model must name a model, got an empty string", "Give a name, or leave --model out.")
    if not word.isprintable():
        raise UserError(
            f"--model contains characters that cannot be part of a name: {word!r}", "Check the text after --model."
        )
    return [replace(default, name=word)]


def _at(model: Model, base_url: str) -> Model:
    """Return the model at another address. The key of one address is never sent to another."""
    return model if base_url == model.base_url else replace(model, base_url=base_url, key_env="")


def _in_file(path: Path, default: Model) -> list[Model]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", "Check the path after --model.") from error
    except (ValueError, RecursionError) as error:  # RecursionError for brackets that are nested too deeply
        raise UserError(
            f"{path} is not TOML: {error}", "Put strings in quotes, and each model under [[model]]."
        ) from error
    _check_keys_known(found, ("model",), str(path))
    tables = found.get("model")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise UserError(f"{path} lists no models", 'Begin each with a line [[model]], then name = "...".')
    return [_from_table(table, default, f"{path}, model {number}") for number, table in enumerate(tables, start=1)]


def _from_table(table: dict[str, Any], default: Model, where: str) -> Model:
    _check_keys_known(table, KEYS, where)
    for key, value in table.items():
        if expected := _expected(key, value):
            raise UserError(f"{where}: `{key}` must be {expected}, got {value!r}", f"The keys are: {', '.join(KEYS)}.")
    if not table.get("name"):
        raise UserError(f"{where} has no name", 'Add name = "..." with the name that the server uses.')
    if "base_url" in table:
        _check_url(table["base_url"], f"{where}: base_url")
        default = _at(default, table["base_url"])
    prices = table.get("usd_per_million")
    return replace(default, **table | ({"usd_per_million": _prices(prices, where)} if prices is not None else {}))


def _expected(key: str, value: Any) -> str:
    """Return what the value of a key must be, or an empty string if the value is valid."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    rules = (
        (key in TEXTS, isinstance(value, str), "a string"),
        (key == "form", value in FORMS, f"one of {', '.join(FORMS)}"),
        (key in COUNTS, type(value) is int and value >= 1, "a whole number of at least 1"),
        (key in POSITIVE, number and 0 < value < 1e9, "a number above 0"),
        (key == "temperature", number and 0 <= value <= 2, "a number from 0 to 2"),
        (key == "tells_cost", isinstance(value, bool), "true or false"),
        (key == "usd_per_million", isinstance(value, dict), "a table of prices"),
    )
    return next((expected for applies, holds, expected in rules if applies and not holds), "")


def _prices(table: dict[str, Any], where: str) -> Prices:
    _check_keys_known(table, PRICE_KEYS, f"{where}, usd_per_million")
    for key, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise UserError(f"{where}: the price `{key}` must be in USD, got {value!r}", "Write it as prompt = 1.25.")
    if not {"prompt", "completion"} <= table.keys():
        raise UserError(
            f"{where}: usd_per_million must have prompt and completion, got {', '.join(table) or 'nothing'}",
            "Give both; cached may be left out.",
        )
    return Prices(**{key: float(value) for key, value in table.items()})


def _check_keys_known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"Did you mean `{near[0]}`?" if near else f"The keys are: {', '.join(known)}."
            raise UserError(f"{where}: unknown key `{key}`", hint)


def _check_url(base_url: str, where: str) -> None:
    try:
        parts = urlsplit(base_url)
        good = bool(URL.match(base_url) and parts.hostname and (parts.port is None or parts.port))
    except ValueError:  # a port that is not a number, or unbalanced brackets
        good = False
    if not good:
        shown = _without_secrets(base_url)
        raise UserError(f"{where} must be an address, got {shown!r}", "Write it as http://localhost:8000/v1.")


def _without_secrets(address: str) -> str:
    """Return a malformed address without the parts that may be credentials."""
    return re.sub(r"//[^/\s]*@", "//", address).partition("?")[0]


def _distinct(models: Sequence[Model]) -> tuple[Model, ...]:
    """Label models of the same name by their addresses. Raise a UserError if those are the same too."""
    names = Counter(model.signature for model in models)
    found = tuple(
        replace(model, label=f"{model.name}@{urlsplit(model.endpoint).netloc}")
        if names[model.signature] > 1 and not model.label
        else model
        for model in models
    )
    for signature, count in Counter(model.signature for model in found).items():
        if count > 1:
            raise UserError(f"{count} models are called {signature}", "Give each a `label` of its own in a .toml file.")
    return found

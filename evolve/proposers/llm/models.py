"""Language models: their settings, and how they are named after `--model`, in a .toml file or by the environment."""

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

from archive.proposals import Cost
from evolve.errors import UserError
from evolve.prompting.compose import FENCED, FORMS, MAX_TOKENS

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
        requested = {"temperature": self.temperature, limit: self.max_tokens}
        found: dict[str, Any] = {name: value for name, value in requested.items() if value is not None}
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


KEY_ENV, URL_ENV, TIMEOUT_ENV = "OPENAI_API_KEY", "OPENAI_BASE_URL", "EVOLVE_LLM_TIMEOUT"
NAME_AT_URL = re.compile(r"(\S+?)@(https?://\S+)")
URL = re.compile(r"https?://[^\s/]")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")  # as they are commonly named; a key looks different
TEXTS = ("name", "base_url", "key_env", "label", "form", "reasoning_effort")
COUNTS = ("concurrency", "max_tokens", "prompt_tokens")
POSITIVE = ("requests_per_minute", "tokens_per_minute", "timeout_seconds")
KEYS = tuple(field.name for field in fields(Model))
PRICE_KEYS = tuple(field.name for field in fields(Prices))


def read_models(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> tuple[Model, ...]:
    """The models meant; without any words the default one. No key is looked at, and nobody is asked."""
    usual = _usual(environment)
    models = [model for word in words for model in _models(word.strip(), usual)]
    return _told_apart(models or [usual])


def check_keys(models: Sequence[Model], environment: Mapping[str, str] = os.environ) -> None:
    """A UserError where a key is missing or cannot be one."""
    for model in models:
        key = environment.get(model.key_env, "").strip() if model.key_env else ""
        if not key.isascii() or any(character.isspace() or not character.isprintable() for character in key):
            raise UserError(
                f"{model.key_env} holds characters that no key has", "Copy the key again, without line breaks."
            )
        if not key and model.key_env not in ("", KEY_ENV):
            if not VARIABLE.fullmatch(model.key_env):
                raise UserError(
                    f"{model.signature} needs a key, and key_env names no variable that is set",
                    "key_env is the name of a variable such as MY_KEY, never the key itself.",
                )
            raise UserError(
                f"{model.signature} needs a key, and {model.key_env} is not set", f"export {model.key_env}=..."
            )


def check_priced(words: Sequence[str], asked: str, environment: Mapping[str, str] = os.environ) -> None:
    """A UserError unless a limit in USD can be kept with what was typed after `--model`.

    Without any words that is the model `asked`: the first of a server of one's own.
    """
    priced([model if words else replace(model, name=asked) for model in read_models(words, environment)])


def check_spends(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """A UserError where no model costs anything: a limit in dollars alone would let a run go on for ever."""
    if free(read_models(words, environment)):
        raise UserError("these models cost nothing, so --usd would never end the run", "add --minutes or --tokens")


def without_secrets(word: str) -> str:
    """What was typed after `--model`, without a name and password in its address."""
    match = NAME_AT_URL.fullmatch(word)
    return f"{match.group(1)}@{shown(match.group(2))}" if match else _without_secrets(word)


def _usual(environment: Mapping[str, str]) -> Model:
    """What holds where nothing else is said: the address, the key and the time-out of the environment."""
    base_url = environment.get(URL_ENV, "").strip()
    _check_url(base_url or OPENAI_URL, URL_ENV)
    text = environment.get(TIMEOUT_ENV, "")
    try:
        seconds = float(text or TIMEOUT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UserError(f"{TIMEOUT_ENV} is no number of seconds: {text!r}", "Set it to a number such as 120.")
    return Model(DEFAULT_MODEL, base_url or OPENAI_URL, KEY_ENV, timeout_seconds=seconds)


def _models(word: str, usual: Model) -> list[Model]:
    if word.endswith(".toml"):
        return _in_file(Path(word), usual)
    if match := NAME_AT_URL.fullmatch(word):
        name, base_url = match.groups()
        _check_url(base_url, "--model")
        return [_at(replace(usual, name=name), base_url)]
    if "://" in word:
        raise UserError(
            f"--model {_without_secrets(word)!r} names no model at an address", "Such as NAME@http://localhost:8000/v1."
        )
    if not word:
        raise UserError("--model names no model", "Give a NAME, or leave --model out for the usual one.")
    if not word.isprintable():
        raise UserError(f"--model {word!r} holds characters that no name has", "Check what follows --model.")
    return [replace(usual, name=word)]


def _at(model: Model, base_url: str) -> Model:
    """The same model elsewhere: the key of one address is never sent to another."""
    return model if base_url == model.base_url else replace(model, base_url=base_url, key_env="")


def _in_file(path: Path, usual: Model) -> list[Model]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", "Check the path after --model.") from error
    except (ValueError, RecursionError) as error:  # also for numbers too long, and brackets too deep
        raise UserError(
            f"{path} is no TOML: {error}", "Put texts in quotes, and each model under [[model]]."
        ) from error
    _check_keys_known(found, ("model",), str(path))
    tables = found.get("model")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise UserError(f"{path} names no models", 'Begin each with a line [[model]], then name = "...".')
    return [_from_table(table, usual, f"{path}, model {number}") for number, table in enumerate(tables, start=1)]


def _from_table(table: dict[str, Any], usual: Model, where: str) -> Model:
    _check_keys_known(table, KEYS, where)
    for key, value in table.items():
        if wrong := _wrong(key, value):
            raise UserError(f"{where}: `{key}` is {wrong}, not {value!r}", f"The keys are: {', '.join(KEYS)}.")
    if not table.get("name"):
        raise UserError(f"{where} has no name", 'Give it as name = "...", as the server calls it.')
    if "base_url" in table:
        _check_url(table["base_url"], where)
        usual = _at(usual, table["base_url"])
    prices = table.get("usd_per_million")
    return replace(usual, **table | ({"usd_per_million": _prices(prices, where)} if prices is not None else {}))


def _wrong(key: str, value: Any) -> str:
    """What the value of a key must be, if it is something else."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    rules = (
        (key in TEXTS, isinstance(value, str), "a text"),
        (key == "form", value in FORMS, f"one of {', '.join(FORMS)}"),
        (key in COUNTS, type(value) is int and value >= 1, "a whole number from 1"),
        (key in POSITIVE, number and 0 < value < 1e9, "a number above 0"),
        (key == "temperature", number and 0 <= value <= 2, "a number from 0 to 2"),
        (key == "tells_cost", isinstance(value, bool), "true or false"),
        (key == "usd_per_million", isinstance(value, dict), "a table of prices"),
    )
    return next((must for applies, holds, must in rules if applies and not holds), "")


def _prices(table: dict[str, Any], where: str) -> Prices:
    _check_keys_known(table, PRICE_KEYS, f"{where}, usd_per_million")
    for key, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise UserError(f"{where}: the price `{key}` is no number of USD: {value!r}", "Such as prompt = 1.25.")
    if not {"prompt", "completion"} <= table.keys():
        raise UserError(f"{where}: usd_per_million wants prompt and completion", "Give both; cached may be left out.")
    return Prices(**{key: float(value) for key, value in table.items()})


def _check_keys_known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            meant = f"Did you mean `{near[0]}`?" if near else f"The keys are: {', '.join(known)}."
            raise UserError(f"{where}: unknown key `{key}`", meant)


def _check_url(base_url: str, where: str) -> None:
    try:
        parts = urlsplit(base_url)
        good = bool(URL.match(base_url) and parts.hostname and (parts.port is None or parts.port))
    except ValueError:  # no port, or a broken address in brackets
        good = False
    if not good:
        told = _without_secrets(base_url)
        raise UserError(f"{where} is no address: {told!r}", "It looks like http://localhost:8000/v1.")


def _without_secrets(address: str) -> str:
    """Of something that is no address, yet may hold what an address does."""
    return re.sub(r"//[^/\s]*@", "//", address).partition("?")[0]


def _told_apart(models: Sequence[Model]) -> tuple[Model, ...]:
    """Models of the same name sign with their address too; where that is the same as well, a label is needed."""
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

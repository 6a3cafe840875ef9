"""What a refused or failed request means: ask again, ask in other words, give up, or stop asking this model."""

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from evolve.proposers.llm.models import MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME

PASSING = frozenset({408, 409, 425, 429})  # and whatever is 500 or more
SPENT_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0
LONGEST_SECONDS = 900.0  # a server that wants to be left alone for longer is not waited for
REFUSES = re.compile(
    r"unsupported|not support|unknown|unrecogni[sz]ed|not permitted|not allowed|unexpected|extra inputs|deprecated"
)
OTHER_NAME = {MAX_TOKENS_NAME: OPENAI_MAX_TOKENS_NAME, OPENAI_MAX_TOKENS_NAME: MAX_TOKENS_NAME}


@dataclass(frozen=True)
class Fault:
    """Why a request brought no reply, and what may be done about it."""

    reason: str
    tries: int = 0  # how often it may be asked again
    wait_seconds: float | None = None  # as the server wished
    stops: str = ""  # what is wrong with the model or its address, where asking on is pointless
    hint: str = ""


def passing(status: int) -> bool:
    return status in PASSING or status >= 500


def wished_wait(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that a server asks for in Retry-After, as a number or as a date, or None."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) * unit
        except ValueError:
            seconds = _until(value, now) if value else -1.0
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def back_off(attempt: int, rng: random.Random) -> float:
    """Twice as long each time, and never the same for all who were refused together."""
    return min(FIRST_SECONDS * 2.0**attempt, MOST_SECONDS) * rng.uniform(0.5, 1.0)


def code_of(body: object, key: str) -> str:
    """A field of the error that a server sent, wherever it put it."""
    for place in (body, body.get("error") if isinstance(body, dict) else None):
        if isinstance(place, dict) and isinstance(place.get(key), str):
            return str(place[key])
    return ""


def refused_parameter(status: int, message: str, body: object, sent: Iterable[str]) -> str:
    """The parameter that a server does not know or does not want, of those that were sent, or nothing."""
    if status not in (400, 422):
        return ""
    said = message.lower()
    if not (REFUSES.search(said) or code_of(body, "code").startswith("unsupported")):
        return ""
    blamed = code_of(body, "param")
    # The longest first: one name is a part of another.
    names = sorted(sent, key=len, reverse=True)
    mentioned = sorted((name for name in names if re.search(rf"\b{name}\b", said)), key=said.index)
    return blamed if blamed in names else next(iter(mentioned), "")


def changed(parameters: Mapping[str, Any], learned: Mapping[str, str]) -> dict[str, Any]:
    """The parameters as this server takes them; what was learned maps a name to another one, or to nothing."""
    found = {}
    for name, value in parameters.items():
        kept = name
        while kept in learned:
            kept = learned[kept]
        if kept:
            found[kept] = value
    return found


def lesson(refused: str, learned: Mapping[str, str]) -> str:
    """What to send instead of a refused parameter: the other name of the same thing, once, or nothing."""
    other = OTHER_NAME.get(refused, "")
    return "" if other in learned else other


def _until(date: str, now: float) -> float:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return -1.0

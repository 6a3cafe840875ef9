"""Questions to language models: which model, which operator, which parents, and the text that is sent."""

import functools
import hashlib
import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

from archive.exchange import encode_custom_id, request_line
from archive.kernel import Kernel
from evolve.prompting.compose import (
    CROSSOVER,
    DRAFT,
    EXPLORE,
    IMPROVE,
    PORT,
    REPAIR,
    SPECIALISE,
    Message,
    answer_form,
    ask_again,
    compose,
)
from evolve.prompting.kernel_sections import weakest_workload
from evolve.proposers.llm import bandit
from evolve.proposers.llm.chat import Call
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.reply import without_thoughts
from evolve.request import Candidate, Request
from reference_ops.op import Op, ops_of

NONCE_CHARACTERS = 7  # with two parents there is no room for more in the id of a batch request


@dataclass(frozen=True)
class Ask:
    """One question: to whom, the operator, what it is applied to, and the words."""

    model: Model
    operator: str
    parents: tuple[str, ...]
    messages: tuple[Message, ...]
    nonce: str  # tells it from every other question of the run
    kernels: tuple[Kernel, ...] = ()  # the parents, which edits in the reply are meant for
    again: bool = False  # it follows a reply that could not be read

    @property
    def call(self) -> Call:
        return Call(self.model, self.operator, self.messages)

    def once_more(self, reply: str, failure: str) -> "Ask":
        """The same conversation with a request for what the reply lacks."""
        form = answer_form(self.operator, self.model.form)
        messages = (*self.messages, *ask_again(without_thoughts(reply), failure, form))
        return replace(self, messages=messages, nonce=_nonce(self.nonce, "again"), again=True)


def asks(request: Request, models: Sequence[Model], reference_source: str) -> tuple[Ask, ...]:
    """Up to `request.wanted` questions, chosen as the request's seed and what became of earlier ones have it."""
    rng = random.Random(request.seed)
    by_signature = {model.signature: model for model in models}
    arms = [(signature, operator) for signature in by_signature for operator in operators(request)]
    chosen = bandit.choose(arms, request.trials, max(request.wanted, 0), rng, most(request))
    turns = Counter[str]()
    found = []
    for index, (signature, operator) in enumerate(chosen):
        chosen_parents = parents(request, operator, turns[operator], rng)
        turns[operator] += 1
        found.append(asked(request, by_signature[signature], operator, chosen_parents, reference_source, index))
    return tuple(found)


def asked(
    request: Request, model: Model, operator: str, parents: tuple[Candidate, ...], reference_source: str, index: int
) -> Ask:
    """One question; `index` tells it from the request's others."""
    kernels = tuple(parent.kernel for parent in parents)
    messages = compose(request, operator, parents, reference_source, model.form, model.prompt_tokens)
    nonce = _nonce(request.run, request.seed, index)
    return Ask(model, operator, tuple(kernel.id for kernel in kernels), messages, nonce, kernels)


def requests(request: Request, models: Sequence[Model], reference_source: str) -> Iterator[str]:
    """The same questions as lines of a Batch API input file."""
    return (line(request.op.name, ask) for ask in asks(request, models, reference_source))


def line(op: str, ask: Ask) -> str:
    """A question as a line of a Batch API input file."""
    custom_id = encode_custom_id(op, ask.operator, ask.parents, ask.nonce)
    messages = [(message.role, message.content) for message in ask.messages]
    return request_line(custom_id, ask.model.name, messages, ask.model.parameters)


def _nonce(*parts: object) -> str:
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:NONCE_CHARACTERS]


T = TypeVar("T")


def operators(request: Request) -> tuple[str, ...]:
    """All that apply. Where nothing is known yet, and nothing is shown, only a draft does."""
    alive = bool(request.population)
    applies = {
        DRAFT: True,
        IMPROVE: bool(_parents(request)),
        EXPLORE: alive,
        CROSSOVER: bool(_pairs(request)),
        REPAIR: bool(request.failures),
        SPECIALISE: len({m.workload for c in request.population for m in c.evaluation.measurements}) > 1,
        PORT: alive and bool(request.donors),
    }
    return tuple(operator for operator, possible in applies.items() if possible)


def most(request: Request) -> dict[str, int]:
    """How many of a request's questions may use an operator, where that is bounded: repairs, each failure once."""
    return {REPAIR: min(len(request.failures), max(request.wanted // 2, 1))}


def parents(request: Request, operator: str, turn: int, rng: random.Random) -> tuple[Candidate, ...]:
    """What an operator is applied to when it has its nth turn in a request."""
    if operator == CROSSOVER:
        first, others = _nth(_pairs(request), turn)
        return first, rng.choice(others)
    if operator == SPECIALISE:
        return (_leader(request),)
    candidates = {IMPROVE: _parents(request), REPAIR: request.failures, PORT: request.donors}.get(operator, ())
    return (_nth(candidates, turn),) if candidates else ()


def _parents(request: Request) -> Sequence[Candidate]:
    return request.parents or request.population


def _pairs(request: Request) -> list[tuple[Candidate, list[Candidate]]]:
    """Every parent with the kernels of other designs: two settings of one design have nothing to give each other."""
    found = []
    for parent in _parents(request):
        others = [other for other in request.population if other.kernel.family != parent.kernel.family]
        if others:
            found.append((parent, others))
    return found


def _leader(request: Request) -> Candidate:
    """The champion of the workload where the population is weakest; where nobody runs that, the fittest."""
    weak, _ = weakest_workload(request)
    times = [
        (measurement.median_us, place)
        for place, candidate in enumerate(request.population)
        for measurement in candidate.evaluation.measurements
        if measurement.workload == weak
    ]
    return request.population[min(times)[1] if times else 0]


def _nth(found: Sequence[T], turn: int) -> T:
    return found[turn % len(found)]


MAX_FILE_CHARACTERS = 10_000


def reference_source(op: Op) -> str:
    """As much as Python can tell of it."""
    reference: Any = inspect.unwrap(op.reference)
    while isinstance(reference, functools.partial):
        reference = reference.func
    if not inspect.isroutine(reference):
        reference = type(reference)
    try:
        if isinstance(reference, FunctionType) and len(ops_of(inspect.getmodule(reference))) > 1:
            return "\n\n".join(dict.fromkeys(map(_source, _used(reference, []))))
        path = inspect.getsourcefile(reference)
        text = Path(path).read_text(encoding="utf-8") if path else ""
        return text if 0 < len(text) <= MAX_FILE_CHARACTERS else inspect.getsource(reference)
    except (OSError, TypeError, ValueError):
        return ""


def _used(function: FunctionType, seen: list[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """The function, and those of our own that it calls, in the order in which they are met."""
    if function in seen:
        return seen
    seen.append(function)
    closed = inspect.getclosurevars(function).nonlocals
    for name in dict.fromkeys(_names(function.__code__)):
        other = closed.get(name, function.__globals__.get(name))
        if isinstance(other, FunctionType) and other.__module__.startswith("reference_ops."):
            _used(other, seen)
    return seen


def _names(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(function: Callable[..., Any]) -> str:
    """Of a function within another, that one's: what it was made with stands there."""
    outer = function.__qualname__.partition(".<locals>")[0]
    home = inspect.getmodule(function)
    return inspect.getsource(getattr(home, outer, function) if outer != "<lambda>" else function).rstrip() + "\n"

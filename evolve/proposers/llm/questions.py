"""Questions to language models: the choice of model, operator and parents, and the messages to send."""

import functools
import hashlib
import inspect
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

from archive.exchange import encode_custom_id, request_line
from archive.kernel import Kernel
from evolve.prompting.compose import ask_again, compose, compose_designs, draft_design
from evolve.prompting.kernel_sections import weakest_workload
from evolve.prompting.operators import (
    CROSSOVER,
    DESIGNS,
    DRAFT,
    EXPLORE,
    IMPROVE,
    PORT,
    REPAIR,
    SPECIALISE,
    answer_form,
)
from evolve.prompting.text import Message, one_line
from evolve.proposers.llm import bandit
from evolve.proposers.llm.chat import Call
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.reply import without_thoughts
from evolve.request import Candidate, Request
from reference_ops.op import Op, ops_of

NONCE_CHARACTERS = 7  # the id of a batch request with two parents has no room for more
MAX_FILE_CHARACTERS = 10_000  # longest file that is shown completely
MAX_CONSTANT = 200  # largest number of characters of a value that a function reads from its module

# Largest number of requested designs, and the number of kernels for each, so that one bad kernel does not end an idea.
MOST_DESIGNS, IMPLEMENTATIONS = 5, 2
MAX_DESIGN = 400  # largest number of characters of a design
NUMBERED, ITEM = re.compile(r"\s*(?:\*\*)?\d+[.)]\s*(.*\S)"), re.compile(r"\s*[-*+]\s+(.*\S)")

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt:
    """Messages for one model, with their operator and parents."""

    model: Model
    operator: str
    parents: tuple[str, ...]
    messages: tuple[Message, ...]
    nonce: str  # text that differs for each prompt of a run
    kernels: tuple[Kernel, ...] = ()  # the parents, to which edits in the reply refer
    again: bool = False  # whether it follows a reply that could not be read

    @property
    def call(self) -> Call:
        return Call(self.model, self.operator, self.messages)

    def once_more(self, reply: str, failure: str) -> "Prompt":
        """Return the prompt that continues the conversation after a reply that could not be read."""
        form = answer_form(self.operator, self.model.form)
        messages = (*self.messages, *ask_again(without_thoughts(reply), failure, form))
        return replace(self, messages=messages, nonce=_nonce(self.nonce, "again"), again=True)


def prompts(request: Request, models: Sequence[Model], reference_source: str) -> tuple[Prompt, ...]:
    """Return up to `request.wanted` prompts, chosen by the request's seed and the results of earlier prompts."""
    rng = random.Random(request.seed)
    by_signature = {model.signature: model for model in models}
    arms = [(signature, operator) for signature in by_signature for operator in applicable_operators(request)]
    chosen = bandit.choose(arms, request.trials, max(request.wanted, 0), rng, most_per_operator(request))
    turns = Counter[str]()
    found = []
    for index, (signature, operator) in enumerate(chosen):
        parents = choose_parents(request, operator, turns[operator], rng)
        turns[operator] += 1
        found.append(prompt_for(request, by_signature[signature], operator, parents, reference_source, index))
    return tuple(found)


def prompt_for(
    request: Request, model: Model, operator: str, parents: tuple[Candidate, ...], reference_source: str, index: int
) -> Prompt:
    """Return one prompt; `index` distinguishes it from the other prompts of the request."""
    kernels = tuple(parent.kernel for parent in parents)
    messages = compose(request, operator, parents, reference_source, model.form, model.prompt_tokens)
    nonce = _nonce(request.run, request.seed, index)
    return Prompt(model, operator, tuple(kernel.id for kernel in kernels), messages, nonce, kernels)


def opening(request: Request, models: Sequence[Model], reference_source: str) -> tuple[Prompt, ...]:
    """Return the first prompts: for an op without kernels, a prompt that asks for designs, else those of `prompts`."""
    number = designs_wanted(request)
    if not number:
        return prompts(request, models, reference_source)
    model = random.Random(request.seed).choice(list(models))
    messages = compose_designs(request, number, reference_source, model.prompt_tokens)
    return (Prompt(model, DESIGNS, (), messages, _nonce(request.run, request.seed, DESIGNS)),)


def designs_wanted(request: Request) -> int:
    """Return the number of designs to request. Each is written more than once, unless few kernels are wanted."""
    wanted = request.wanted if request.left.evals is None else min(request.wanted, request.left.evals - 1)
    return min(MOST_DESIGNS, max(2, wanted // IMPLEMENTATIONS)) if request.untried and wanted > 1 else 0


def drafts(
    request: Request, models: Sequence[Model], reference_source: str, asked: Prompt, reply: str
) -> tuple[Prompt, ...]:
    """Return prompts for kernels by the designs in a reply, or those of `prompts` if it has fewer than two."""
    found = designs_in(reply)[:MOST_DESIGNS]
    plain = prompts(request, models, reference_source)
    if len(found) < 2:
        return plain
    return tuple(
        replace(prompt, messages=draft_design(asked.messages, found, index % len(found) + 1, prompt.model.form))
        for index, prompt in enumerate(plain)
    )


def designs_in(reply: str) -> list[str]:
    """Return the designs in a reply: its numbered lines, or else its list items, without repetitions."""
    lines = without_thoughts(reply).splitlines()
    for mark in (NUMBERED, ITEM):
        found = [one_line(match[1].replace("**", ""), MAX_DESIGN) for line in lines if (match := mark.match(line))]
        if found:
            return list({design.casefold(): design for design in found}.values())
    return []


def batch_line(op: str, prompt: Prompt) -> str:
    """Return the prompt as a line of a Batch API input file."""
    custom_id = encode_custom_id(op, prompt.operator, prompt.parents, prompt.nonce)
    messages = [(message.role, message.content) for message in prompt.messages]
    return request_line(custom_id, prompt.model.name, messages, prompt.model.parameters)


def applicable_operators(request: Request) -> tuple[str, ...]:
    """Return the operators that can be applied. Without a population and failures, that is only a draft."""
    alive = bool(request.population)
    applies = {
        DRAFT: True,
        IMPROVE: bool(_improvable(request)),
        EXPLORE: alive,
        CROSSOVER: bool(_pairs(request)),
        REPAIR: bool(request.failures),
        SPECIALISE: len({m.workload for c in request.population for m in c.evaluation.measurements}) > 1,
        PORT: alive and bool(request.donors),
    }
    return tuple(operator for operator, possible in applies.items() if possible)


def most_per_operator(request: Request) -> dict[str, int]:
    """Return limits on prompts by operator: at most one repair per failure, and repairs in half of the prompts."""
    return {REPAIR: min(len(request.failures), max(request.wanted // 2, 1))}


def choose_parents(request: Request, operator: str, turn: int, rng: random.Random) -> tuple[Candidate, ...]:
    """Return the parents for the use of an operator; `turn` counts its earlier uses in the request."""
    if operator == CROSSOVER:
        first, others = _nth(_pairs(request), turn)
        return first, rng.choice(others)
    if operator == SPECIALISE:
        return (_weakest_champion(request),)
    candidates = {IMPROVE: _improvable(request), REPAIR: request.failures, PORT: request.donors}.get(operator, ())
    return (_nth(candidates, turn),) if candidates else ()


def _improvable(request: Request) -> Sequence[Candidate]:
    return request.parents or request.population


def _pairs(request: Request) -> list[tuple[Candidate, list[Candidate]]]:
    """Return each parent with the kernels of other families, because there is nothing to combine within a family."""
    found = []
    for parent in _improvable(request):
        others = [other for other in request.population if other.kernel.family != parent.kernel.family]
        if others:
            found.append((parent, others))
    return found


def _weakest_champion(request: Request) -> Candidate:
    """Return the champion of the population's weakest workload, or the fittest kernel if none runs it."""
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


def _nonce(*parts: object) -> str:
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:NONCE_CHARACTERS]


def reference_source(op: Op) -> str:
    """Return the Python source of the op's reference: its file or the functions it uses; empty if not found."""
    reference: Any = inspect.unwrap(op.reference)
    while isinstance(reference, functools.partial):
        reference = reference.func
    if not inspect.isroutine(reference):
        reference = type(reference)
    try:
        if isinstance(reference, FunctionType) and _stands_alone(reference):
            used = _used(reference, [])
            return "\n\n".join(dict.fromkeys([*_constants(reference, used), *map(_source, used)]))
        path = inspect.getsourcefile(reference)
        text = Path(path).read_text(encoding="utf-8") if path else ""
        return text if 0 < len(text) <= MAX_FILE_CHARACTERS else inspect.getsource(reference)
    except (OSError, TypeError, ValueError):
        return ""


def _used(function: FunctionType, seen: list[FunctionType]) -> list[FunctionType]:
    """Return the function and those of its module or `reference_ops` that it calls, in order of their first use."""
    if function in seen:
        return seen
    seen.append(function)
    closed = inspect.getclosurevars(function).nonlocals
    for name in dict.fromkeys(_names(function.__code__)):
        other = closed.get(name, function.__globals__.get(name))
        near = isinstance(other, FunctionType) and other.__module__ in (function.__module__, seen[0].__module__)
        if isinstance(other, FunctionType) and (near or other.__module__.startswith("reference_ops.")):
            _used(other, seen)
    return seen


def _stands_alone(function: FunctionType) -> bool:
    """Return whether the rest of its file is unrelated: it has several ops, or is a program with a plain function."""
    ops = ops_of(inspect.getmodule(function))
    return len(ops) > 1 or (not ops and "." not in function.__qualname__)


def _constants(function: FunctionType, used: Sequence[Callable[..., Any]]) -> Iterator[str]:
    """Yield the numbers and texts that the functions of a user's program read from their module."""
    if function.__module__.startswith("reference_ops."):
        return
    for one in used:
        for name in dict.fromkeys(_names(one.__code__)):
            value = one.__globals__.get(name)
            if type(value) in (bool, int, float, str, tuple) and len(repr(value)) <= MAX_CONSTANT:
                yield f"{name} = {value!r}"


def _names(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(function: Callable[..., Any]) -> str:
    """Return the source of a function or, if it is nested, of the enclosing function, which defines its closure."""
    outer = function.__qualname__.partition(".<locals>")[0]
    home = inspect.getmodule(function)
    return inspect.getsource(getattr(home, outer, function) if outer != "<lambda>" else function).rstrip() + "\n"

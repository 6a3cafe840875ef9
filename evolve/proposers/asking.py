"""Which operator to ask a model for, and with which words: the same for a live model and for a batch."""

import functools
import hashlib
import inspect
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from archive.exchange import encode_custom_id, request_line
from evolve.prompting.compose import DRAFT, IMPROVE, REPAIR, Message, compose
from evolve.proposers.proposer import Candidate, Request
from reference_ops.op import Op

DRAFT_SHARE = 0.15  # of the requests that could improve a parent
MAX_FILE_CHARACTERS = 10_000
NONCE_CHARACTERS = 8


@dataclass(frozen=True)
class Ask:
    """One question to a model: the operator, what it is applied to, and the words."""

    operator: str
    parents: tuple[str, ...]
    messages: tuple[Message, ...]


def asks(request: Request, reference_source: str) -> tuple[Ask, ...]:
    """`request.wanted` questions: repairs first, then improvements and drafts, as the request's seed has it."""
    return tuple(
        Ask(
            operator,
            tuple(parent.kernel.id for parent in parents),
            compose(request, operator, parents, reference_source),
        )
        for operator, parents in _chosen(request)
    )


def requests(request: Request, model: str, reference_source: str) -> Iterator[str]:
    """The same questions as lines of a Batch API input file."""
    for index, ask in enumerate(asks(request, reference_source)):
        nonce = hashlib.sha256(f"{request.run} {request.seed} {index}".encode()).hexdigest()[:NONCE_CHARACTERS]
        custom_id = encode_custom_id(request.op.name, ask.operator, ask.parents, nonce)
        yield request_line(custom_id, model, [(message.role, message.content) for message in ask.messages])


def reference_source(op: Op) -> str:
    """The text of the file that defines the op's reference, or as much as Python can tell of it."""
    reference = inspect.unwrap(op.reference)
    while isinstance(reference, functools.partial):
        reference = reference.func
    if not inspect.isroutine(reference):
        reference = type(reference)
    try:
        path = inspect.getsourcefile(reference)
        text = Path(path).read_text() if path else ""
        return text if 0 < len(text) <= MAX_FILE_CHARACTERS else inspect.getsource(reference)
    except (OSError, TypeError, ValueError):
        return ""


def _chosen(request: Request) -> Iterator[tuple[str, tuple[Candidate, ...]]]:
    chance = random.Random(request.seed)
    # Half of a single question is none: then chance decides, so that failures are not left lying for ever.
    most = request.wanted // 2 if request.wanted != 1 else chance.randint(0, 1)
    repaired = request.failures[:most]
    for failure in repaired:
        yield REPAIR, (failure,)
    for index in range(max(request.wanted, 0) - len(repaired)):
        if not request.parents or chance.random() < DRAFT_SHARE:
            yield DRAFT, ()
        else:
            yield IMPROVE, (request.parents[index % len(request.parents)],)

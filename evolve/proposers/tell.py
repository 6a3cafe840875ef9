"""Kernels that come as files: `.cu` from a person, `.jsonl` from a batch that a model worked through."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from archive import exchange, kernel
from archive.exchange import BatchReply, CustomId
from archive.kernel import Kernel
from archive.plan import PlanError
from archive.proposals import Proposal
from evolve.errors import UserError
from evolve.op_on_device import signature
from evolve.proposers.llm.chat import cost_of
from evolve.proposers.llm.reply import kernel_in, proposal_from
from evolve.request import Request

TELL = "tell"
MAX_BYTES = 2**30
SUFFIXES = (".cu", ".jsonl")
NO_OP = "neither its custom_id, which `evolve ask` did not write, nor a kernel in the reply names an op"
NAMED_OP = re.compile(r"""^\s*op\s*=\s*["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class TellProposer:
    """Proposes what stands in files, kernels before failures; a kernel the archive knows is not told again."""

    files: tuple[Path, ...]
    name: str = TELL
    kernels: Mapping[str, Kernel] = field(default_factory=dict)  # by id: what edits in a reply are meant for
    operator: str = TELL  # how the kernels in `.cu` files were made, and from which
    parents: tuple[str, ...] = ()

    def propose(self, request: Request) -> Iterator[Proposal]:
        failed: list[Proposal] = []
        left = request.wanted
        for told in _told(self.files):
            if left <= 0:
                return
            if not told.is_for(request.op.name):
                continue
            proposal = self._proposal(told, request)
            if proposal.kernel is None:
                failed.append(proposal)
            elif proposal.kernel_id not in request.known:
                left -= 1
                yield proposal
        yield from failed[: max(left, 0)]

    def _proposal(self, told: "_Found", request: Request) -> Proposal:
        origin = Proposal(request.op.name, self.operator, TELL, None, self.parents, request.run)
        if told.reply is None:
            return _from_text(told, request, origin)
        parents = told.asked.parents if told.asked else ()
        origin = replace(
            origin,
            operator=told.asked.operator if told.asked else TELL,
            parents=parents,
            proposer=told.reply.model or TELL,
            cost=cost_of(told.reply, (), None),
            call=told.asked.nonce if told.asked else told.reply.custom_id,
        )
        if told.reply.failure:
            return replace(origin, reply=told.text, failure=f"{told.file.name}, {told.reply.failure}")
        edited = [self.kernels[parent] for parent in parents if parent in self.kernels]
        return proposal_from(told.text, request.op, origin, edited)


def ops_in(files: tuple[Path, ...]) -> tuple[str, ...]:
    """The ops that the files hold kernels or replies for, in order."""
    tolds = list(_told(files))
    named = dict.fromkeys(told.named for told in tolds if told.named and told.is_for(told.named))
    labels = dict.fromkeys(told.asked.op for told in tolds if told.asked)
    # The name of a long op is known only from the kernels that were written for it.
    unnamed = (label for label in labels if not any(exchange.labels(label, name) for name in named))
    return (*named, *unnamed)


def strays(files: tuple[Path, ...]) -> tuple[str, ...]:
    """Replies of which nobody can say what op they are for, each with its line and why nothing comes of it."""
    return tuple(
        f"{told.file.name}, {told.reply.failure or f'line {told.line}: {NO_OP}'}"
        for told in _told(files)
        if told.reply and not (told.asked or told.named or told.fallback)
    )


@dataclass(frozen=True)
class _Found:
    """One kernel's text or one reply, and what is known of where it came from."""

    file: Path
    text: str
    named: str  # the op that the kernel's own plan names
    asked: CustomId | None = None
    reply: BatchReply | None = None
    fallback: str = ""  # the op it is counted to where nothing names one
    line: int = 0  # of a batch

    def is_for(self, op: str) -> bool:
        if self.asked:
            return exchange.labels(self.asked.op, op)
        return exchange.labels(self.named or self.fallback or op, op)


def _told(files: tuple[Path, ...]) -> Iterator[_Found]:
    for file in files:
        text = _read(file)
        if file.suffix == ".cu":
            yield _from_source(file, text)
        else:
            yield from _from_batch(file, text)


def _read(file: Path) -> str:
    if file.suffix not in SUFFIXES:
        raise UserError(
            f"{file}: cannot tell what is in a `{file.suffix}` file",
            "Give kernels as .cu files and a batch's output as a .jsonl file.",
        )
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UserError(f"{file} has more than {MAX_BYTES >> 20} MiB", "Split it into several files.")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no UTF-8 text: {error}", "Save it as UTF-8.") from error


def _from_source(file: Path, text: str) -> _Found:
    named = _op_named(text)
    if not named:
        raise UserError(
            f"{file} names no op",
            f'A kernel begins with its plan: {kernel.OPEN}, then a line such as op = "softmax".',
        )
    return _Found(file, text, named)


def _from_batch(file: Path, text: str) -> Iterator[_Found]:
    replies = list(exchange.read_replies(text))
    if not replies:
        raise UserError(f"{file} holds no replies", "Give the output file of a batch, or its file of errors.")
    lines = [number for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    tolds = [
        _Found(file, reply.text, _op_named(kernel_in(reply.text)), exchange.decode_custom_id(reply.custom_id), reply,
              line=line)
        for line, reply in zip(lines, replies, strict=True)
    ]  # fmt: skip
    # The first op of a file also owns the lines that name none, so that their failures are told once.
    ops = (told.asked.op if told.asked else told.named for told in tolds)
    fallback = next(filter(None, ops), "")
    yield from (replace(told, fallback=fallback) for told in tolds)


def _op_named(text: str) -> str:
    header = text.partition(kernel.OPEN)[2].partition(kernel.CLOSE)[0]
    match = NAMED_OP.search(header)
    return match.group(1) if match else ""


def _from_text(told: _Found, request: Request, origin: Proposal) -> Proposal:
    """A `.cu` file holds one kernel and nothing else, so it is read as it stands."""
    try:
        return replace(origin, kernel=kernel.parse_for(told.text, signature(request.op)))
    except PlanError as error:
        return replace(origin, reply=told.text, failure=f"{told.file.name}, {error}")

"""The tell proposer: kernels from files, either `.cu` files or `.jsonl` files with a model's replies to a batch."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from archive import exchange
from archive.binding import parse_for
from archive.exchange import BatchReply, CustomId
from archive.kernel import CLOSE, OPEN, Kernel, Proposal
from archive.plan import PlanError
from evolve.errors import UserError
from evolve.op_on_device import signature
from evolve.proposers.llm.chat import cost_of
from evolve.proposers.llm.reply import kernel_in, proposal_from
from evolve.request import Request

TELL = "tell"
MAX_BYTES = 2**30
SUFFIXES = (".cu", ".jsonl")
LINES_SHOWN = 12
NO_OP = "no op is named, neither by its custom_id, which `evolve ask` did not write, nor by a kernel in the reply"
NAMED_OP = re.compile(r"""^\s*op\s*=\s*["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class TellProposer:
    """A proposer of the kernels in files that are new to the archive, followed by the replies without a kernel."""

    files: tuple[Path, ...]
    name: str = TELL
    kernels: Mapping[str, Kernel] = field(default_factory=dict)  # kernels to which edits in a reply refer; key: id
    operator: str = TELL  # operator by which the kernels in `.cu` files were made from `parents`
    parents: tuple[str, ...] = ()

    def propose(self, request: Request) -> Iterator[Proposal]:
        """Yield the op's kernels in the order of the files, then the failures."""
        failed: list[Proposal] = []
        left = request.wanted
        for entry in _entries(self.files):
            if left <= 0:
                return
            if not entry.is_for(request.op.name):
                continue
            proposal = self._proposal(entry, request)
            if proposal.kernel is None:
                failed.append(proposal)
            elif proposal.kernel_id not in request.known:
                left -= 1
                yield proposal
        yield from failed[: max(left, 0)]

    def _proposal(self, entry: "_Entry", request: Request) -> Proposal:
        origin = Proposal(request.op.name, self.operator, TELL, None, self.parents, request.run)
        if entry.reply is None:
            return _from_source(entry, request, origin)
        parents = entry.custom_id.parents if entry.custom_id else ()
        origin = replace(
            origin,
            operator=entry.custom_id.operator if entry.custom_id else TELL,
            parents=parents,
            proposer=entry.reply.model or TELL,
            cost=cost_of(entry.reply, (), None),
            call=entry.custom_id.nonce if entry.custom_id else entry.reply.custom_id,
        )
        if entry.reply.failure:
            return replace(origin, reply=entry.text, failure=f"{entry.file.name}, {entry.reply.failure}")
        edited = [self.kernels[parent] for parent in parents if parent in self.kernels]
        return proposal_from(entry.text, request.op, origin, edited)


def ops_in(files: tuple[Path, ...]) -> tuple[str, ...]:
    """Return the ops for which the files contain kernels or replies, in order."""
    entries = list(_entries(files))
    named = dict.fromkeys(entry.named_op for entry in entries if entry.named_op and entry.is_for(entry.named_op))
    labels = dict.fromkeys(entry.custom_id.op for entry in entries if entry.custom_id)
    # A custom_id shortens long op names, so prefer the full names from the kernels.
    unnamed = (label for label in labels if not any(exchange.labels(label, name) for name in named))
    return (*named, *unnamed)


def unassigned(files: tuple[Path, ...]) -> tuple[str, ...]:
    """Return the replies that cannot be assigned to an op, each with its line and the reason."""
    return tuple(
        f"{entry.file.name}, {entry.reply.failure or f'line {entry.line}: {NO_OP}'}"
        for entry in _entries(files)
        if entry.reply and not (entry.custom_id or entry.named_op or entry.default_op)
    )


def places_of(files: tuple[Path, ...], label: str) -> tuple[str, ...]:
    """Return the files, and the lines of batches, that contain kernels or replies for the op with this `label`."""
    found: dict[str, list[int]] = {}
    for entry in _entries(files):
        if label == (entry.custom_id.op if entry.custom_id else entry.named_op or entry.default_op):
            found.setdefault(entry.file.name, []).append(entry.line)
    return tuple(f"{name}{_numbered([line for line in lines if line])}" for name, lines in found.items())


def _numbered(lines: list[int]) -> str:
    if not lines:
        return ""
    more = f" and {len(lines) - LINES_SHOWN} more" if len(lines) > LINES_SHOWN else ""
    return f", line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:LINES_SHOWN]))}{more}"


@dataclass(frozen=True)
class _Entry:
    """The text of one kernel or reply, and the facts that its file gives."""

    file: Path
    text: str
    named_op: str  # the op named in the kernel's own plan
    custom_id: CustomId | None = None
    reply: BatchReply | None = None
    default_op: str = ""  # the op to which the text is assigned if it names none
    line: int = 0  # line in the batch file

    def is_for(self, op: str) -> bool:
        if self.custom_id:
            return exchange.labels(self.custom_id.op, op)
        return exchange.labels(self.named_op or self.default_op or op, op)


def _entries(files: tuple[Path, ...]) -> Iterator[_Entry]:
    for file in files:
        text = _read(file)
        if file.suffix == ".cu":
            yield _in_source(file, text)
        else:
            yield from _in_batch(file, text)


def _read(file: Path) -> str:
    if file.suffix not in SUFFIXES:
        raise UserError(
            f"{file} must be a .cu or a .jsonl file",
            "Give kernels as .cu files and the output of a batch as a .jsonl file.",
        )
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UserError(f"{file} has more than {MAX_BYTES >> 20} MiB", "Split it into several files.")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error}", "Save it as UTF-8.") from error


def _in_source(file: Path, text: str) -> _Entry:
    named = _op_named(text)
    if not named:
        raise UserError(
            f"{file} does not name an op",
            f'A kernel begins with its plan: {OPEN}, then a line such as op = "softmax".',
        )
    return _Entry(file, text, named)


def _in_batch(file: Path, text: str) -> Iterator[_Entry]:
    replies = list(exchange.read_replies(text))
    if not replies:
        raise UserError(f"{file} contains no replies", "Give the output file or the error file of a batch.")
    lines = [number for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    entries = [
        _Entry(file, reply.text, _op_named(kernel_in(reply.text)), exchange.decode_custom_id(reply.custom_id), reply,
               line=line)
        for line, reply in zip(lines, replies, strict=True)
    ]  # fmt: skip
    # Lines that do not name an op are assigned to the first op in the file, so that each failure is reported once.
    ops = (entry.custom_id.op if entry.custom_id else entry.named_op for entry in entries)
    default = next(filter(None, ops), "")
    yield from (replace(entry, default_op=default) for entry in entries)


def _op_named(text: str) -> str:
    header = text.partition(OPEN)[2].partition(CLOSE)[0]
    match = NAMED_OP.search(header)
    return match.group(1) if match else ""


def _from_source(entry: _Entry, request: Request, origin: Proposal) -> Proposal:
    """Return the proposal for a `.cu` file, which contains one kernel and nothing else."""
    try:
        return replace(origin, kernel=parse_for(entry.text, signature(request.op)))
    except PlanError as error:
        return replace(origin, reply=entry.text, failure=f"{entry.file.name}, {error}")

"""`evolve ask`: what a language model would be asked, word for word, for people to read and for batches to send."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archive.records import DeviceInfo, Evaluation
from archive.store import Store
from evolve import wiring
from evolve.cli.options import ArchiveOption, ModelOption, OpArgument, SeedOption, archive_option
from evolve.errors import UserError
from evolve.report.console import console, print_text
from evolve.report.standing import devices
from evolve.report.words import counted, listed, short
from reference_ops.locators import is_path

if TYPE_CHECKING:
    from evolve.proposers.llm.questions import Ask

REQUESTS = 8  # in a batch; a person reads one
# What is asked for where neither this machine nor the archive has a device to write for: a GPU of the Hopper kind.
GOAL = DeviceInfo(kind="cuda", name="an NVIDIA GPU such as H100", arch="sm_90a", sms=132, shared_bytes=232448)

NumberOption = Annotated[
    int | None,
    typer.Option("-n", "--number", min=1, help="How many questions.", show_default=f"{REQUESTS}, 1 as text"),
]
TextOption = Annotated[
    bool | None,
    typer.Option("--text/--jsonl", help="To be read, or a batch.", show_default="text on a terminal, else jsonl"),
]
OperatorOption = Annotated[
    str,
    typer.Option("--operator", metavar="NAME",
                 help="Ask for this: draft, improve, explore, crossover, repair, specialise or port."),
]  # fmt: skip
ParentOption = Annotated[
    list[str] | None, typer.Option("--parent", metavar="ID", help="Apply the operator to this kernel; repeatable.")
]


def ask(  # noqa: PLR0913, PLR0917 - one per option
    op: OpArgument,
    number: NumberOption = None,
    text: TextOption = None,
    operator: OperatorOption = "",
    parent: ParentOption = None,
    model: ModelOption = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to a file, not to stdout.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="TEXT", help="Write for a device of the archive.")] = "",
    seed: SeedOption = 0,
    archive: ArchiveOption = None,
) -> None:
    """Print what a language model would be asked, or write it as JSONL for OpenAI's Batch API."""
    from evolve.cli.wanted import check_operator, questions
    from evolve.proposers.llm import model_words
    from evolve.proposers.llm.questions import asks, line
    from evolve.proposers.llm.reference_text import reference_source
    from evolve.selection.selection import request as request_for
    from reference_ops import catalog

    check_operator(operator, parent or ())
    readable = (out is None and sys.stdout.isatty()) if text is None else text
    models, loaded = model_words.read(model or ()), catalog.load(op)
    with closing(wiring.archive(archive)) as store:
        info = _device_to_ask_for(store, device)
        request = request_for(loaded, info, store, number or (1 if readable or operator else REQUESTS), seed=seed)
        if operator:
            found = questions(request, models, operator, parent or (), store)
        else:
            found = asks(request, models, reference_source(loaded))
        path = store.path
    _put("".join(_readable(found)) if readable else "".join(f"{line(loaded.name, one)}\n" for one in found), out)
    said = console(stderr=True)
    whom = "" if readable else f" for {listed([one.signature for one in models])}"
    said.print(f"{counted(len(found), 'question')}{whom} about {loaded.name} on {info.name}", soft_wrap=True)
    then = "answer with a kernel in a file" if readable else "have the batch answered"
    answer = "FILE.cu" if readable else "OUTPUT.jsonl"
    if readable and len(found) == 1:
        made = "".join(f" --parent {short(parent)}" for parent in found[0].parents)
        answer = f"{answer} --operator {found[0].operator}{made}"
    own = f" {shlex.quote(op)}" if is_path(op) else ""
    said.print(f"next: {then}, then `evolve tell {answer}{own}{archive_option(path)}`", style="dim", soft_wrap=True)


def _readable(found: tuple["Ask", ...]) -> Iterator[str]:
    """Each question as it would be sent, every message under a heading."""
    from evolve.prompting.compose import estimated_tokens

    for number, one in enumerate(found, start=1):
        of = " ".join([one.operator, *map(short, one.parents)])
        size = f"about {estimated_tokens(one.messages)} tokens"
        yield f"======== question {number} of {len(found)}: {of}, {size}\n\n"
        for message in one.messages:
            yield f"======== {message.role}\n{message.content}\n\n"


def _put(text: str, out: Path | None) -> None:
    if out is None:
        print_text(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}", "choose another --out") from error


def _device_to_ask_for(store: Store, part: str) -> DeviceInfo:
    """A device of the archive, GPUs first and the one evaluated on last first; else the goal."""
    newest_last = sorted(store.find(Evaluation), key=lambda evaluation: evaluation.created)
    if found := devices(newest_last, part):
        return found[0]
    if part and part not in GOAL.key:
        known = ", ".join(info.key for info in devices(newest_last)) or "none"
        raise UserError(f"the archive knows no device like `{part}`", f"it knows: {known}; leave --device out for any")
    return GOAL

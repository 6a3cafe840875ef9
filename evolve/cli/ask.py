"""`evolve ask`: the questions a language model would be asked, for people to read and for batches to send."""

import random
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from archive.store import Store
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, ModelOption, OpArgument, SeedOption, archive_option
from evolve.errors import UserError
from evolve.prompting.compose import CROSSOVER, EXPLORE, IMPROVE, OPERATORS, PARENTS, PORT, REPAIR, SPECIALISE
from evolve.proposers.llm import questions
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.questions import Ask, asked, reference_source
from evolve.report.standing import devices
from evolve.report.words import console, counted, listed, print_text, short
from evolve.request import Candidate, Request
from evolve.selection import population
from reference_ops.locators import is_path

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
    from evolve.proposers.llm import models as model_words
    from evolve.proposers.llm.questions import asks, line, reference_source
    from evolve.selection.selection import request as request_for
    from reference_ops import catalog

    check_operator(operator, parent or ())
    readable = (out is None and sys.stdout.isatty()) if text is None else text
    models, loaded = model_words.read_models(model or ()), catalog.load(op)
    with closing(wiring.archive(archive)) as store:
        info = _device_to_ask_for(store, device)
        request = request_for(loaded, info, store, number or (1 if readable or operator else REQUESTS), seed=seed)
        if operator:
            found = named_questions(request, models, operator, parent or (), store)
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


NONE_ALIVE = "no kernel of {op} is alive on {device}"
START = "`evolve run {op}` finds some; a draft needs none: --operator draft"
LACKING = {
    IMPROVE: (NONE_ALIVE, START),
    EXPLORE: (NONE_ALIVE, START),
    CROSSOVER: ("fewer than two designs of {op} are alive on {device}", START),
    REPAIR: ("nothing of {op} waits for repair on {device}", "--parent names any kernel that failed"),
    SPECIALISE: (
        "no two workloads of {op} have been timed on {device}, so there is none to specialise for",
        "--parent names a kernel to begin from all the same",
    ),
    PORT: (
        "no other op has a champion on {device} whose idea could be taken over",
        "--parent names any kernel that passed, also one of this op to take to another dtype",
    ),
}


def check_operator(operator: str, prefixes: Sequence[str]) -> None:
    """Raise for what can be told without looking anything up."""
    if not operator:
        if prefixes:
            raise UserError("--parent needs to know what to do with it", f"add --operator {IMPROVE}, or another")
        return
    if operator not in OPERATORS:
        raise UserError(f"there is no operator `{operator}`", f"choose one of: {', '.join(OPERATORS)}")
    if prefixes and len(prefixes) != PARENTS[operator]:
        takes = counted(PARENTS[operator], "kernel") if PARENTS[operator] else "no kernel"
        hint = (
            f"give --parent {PARENTS[operator]} times, or leave it out" if PARENTS[operator] else "leave --parent out"
        )
        raise UserError(f"the operator {operator} is applied to {takes}, not to {len(prefixes)}", hint)


def named_questions(
    request: Request, models: Sequence[Model], operator: str, prefixes: Sequence[str], store: Store
) -> tuple[Ask, ...]:
    """As many as the request wants, applied to the kernels named, or else to those that lend themselves in turn."""
    named = _named(request, operator, prefixes, store)
    if not named and operator not in questions.operators(request):
        message, hint = LACKING[operator]
        words = {"op": request.op.name, "device": request.device.name}
        raise UserError(message.format(**words), hint.format(**words))
    rng, source = random.Random(request.seed), reference_source(request.op)
    found = []
    for turn in range(request.wanted):
        parents = named or questions.parents(request, operator, turn, rng)
        found.append(asked(request, models[turn % len(models)], operator, parents, source, turn))
    return tuple(found)


def _named(request: Request, operator: str, prefixes: Sequence[str], store: Store) -> tuple[Candidate, ...]:
    kernels = [lookup.kernel(store, prefix) for prefix in prefixes]
    if len({kernel.id for kernel in kernels}) < len(kernels):
        raise UserError("both parents are the same kernel", "name two different ones, or leave --parent out")
    for kernel in kernels:
        if kernel.op != request.op.name and operator != PORT:
            raise UserError(
                f"{short(kernel.id)} is a kernel of {kernel.op}, not of {request.op.name}",
                f"--operator {PORT} takes an idea over from another op",
            )
    candidates = tuple(_candidate(kernel, request, store) for kernel in kernels)
    for candidate in candidates:
        _check_fits(candidate, operator)
    return candidates


def _candidate(kernel: Kernel, request: Request, store: Store) -> Candidate:
    """The kernel with all that the archive knows of it on this device."""
    device = request.device
    verdict = population.latest(store.find(Evaluation, kernel.op), device.key).get(kernel.id)
    if verdict is None:
        raise UserError(
            f"{short(kernel.id)} was never evaluated on {device.name}",
            f"`evolve evaluate {kernel.op}` does that there, --device asks for another device of the archive",
        )
    profiles = {
        p.workload: p for p in store.find(Profile, kernel.op) if (p.kernel_id, p.device) == (kernel.id, device.key)
    }
    return Candidate(kernel, verdict, tuple(profiles.values()))


def _check_fits(candidate: Candidate, operator: str) -> None:
    name, evaluation = short(candidate.kernel.id), candidate.evaluation
    if evaluation.passed and operator == REPAIR:
        raise UserError(f"{name} passed: there is nothing to repair", f"use --operator {IMPROVE}")
    if not evaluation.passed and operator != REPAIR:
        raise UserError(f"{name} failed: {evaluation.outcome}", f"use --operator {REPAIR}")

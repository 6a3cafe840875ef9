"""`evolve ask`: write the prompts for language models, as text for people or as JSONL for batch services."""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from archive.store import Store
from archive.summaries import EvaluationSummary
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import (
    ArchiveOption,
    ExampleOption,
    ModelOption,
    OpArgument,
    SeedOption,
    archive_option,
    with_example,
)
from evolve.devices.choose import policy_of
from evolve.engines import trial
from evolve.errors import UserError
from evolve.prompting.operators import CROSSOVER, EXPLORE, IMPROVE, OPERATORS, PARENTS, PORT, REPAIR, SPECIALISE
from evolve.report.standing import devices
from evolve.report.words import console, counted, listed, print_text, say, short, typed
from evolve.request import Candidate, Request
from evolve.selection import selection
from evolve.selection.view import OpView
from reference_ops import catalog
from reference_ops.catalog import CatalogError, is_path
from reference_ops.op import Op
from reference_ops.without_torch import without_torch

if TYPE_CHECKING:
    from evolve.proposers.llm.models import Model
    from evolve.proposers.llm.questions import Prompt

PROMPTS = 8  # default number of prompts for a batch; the default for text is one
# The target device if the archive has none: a GPU of the Hopper generation.
DEFAULT_DEVICE = DeviceInfo(kind="cuda", name="an NVIDIA GPU such as H100", arch="sm_90a", sms=132, shared_bytes=232448)

NumberOption = Annotated[
    int | None,
    typer.Option("-n", "--number", min=1, help="Number of prompts.", show_default=f"{PROMPTS}, 1 as text"),
]
TextOption = Annotated[
    bool | None,
    typer.Option("--text/--jsonl", help="Print text, or lines of JSON for a batch.",
                 show_default="text on a terminal, else jsonl"),
]  # fmt: skip
OperatorOption = Annotated[
    str,
    typer.Option("--operator", metavar="NAME", help=f"Write prompts for this operator only: {', '.join(OPERATORS)}."),
]
ParentOption = Annotated[
    list[str] | None, typer.Option("--parent", metavar="ID", help="Apply the operator to this kernel; repeatable.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write to a file instead of standard output.")
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="TEXT", help="Write prompts for an archived device with TEXT in its name.")
]


def ask(  # noqa: PLR0913, PLR0917 - one per option
    op: OpArgument,
    number: NumberOption = None,
    text: TextOption = None,
    operator: OperatorOption = "",
    parent: ParentOption = None,
    model: ModelOption = None,
    out: OutOption = None,
    device: DeviceOption = "",
    seed: SeedOption = 0,
    example: ExampleOption = None,
    archive: ArchiveOption = None,
) -> None:
    """Print prompts for a language model, or write a batch. A batch is JSONL for OpenAI's Batch API."""
    from evolve.proposers.llm import questions
    from evolve.proposers.llm.models import read_models

    check_operator(operator, parent or ())
    readable = (out is None and sys.stdout.isatty()) if text is None else text
    (op,) = with_example((op,), example)
    models = read_models(model or ())
    loaded, source = loaded_with_source(op)
    with closing(wiring.readable_archive(archive)) as store:
        info = _device_to_write_for(store, device)
        count = number or (1 if readable or operator else PROMPTS)
        request = selection.request(OpView(store, loaded.name, info), loaded, count, seed=seed)
        if operator:
            prompts = prompts_for_operator(request, models, operator, parent or (), source, store)
        else:
            prompts = questions.prompts(request, models, source)
    path = wiring.archive_path(archive)
    lines = _readable(prompts) if readable else (f"{questions.batch_line(loaded.name, prompt)}\n" for prompt in prompts)
    _write("".join(lines), out)
    output = console(stderr=True)
    recipients = "" if readable else f" for {listed([one.signature for one in models])}"
    say(output, f"{counted(len(prompts), 'prompt')}{recipients} about {loaded.name} on {info.name}")
    locator = f" {typed(op)}" if is_path(op) else ""
    next_step = _next_step(prompts, f"{locator}{archive_option(path)}", readable=readable)
    say(output, next_step, "dim", begin="next: ")


def loaded_with_source(locator: str) -> tuple[Op, str]:
    """Load an op and return it with the source of its reference. An op of the catalog is loaded without PyTorch."""
    from evolve.proposers.llm.questions import reference_source

    if not is_path(locator):
        with suppress(CatalogError), without_torch():  # a file that needs PyTorch is loaded below
            op = catalog.load(locator)
            return op, reference_source(op)
    op = trial.load(locator)
    return op, reference_source(op)


def _next_step(prompts: "tuple[Prompt, ...]", given: str, *, readable: bool) -> str:
    """Return a hint on what to do with the prompts; `given` are the arguments that identify the op and the archive."""
    if not readable:
        return f"send the batch, then `evolve tell OUTPUT.jsonl{given}`"
    origin = ""
    if len(prompts) == 1:
        parents = "".join(f" --parent {short(parent)}" for parent in prompts[0].parents)
        origin = f" --operator {prompts[0].operator}{parents}"
    return f"write a kernel to a file, then `evolve tell FILE.cu{origin}{given}`"


def _readable(prompts: "tuple[Prompt, ...]") -> Iterator[str]:
    """Yield each prompt as it would be sent, with every message under a heading."""
    from evolve.prompting.text import estimated_tokens

    for number, prompt in enumerate(prompts, start=1):
        what = " ".join([prompt.operator, *map(short, prompt.parents)])
        size = f"about {estimated_tokens(prompt.messages)} tokens"
        yield f"======== prompt {number} of {len(prompts)}: {what}, {size}\n\n"
        for message in prompt.messages:
            yield f"======== {message.role}\n{message.content}\n\n"


def _write(text: str, out: Path | None) -> None:
    if out is None:
        print_text(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{out} cannot be written: {error.strerror or error}", "choose another file for --out"
        ) from error


def _device_to_write_for(store: Store, part: str) -> DeviceInfo:
    """Return the archived device with `part` in its key, or the default device.

    GPUs come first, then devices with verdicts that did not ship with the package.
    """

    def is_foreign(info: DeviceInfo) -> tuple[bool, bool]:
        of_gpu = policy_of(info.kind).times_are_gpu_times
        return not of_gpu, not store.find(EvaluationSummary, device=info.key, shipped=False, newest=1)

    if found := devices(store, part=part):
        return min(found, key=is_foreign)
    if part and part not in DEFAULT_DEVICE.key:
        known = ", ".join(info.key for info in devices(store)) or "none"
        raise UserError(
            f"no device in the archive has `{part}` in its name",
            f"choose one of these devices: {known}; or leave out --device",
        )
    return DEFAULT_DEVICE


NONE_ALIVE = "no kernel of {op} is alive on {device}"
START = "`evolve run {op}` finds kernels; --operator draft needs none"
# Reasons why an operator cannot be applied, and what to do.
NOT_APPLICABLE = {
    IMPROVE: (NONE_ALIVE, START),
    EXPLORE: (NONE_ALIVE, START),
    CROSSOVER: ("fewer than two designs of {op} are alive on {device}", START),
    REPAIR: ("no kernel of {op} on {device} needs repair", "name a failed kernel with --parent"),
    SPECIALISE: (
        "fewer than two workloads of {op} have been timed on {device}, so there is none to specialise for",
        "name a kernel to start from with --parent",
    ),
    PORT: (
        "no other op has a champion on {device} to port from",
        "name a kernel that passed with --parent; it may be a kernel of this op for another dtype",
    ),
}


def check_operator(operator: str, prefixes: Sequence[str]) -> None:
    """Raise a UserError for an unknown operator or a wrong number of parents."""
    if not operator:
        if prefixes:
            raise UserError(
                "--parent needs an --operator to apply to the kernel", f"add --operator {IMPROVE}, or another"
            )
        return
    if operator not in OPERATORS:
        raise UserError(f"unknown operator `{operator}`", f"choose one of: {', '.join(OPERATORS)}")
    if prefixes and len(prefixes) != PARENTS[operator]:
        needs = counted(PARENTS[operator], "parent") if PARENTS[operator] else "no parent"
        hint = (
            f"give --parent {PARENTS[operator]} times, or leave it out" if PARENTS[operator] else "leave out --parent"
        )
        raise UserError(f"the operator {operator} takes {needs}, got {len(prefixes)}", hint)


def prompts_for_operator(
    request: Request, models: "Sequence[Model]", operator: str, prefixes: Sequence[str], source: str, store: Store
) -> "tuple[Prompt, ...]":
    """Return the requested number of prompts, about the kernels with these ids or, without ids, suitable kernels."""
    from evolve.proposers.llm import questions

    named = _named_parents(request, operator, prefixes, store)
    if not named and operator not in questions.applicable_operators(request):
        message, hint = NOT_APPLICABLE[operator]
        words = {"op": request.op.name, "device": request.device.name}
        raise UserError(message.format(**words), hint.format(**words))
    rng, prompts = random.Random(request.seed), []
    for turn in range(request.wanted):
        parents = named or questions.choose_parents(request, operator, turn, rng)
        prompts.append(questions.prompt_for(request, models[turn % len(models)], operator, parents, source, turn))
    return tuple(prompts)


def _named_parents(request: Request, operator: str, prefixes: Sequence[str], store: Store) -> tuple[Candidate, ...]:
    kernels = [lookup.kernel(store, prefix) for prefix in prefixes]
    if len({kernel.id for kernel in kernels}) < len(kernels):
        raise UserError(
            f"both parents are the same kernel: {short(kernels[0].id)}",
            "name two different kernels, or leave out --parent",
        )
    for kernel in kernels:
        if kernel.op != request.op.name and operator != PORT:
            raise UserError(
                f"{short(kernel.id)} is a kernel of {kernel.op}, not of {request.op.name}",
                f"use --operator {PORT} to port a kernel from another op",
            )
    candidates = tuple(_candidate(kernel, request, store) for kernel in kernels)
    for candidate in candidates:
        _check_outcome(candidate, operator)
    return candidates


def _candidate(kernel: Kernel, request: Request, store: Store) -> Candidate:
    """Return the kernel with its evaluation and its profiles on the request's device."""
    device = request.device
    verdicts = [one for one in store.find(Evaluation, kernels=[kernel.id]) if one.device.key == device.key]
    if not verdicts:
        raise UserError(
            f"{short(kernel.id)} was never evaluated on {device.name}",
            f"run `evolve evaluate {kernel.op}` there, or choose another device with --device",
        )
    profiles = {p.workload: p for p in store.find(Profile, kernels=[kernel.id]) if p.device == device.key}
    return Candidate(kernel, verdicts[-1], tuple(profiles.values()))


def _check_outcome(candidate: Candidate, operator: str) -> None:
    name, evaluation = short(candidate.kernel.id), candidate.evaluation
    if evaluation.passed and operator == REPAIR:
        raise UserError(f"{name} passed, so there is nothing to repair", f"use --operator {IMPROVE}")
    if not evaluation.passed and operator != REPAIR:
        raise UserError(f"{name} failed: {evaluation.outcome}", f"use --operator {REPAIR}")

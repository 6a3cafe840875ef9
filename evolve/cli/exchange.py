"""`evolve tell` and `evolve merge`: kernels, replies and other archives go into the archive."""

import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archive import exchange
from archive.kernel import Kernel
from archive.proposals import Proposal, Run
from archive.records import DeviceInfo, Evaluation, Standard
from archive.rows import Record
from archive.store import ArchiveError, Store, gathered, open_archive, take
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, JsonOption, archive_option
from evolve.cli.run import ExampleOption, with_example
from evolve.errors import UserError
from evolve.proposers.tell import SUFFIXES, TELL, TellProposer, ops_in
from evolve.report.words import console, counted, idea, listed, one_line, print_json, short
from evolve.request import Request
from reference_ops import catalog
from reference_ops.catalog import is_path
from reference_ops.op import Op

FILES_HELP = (
    "Kernels (.cu), a batch's output (.jsonl), and the op they are for if it is none of the catalog's: "
    "a Python file, a task, module:function."
)

OperatorOption = Annotated[
    str, typer.Option("--operator", metavar="NAME", help="How the .cu files were made, such as improve or crossover.")
]
ParentOption = Annotated[
    list[str] | None, typer.Option("--parent", metavar="ID", help="The kernel they were made from; repeatable.")
]


def tell(
    files: Annotated[list[str], typer.Argument(metavar="FILES... [OP]", help=FILES_HELP)],
    operator: OperatorOption = "",
    parent: ParentOption = None,
    example: ExampleOption = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take kernels from files into the archive. Telling the same twice changes nothing."""
    from evolve.cli.ask import check_operator
    from evolve.proposers.tell import TELL, unassigned

    check_operator(operator, parent or ())
    holding, named = parted(files)
    own = with_example(named, example)
    complaints = unassigned(holding)
    with closing(wiring.archive(archive)) as store:
        parents = tuple(lookup.kernel(store, prefix).id for prefix in parent or ())
        taken = take_files(holding, own, store, operator or TELL, parents)
        path = store.path
    if as_json:
        print_json([
            {"proposal": t.proposal.id, "kernel": t.proposal.kernel_id or None, "op": t.proposal.op, "new": t.new,
             "failure": t.proposal.failure}
            for t in taken
        ])  # fmt: skip
    else:
        shown = console()
        for one in taken:
            _say(one, shown)
        locators = {lookup.op_name(locator): shlex.quote(locator) for locator in own}
        for name in dict.fromkeys(one.proposal.op for one in taken if one.proposal.kernel):
            shown.print(f"next: evolve evaluate {locators.get(name, name)}{archive_option(path)}", soft_wrap=True)
    for complaint in complaints:
        console(stderr=True).print(complaint, style="red", soft_wrap=True)
    if not any(one.proposal.kernel for one in taken):
        lookup.absent("no kernel was found in these files", "the reasons are above; `evolve show ID` shows a reply")


def _say(one: "Taken", shown: Console) -> None:
    take_files = one.proposal
    if take_files.kernel:
        state = "taken  " if one.new else "known  "
        shown.print(
            f"{state}  {short(take_files.kernel_id)}  {take_files.op}: {idea(take_files.kernel)}", soft_wrap=True
        )
    else:
        why = one_line(take_files.failure, 300)
        shown.print(f"refused  {short(take_files.id)}  {take_files.op}: {why}", style="red", soft_wrap=True)


def merge(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE...", help="Archives to take everything from.")],
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add what other archives know to this one: all of it, or nothing where something in them is wrong."""
    results = []
    with closing(wiring.archive(archive)) as store:
        for source, records in [(source, _gathered(source)) for source in sources]:
            before = _counts(store)
            take(store, records)
            after = _counts(store)
            results.append((source, {kind: after[kind] - before[kind] for kind in after}))
    if as_json:
        print_json([{"source": str(source), "new": new} for source, new in results])
        return
    shown = console()
    for source, new in results:
        added = ", ".join(f"{count} {kind}" for kind, count in new.items() if count) or "nothing"
        shown.print(f"{source}: {added} new to {store.path}", soft_wrap=True)
    if verdicts := sum(new["evaluations"] for _, new in results):
        shown.print(
            f"{counted(verdicts, 'verdict was', 'verdicts were')} made elsewhere: here they rank on trust, and "
            "`evolve export` leaves them out. `evolve confirm OP` tests their champions again on the device at hand",
            style="yellow",
            soft_wrap=True,
        )


def _gathered(source: Path) -> list[Record]:
    if not source.is_file():
        raise UserError(f"there is no archive at {source}", "check the path; nothing was merged")
    try:
        with closing(open_archive(source, read_only=True)) as other:
            return gathered(other)
    except ArchiveError as error:
        raise UserError(str(error), "nothing was merged; ask whoever made it for another copy") from error


def _counts(store: Store) -> dict[str, int]:
    return {
        "kernels": sum(store.count(Kernel, "op").values()),
        "proposals": sum(store.count(Proposal, "op").values()),
        "evaluations": sum(store.count(Evaluation, "op").values()),
        "runs": sum(store.count(Run, "op").values()),
        "standards": sum(store.count(Standard, "op").values()),
    }


DEFINING = (".py", ".json")
EVERYTHING = 10**9
NOWHERE = DeviceInfo(kind="", name="", arch="", sms=0, shared_bytes=0)  # what stands in files is for any device


@dataclass(frozen=True)
class Taken:
    """A proposal that a file holds, and whether the archive had not heard of it."""

    proposal: Proposal
    new: bool


def parted(words: Sequence[str]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files that hold kernels or replies, and the locators of the ops that they are for."""
    own = tuple(word for word in words if _is_locator(word))
    holding = tuple(Path(word) for word in words if word not in own)
    if not holding:
        raise UserError(
            f"{listed(own)}: an op alone, and nothing to tell of it",
            "give kernels as .cu files, or a batch's output as a .jsonl file, along with it",
        )
    return holding, own


def _is_locator(word: str) -> bool:
    """Whatever `catalog.load` may know; a file of another kind is left to be complained about."""
    file = Path(word)
    return file.suffix not in SUFFIXES and (file.suffix in DEFINING or not file.is_file()) and is_path(word)


def take_files(
    holding: tuple[Path, ...],
    locators: Sequence[str],
    store: Store,
    operator: str = TELL,
    parents: tuple[str, ...] = (),
) -> list[Taken]:
    """Archive what the files hold; locators name ops that are no catalog's. Nothing is, before every op was found.

    `operator` and `parents` say how the kernels in `.cu` files were made.
    """
    own = [catalog.load(locator) for locator in locators]
    known = {kernel.id: kernel for kernel in store.find(Kernel)}
    result = []
    for op in [_op(label, own) for label in ops_in(holding)]:
        request = Request(op=op, device=NOWHERE, wanted=EVERYTHING, seed=0)
        for proposal in TellProposer(holding, TELL, known, operator, parents).propose(request):
            dated = replace(proposal, created=proposal.created or time.time())
            result.append(Taken(dated, new=store.append(dated) > 0))
    return result


def _op(label: str, own: list[Op]) -> Op:
    for op in own:
        if exchange.labels(label, op.name):
            return op
    for name in catalog.names():
        if exchange.labels(label, name):
            return catalog.load(name)
    raise UserError(
        f"the files hold something for the op `{label}`, which is not in the catalog",
        "give the file that defines it along with them",
    )

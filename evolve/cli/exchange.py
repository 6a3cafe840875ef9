"""`evolve tell` and `evolve merge`: add kernels and replies from files, or other archives, to the archive."""

import difflib
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archive import ArchiveError, exchange, recovery
from archive.kernel import Kernel, Proposal
from archive.records import DeviceInfo, Evaluation, Standard
from archive.runs import Run
from archive.sqlite import gathered, open_archive, take
from archive.store import Record, Store
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, ExampleOption, JsonOption, archive_option, with_example
from evolve.engines import trial
from evolve.errors import UserError
from evolve.proposers.tell import SUFFIXES, TELL, TellProposer, ops_in, places_of
from evolve.report.words import console, counted, idea, listed, one_line, print_json, say, say_command, short, typed
from evolve.request import Request
from reference_ops import catalog
from reference_ops.catalog import is_path
from reference_ops.op import Op

FILES_HELP = (
    "Kernels (.cu) or the output of a batch (.jsonl). For an op outside the catalog, add its Python file, task file "
    "or module:function."
)

OperatorOption = Annotated[
    str,
    typer.Option(
        "--operator", metavar="NAME", help="Operator by which the .cu files were made, such as improve or crossover."
    ),
]
ParentOption = Annotated[
    list[str] | None,
    typer.Option("--parent", metavar="ID", help="Kernel from which the .cu files were made; repeatable."),
]


NOUNS = {
    "AskedQuestion": ("question", ""),
    "Leg": ("part of a run", "parts of runs"),
    "Standard": ("time of PyTorch", "times of PyTorch"),
    "Merged": ("merged verdict", ""),
}


def tell(
    files: Annotated[list[str], typer.Argument(metavar="FILES... [OP]", help=FILES_HELP)],
    operator: OperatorOption = "",
    parent: ParentOption = None,
    example: ExampleOption = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add kernels from files to the archive. Adding the same file again changes nothing."""
    from evolve.cli.ask import check_operator
    from evolve.proposers.tell import TELL, unassigned

    check_operator(operator, parent or ())
    holding, named = parted(files)
    own = with_example(named, example)
    with closing(wiring.archive(archive)) as store:
        parents = tuple(lookup.kernel(store, prefix).id for prefix in parent or ())
        taken, strangers = take_files(holding, own, store, operator or TELL, parents)
        complaints = [*unassigned(holding), *without_op(holding, strangers)]
        if strangers and not taken:
            raise UserError("\n       ".join(complaints), ADD_FILE)
        path = store.path
    if as_json:
        print_json([
            {"proposal": t.proposal.id, "kernel": t.proposal.kernel_id or None, "op": t.proposal.op, "new": t.new,
             "failure": t.proposal.failure}
            for t in taken
        ])  # fmt: skip
    else:
        output = console()
        for one in taken:
            _print_taken(one, output)
        locators = {lookup.op_name(locator): typed(locator) for locator in own}
        for name in dict.fromkeys(one.proposal.op for one in taken if one.proposal.kernel):
            say_command(output, "next:", f"evolve evaluate {locators.get(name, name)}{archive_option(path)}")
    for complaint in complaints:
        say(console(stderr=True), complaint, "red")
    if strangers:
        again = f"{ADD_FILE}, and give the same files again: what is already archived stays unchanged"
        say(console(stderr=True), again, "dim", begin="       ")
    if not any(one.proposal.kernel for one in taken):
        lookup.absent("no kernel was found in these files", "correct the errors above; `evolve show ID` prints a reply")


def without_op(holding: tuple[Path, ...], strangers: Sequence[str]) -> Iterator[str]:
    """Yield a line for each op that was not found, with the places where its kernels and replies are."""
    for name in strangers:
        close = difflib.get_close_matches(name, catalog.names(), n=2)
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        yield f"{'; '.join(places_of(holding, name))}: the catalog has no op `{name}`{meant}"


def _print_taken(taken: "Taken", output: Console) -> None:
    proposal = taken.proposal
    if proposal.kernel:
        state = "added   " if taken.new else "known   "
        say(output, f"{proposal.op}: {idea(proposal.kernel)}", begin=f"{state}  {short(proposal.kernel_id)}  ")
    else:
        why = one_line(proposal.failure, 300)
        say(output, f"{proposal.op}: {why}", "red", begin=f"rejected  {short(proposal.id)}  ")


def merge(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE...", help="Archives, or folders of `evolve work`.")],
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add the records of other archives to this one. Nothing is added if one of them is damaged."""
    results = []
    with closing(wiring.archive(archive)) as store:
        for source, records in [(source, _gathered(source, store)) for source in sources]:
            before = _counts(store)
            take(store, records)
            after = _counts(store)
            results.append((source, {kind: after[kind] - before[kind] for kind in after}))
    if as_json:
        print_json([{"source": str(source), "new": new} for source, new in results])
        return
    output = console()
    for source, new in results:
        added = ", ".join(counted(count, kind.removesuffix("s")) for kind, count in new.items() if count) or "nothing"
        say(output, f"{source}: added {added} to {store.path}")
    if verdicts := sum(new["evaluations"] for _, new in results):
        say(
            output,
            f"{counted(verdicts, 'evaluation was', 'evaluations were')} made elsewhere. Such verdicts rank kernels "
            "here, but `evolve export` leaves them out until `evolve confirm OP` has tested the champions on this "
            "machine",
            "yellow",
        )


def recover(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="New archive.", show_default="beside the old one")
    ] = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the readable records of a damaged archive into a new archive. The damaged file is not changed."""
    damaged = wiring.archive_path(archive)
    into = out or damaged.with_name(f"{damaged.stem}.recovered{damaged.suffix}")
    try:
        found = recovery.recover(damaged, into)
    except ArchiveError as error:
        hint = "name another file with --out" if into.exists() else "restore the file from a copy"
        raise UserError(str(error), hint) from error
    if as_json:
        print_json({"recovered": str(into), **asdict(found)})
        return
    output = console()
    nouns = [counted(count, *NOUNS.get(kind, (kind.lower(), ""))) for kind, count in found.copied.items() if count]
    say(output, f"{into}: copied {listed(nouns)}")
    if found.gaps:
        say(output, f"lost: parts of the tables {listed(found.gaps)}", "yellow")
    if found.refused:
        output.print(f"lost: {counted(found.refused, 'record')} with damaged values", style="yellow", soft_wrap=True)
    if not (found.gaps or found.refused):
        output.print("nothing was lost")
    say_command(output, "next:", f"evolve top --archive {shlex.quote(str(into))}", "cyan")


def _gathered(source: Path, into: Store) -> list[Record]:
    from evolve.engines.shared_folder import Folder, gathered_in, is_remote

    if source.is_dir() or (not source.exists() and is_remote(str(source))):
        try:
            return gathered_in(Folder(str(source)))
        except ArchiveError as error:
            raise UserError(str(error), "remove that file; nothing was merged") from error
    if not source.is_file():
        raise UserError(f"there is no archive at {source}", "correct the path; nothing was merged")
    try:
        with closing(open_archive(source, read_only=True)) as other:
            return gathered(other, into)
    except ArchiveError as error:
        hint = wiring.archive_hint(error, "get another copy of the archive")
        raise UserError(str(error), f"{hint}; nothing was merged") from error


def _counts(store: Store) -> dict[str, int]:
    return {
        "kernels": sum(store.count(Kernel, "op").values()),
        "proposals": sum(store.count(Proposal, "op").values()),
        "evaluations": sum(store.count(Evaluation, "op").values()),
        "runs": sum(store.count(Run, "op").values()),
        "standards": sum(store.count(Standard, "op").values()),
    }


ADD_FILE = "add the file that defines the op to the command"
DEFINING = (".py", ".json")
EVERYTHING = 10**9
NO_DEVICE = DeviceInfo(kind="", name="", arch="", sms=0, shared_bytes=0)  # kernels from files may be for any device


@dataclass(frozen=True)
class Taken:
    """A proposal from a file, and whether it was new to the archive."""

    proposal: Proposal
    new: bool


def parted(words: Sequence[str]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the files that hold kernels or replies, and the locators of their ops."""
    own = tuple(word for word in words if _is_locator(word))
    holding = tuple(Path(word) for word in words if word not in own)
    if not holding:
        if absent := [word for word in own if ":" not in word and not Path(word).exists()]:
            raise UserError(f"there is no file {listed(absent)}", "check the path")
        raise UserError(
            f"{listed(own)} is an op, and no file with kernels was given",
            "add kernels as .cu files, or the output of a batch as a .jsonl file",
        )
    return holding, own


def _is_locator(word: str) -> bool:
    """Return whether the word can name an op. Other files without kernels are reported later."""
    file = Path(word)
    return file.suffix not in SUFFIXES and (file.suffix in DEFINING or not file.is_file()) and is_path(word)


def take_files(
    holding: tuple[Path, ...],
    locators: Sequence[str],
    store: Store,
    operator: str = TELL,
    parents: tuple[str, ...] = (),
) -> tuple[list[Taken], list[str]]:
    """Archive the kernels and replies in the files; return them, and the names of ops that were not found.

    `locators` name ops outside the catalog. `operator` and `parents` apply to the kernels in `.cu` files.
    """
    own = [trial.load(locator) for locator in locators]
    known = {kernel.id: kernel for kernel in store.find(Kernel)}
    named = {label: _op(label, own) for label in ops_in(holding)}
    result = []
    for op in filter(None, named.values()):
        request = Request(op=op, device=NO_DEVICE, wanted=EVERYTHING, seed=0)
        for proposal in TellProposer(holding, TELL, known, operator, parents).propose(request):
            dated = replace(proposal, created=proposal.created or time.time())
            result.append(Taken(dated, new=store.append(dated) > 0))
    return result, [label for label, op in named.items() if op is None]


def _op(label: str, own: list[Op]) -> Op | None:
    """Return the op that a file names, from the ops given on the command line or from the catalog."""
    for op in own:
        if exchange.labels(label, op.name):
            return op
    for name in catalog.names():
        if exchange.labels(label, name):
            return catalog.load(name)
    return None

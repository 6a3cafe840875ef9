"""`evolve work`: evaluate the kernels in a shared folder together with other machines."""

import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from archive.sqlite import open_archive
from archive.store import ArchiveError, Store
from evolve.cli import signals
from evolve.cli.options import DeviceOption, ExampleOption, GpusOption, Machines, op_names, with_example
from evolve.cli.session import print_waits, starting_engine, wait_for_device
from evolve.cli.signals import Stopped
from evolve.engines import trial
from evolve.engines.engine import Engine
from evolve.engines.shared_folder import Folder, FolderClaims, claims_in
from evolve.errors import UserError
from evolve.report.progress import Phases
from evolve.report.words import console, counted
from evolve.selection.sharing import Share
from reference_ops import catalog

if TYPE_CHECKING:
    from evolve.cli.evaluate import Targets

LOOK_SECONDS = 5.0
FOLDER_HELP = "Folder that all machines see, or HOST:FOLDER if ssh reaches it, with archives (*.db) of kernels."
MINUTES_HELP = "Wait so long for archives with more kernels [default: end when no kernel is pending]."


def work(
    folder: Annotated[str, typer.Argument(metavar="FOLDER|HOST:FOLDER", help=FOLDER_HELP)],
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Only these ops; files of ops outside the catalog must be named.",
                       autocompletion=op_names, show_default=False),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", help=MINUTES_HELP, show_default=False)] = 0.0,
    example: ExampleOption = None,
    device: DeviceOption = "",
    gpus: GpusOption = "",
) -> None:  # fmt: skip
    """Evaluate the pending kernels of a shared folder. Workers on any number of machines share them out.

    `evolve merge FOLDER` takes the verdicts into an archive.
    """
    from evolve.cli.evaluate import Targets, check_targets

    output, named = console(), with_example(tuple(ops or ()), example)
    check_targets(named)
    place = Folder(folder)
    place.list()
    deadline = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="evolve-work-") as here:
        phases = Phases()
        with (
            closing(open_archive(Path(here) / "archive.db")) as store,
            starting_engine(device, phases, output, Machines(gpus)) as engine,
            claims_in(place, store) as claims,
        ):
            print_waits(phases, output)
            targets = Targets({trial.load(op).name: catalog.lasting(op) for op in named}, frozenset(), frozenset())
            try:
                wait_for_device(engine, device, output)
                _work(claims, targets, engine, store, Share(claims, phases.wait), deadline, output)
            except Stopped:
                output.print("stopped. Finished evaluations are in the folder; others take the rest.")
                raise
            finally:
                output.print(f"{counted(claims.committed, 'verdict')} by this worker")
    output.print(f"next: evolve merge {folder}", soft_wrap=True)


def _work(
    claims: FolderClaims,
    targets: "Targets",
    engine: Engine,
    store: Store,
    share: Share,
    deadline: float,
    output: Console,
) -> None:
    """Evaluate what is pending in the folder; look again until the deadline."""
    from evolve.cli.evaluate import evaluate_op, pending_ops

    while True:
        try:
            claims.refresh()
        except ArchiveError as error:
            raise UserError(str(error), "remove that file; its kernel is then evaluated again") from error
        pending = [work for work in pending_ops(targets, engine.info, store) if work.kernels]
        for work in pending:
            evaluate_op(work, engine, store, share, output)
        signals.check()
        if time.monotonic() >= deadline and not pending:
            return
        if not pending:
            time.sleep(LOOK_SECONDS)

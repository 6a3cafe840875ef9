"""`evolve serve` and `evolve report`: the archive as pages for a browser."""

from pathlib import Path
from typing import Annotated

import typer

from archive.summaries import EvaluationSummary
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, op_names
from evolve.errors import UserError
from evolve.report.words import console, counted, listed

REPORT = Path("report.html")
WEB = ("starlette", "uvicorn")  # the extra `web`
OpsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OP...]", help="Show only these ops.", autocompletion=op_names, show_default=False),
]


def report(
    ops: OpsArgument = None,
    output: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")] = REPORT,
    kernels: Annotated[
        int,
        typer.Option(
            "--kernels",
            min=0,
            help="Kernels with a page of their own, per op and device, beside the champions and their ancestors, which "
            "all have one. With many ops there are fewer: 1000 in the file. The pages say how many are left out.",
        ),
    ] = 30,
    archive: ArchiveOption = None,
) -> None:
    """Write the archive's pages into one HTML file that needs no network."""
    from evolve.pages import one_file

    store = wiring.archive(archive, read_only=True)
    names = list(dict.fromkeys(lookup.op_name(op) for op in ops or ()))
    held = store.count(EvaluationSummary, "op")
    if missing := [name for name in names if name not in held]:
        lookup.absent(f"the archive holds no evaluations of {listed(missing)}", "`evolve top` lists the ops in it")
    if not held:
        lookup.absent("the archive holds no evaluations yet", "`evolve run softmax` makes some")
    text = one_file.report(store, names, kernels)
    try:
        output.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}", "name another file with --out") from error
    size = f"{len(text.encode(errors='replace')) / 1e6:.1f} MB"
    console().print(f"{output}: {counted(len(names) or len(held), 'op')}, {size}; open it in a browser", soft_wrap=True)


def serve(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free one.")] = 8642,
    show: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
    archive: ArchiveOption = None,
) -> None:
    """Serve the archive's pages to a browser on this machine, live while a run writes."""
    try:
        from evolve.pages import server, site
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in WEB:
            raise
        raise UserError(
            f"`evolve serve` needs the package {error.name}",
            "pip install 'evolve-kernels[web]'; `evolve report` works without it",
        ) from error
    wiring.archive(archive, read_only=True).close()
    bound = server.listening(port)
    address = f"http://localhost:{bound.getsockname()[1]}/"
    output = console()
    output.print(f"{address}  (Ctrl-C ends it)", soft_wrap=True)
    number = bound.getsockname()[1]
    tunnel = f"only this machine can connect; from another one: ssh -L {number}:127.0.0.1:{number} HOST"
    output.print(tunnel, style="dim", soft_wrap=True)
    if show:
        typer.launch(address)
    server.serve(wiring.archive_path(archive), site.Site(), bound)

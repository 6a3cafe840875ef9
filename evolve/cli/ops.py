"""`evolve ops`: what the catalog holds."""

from typing import TYPE_CHECKING

from archive import library
from evolve.cli.options import JsonOption
from evolve.report.console import complain, console, print_json
from evolve.report.tables import fitted, plain_table
from evolve.report.words import SHORT_DTYPES

if TYPE_CHECKING:
    from reference_ops.op import Op


def ops(as_json: JsonOption = False) -> None:
    """List the ops of the catalog."""
    shown = console()
    with console(stderr=True).status("loading the ops"):
        from reference_ops import catalog

        loaded: list[tuple[str, Op]] = []
        for name in catalog.names():
            try:
                loaded.append((catalog.locate(name).parent.name, catalog.load(name)))
            except catalog.CatalogError as error:
                complain(str(error))
    if as_json:
        print_json([_facts(family, op) for family, op in loaded])
        return
    numbers = ["workloads", "kernels"]
    table = plain_table("op", "family", "dtypes", *numbers, "what it computes", numbers=numbers)
    for family, op in sorted(loaded, key=lambda entry: (entry[0], entry[1].name)):
        table.add_row(
            fitted(op.name, "bold"),
            fitted(family),
            fitted(" ".join(SHORT_DTYPES.get(dtype, dtype) for dtype in op.dtypes)),
            str(len(op.gpu)),
            str(len(library.shipped(op.name))),
            fitted(op.note, "dim"),
        )
    shown.print(table)
    shown.print(
        "\nkernels: shipped with evolve. A path of a Python file works wherever an op is asked for.", style="dim"
    )


def _facts(family: str, op: "Op") -> dict[str, object]:
    return {
        "op": op.name,
        "family": family,
        "dtypes": op.dtypes,
        "workloads": [workload.key for workload in op.gpu],
        "emulated_workloads": [workload.key for workload in op.emulated],
        "kernels": [kernel.id for kernel in library.shipped(op.name)],
        "note": op.note,
    }

"""`evolve evaluate --explain`: a kernel's verdicts, from the archive alone."""

from collections.abc import Sequence
from pathlib import Path

from archive.records import Evaluation
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import archive_option, op_names
from evolve.errors import UserError
from evolve.report import facts
from evolve.report.console import console, print_json
from evolve.report.explain import explanation
from evolve.report.standing import devices
from evolve.report.words import short


def explained(prefix: str, targets: Sequence[str], kind: str, archive: Path | None, *, as_json: bool) -> None:
    """Explain the verdict in force on each device, or on those of one kind."""
    if targets:
        raise UserError("--explain takes one kernel's id, and nothing is evaluated", "leave out the ops and files")
    if kind and kind not in wiring.DEVICE_KINDS:
        raise UserError(f"there is no device `{kind}`", f"choose one of: {', '.join(wiring.DEVICE_KINDS)}")
    store = wiring.archive(archive, read_only=True)
    kernel = lookup.kernel(store, prefix)
    verdicts = [
        e for e in store.find(Evaluation, kernel.op) if e.kernel_id == kernel.id and kind in ("", e.device.kind)
    ]
    by_device = [[e for e in verdicts if e.device.key == info.key] for info in devices(verdicts)]
    if as_json:
        print_json([facts.of_evaluation(of_one[-1]) for of_one in by_device])
    if not by_device:
        where = f" on a device of the kind {kind}" if kind else ""
        op = kernel.op if kernel.op in op_names() else "FILE.py"
        given = f"{f' --device {kind}' if kind else ''}{archive_option(store.path)}"
        lookup.absent(f"{short(kernel.id)} was never evaluated{where}", f"`evolve evaluate {op}{given}` does that")
    if as_json:
        return
    shown = console()
    for number, of_one in enumerate(by_device):
        if number:
            shown.print("\n")
        for part in explanation(kernel, of_one, shown.width):
            shown.print(part)

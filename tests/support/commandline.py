"""Commands run in this process through the entry point of the installed script, and an archive for them to read."""

from contextlib import closing
from pathlib import Path

import pytest
from records import CPU, GPU, failed, failed_reply, kernel, measurement, passed, proposal

from archive.kernel import Kernel, Proposal
from archive.records import Evaluation, Outcome
from archive.runs import Run
from archive.sqlite import open_archive
from evolve.cli.app import main

ROWS, COLS = "rows=8 cols=16 float32", "rows=2 cols=512 float32"
BEST, CHILD, WRONG, WAITING = kernel(1), kernel(1).with_knobs({"N": 2}), kernel(3), kernel(4)
REPLY = failed_reply()


def evolve(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit code, its standard output and its standard error."""
    code = main([str(argument) for argument in arguments])
    output, errors = capsys.readouterr()
    return code, output, errors


def filled(path: Path) -> Path:
    """Write an archive with kernels of softmax on two devices, and a kernel of an op outside the catalog."""
    store = open_archive(path)
    other = kernel(9, op="unheard_of")
    store.append(
        Run("run", "softmax", GPU.key, "offline", 0, 1.0),
        Run("other", "softmax", GPU.key, "offline", 1, 2.0),
        proposal(BEST, operator="seed"),
        proposal(CHILD, BEST.id),
        proposal(WRONG, BEST.id, operator="improve"),
        proposal(WAITING, operator="tell"),
        REPLY,
        passed(BEST.id, GPU, **{ROWS: 20.0, COLS: 30.0}),
        passed(BEST.id, CPU, **{ROWS: 900.0}),
        passed(CHILD.id, GPU, **{ROWS: 40.0, COLS: 25.0}),
        failed(WRONG.id),
        proposal(other),
        Evaluation(other.id, "unheard_of", GPU, Outcome.PASSED, "", (measurement("n=8 float32", 4.0),)),
    )
    store.close()
    return path


def told(path: Path) -> list[Proposal]:
    """Return the proposals in an archive, without those that every archive holds."""
    with closing(open_archive(path)) as store:
        return [proposal for proposal in store.find(Proposal) if not proposal.shipped]


def written(path: Path, kernel: Kernel) -> Path:
    path.write_text(kernel.text)
    return path

"""From files to proposals in the archive, for every op that the files hold something for."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from archive import exchange
from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import DeviceInfo
from archive.store import Store
from evolve.errors import UserError
from evolve.proposers.tell import SUFFIXES, TELL, TellProposer, ops_in
from evolve.report.words import listed
from evolve.request import Request
from reference_ops import catalog
from reference_ops.locators import is_path
from reference_ops.op import Op

DEFINING = (".py", ".json")
EVERYTHING = 10**9
NOWHERE = DeviceInfo(kind="", name="", arch="", sms=0, shared_bytes=0)  # what stands in files is for any device


@dataclass(frozen=True)
class Told:
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


def told(
    holding: tuple[Path, ...],
    locators: Sequence[str],
    store: Store,
    operator: str = TELL,
    parents: tuple[str, ...] = (),
) -> list[Told]:
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
            result.append(Told(dated, new=store.append(dated) > 0))
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

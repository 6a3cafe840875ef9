"""Shipping: writes an archive's confirmed champions on GPUs, with their times, into a folder of shipped kernels."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from archive import library, measured, seeds
from archive.kernel import Kernel, Proposal
from archive.measured import MeasuredKernel, Origin
from archive.records import SHIPPED, Evaluation, Merged
from archive.store import Store
from evolve.devices.choose import policy_of
from evolve.selection import population

NAME_CHARACTERS = 40
SKIPPED_WORDS = ("a", "an", "the", "and", "of", "is", "in", "by", "with", "each", "per", "its", "one")


@dataclass(frozen=True)
class Champions:
    """The champions of one op on one GPU that a folder holds after shipping."""

    op: str
    device: str
    kernels: tuple[MeasuredKernel, ...]
    new: frozenset[str]  # ids of the kernels whose times were written or replaced
    dropped: frozenset[str]  # ids of the kernels that are no longer champions


def ship(store: Store, op: str, folder: Path, *, part: str = "", trust_merged: bool = False) -> list[Champions]:
    """Write an op's champions into a folder of shipped kernels, and return them for each GPU with `part` in its name.

    Champions are chosen among the folder's kernels and the archive's own confirmed verdicts. The newer verdict on a
    kernel counts. The texts of kernels that are no longer champions are kept, but not their times.
    """
    merged = set() if trust_merged else {one.evaluation_id for one in store.find(Merged, op)}
    own = [
        one
        for one in store.find(Evaluation, op, shipped=False)
        if policy_of(one.device.kind).times_are_gpu_times and one.id not in merged
    ]
    held = seeds.measurements(op, folder)
    names = dict.fromkeys(one.device.name for one in own if part.lower() in one.device.key.lower())
    return [
        _shipped(store, op, folder, [one for one in held if _on(one.evaluation, name)],
                 [one for one in own if _on(one, name)])
        for name in sorted(names)
    ]  # fmt: skip


def _shipped(
    store: Store, op: str, folder: Path, held: Sequence[MeasuredKernel], own: Sequence[Evaluation]
) -> Champions:
    before = {one.kernel.id: one.evaluation for one in held}
    after = _champions(before, own)
    texts = {kernel.id: kernel for kernel in store.find(Kernel, op, ids=after)}
    known = {one.kernel.id: one for one in held}
    files = {name: Kernel(text) for name, text in library.texts(op, root=folder).items()}
    kernels = []
    for kernel_id, evaluation in after.items():
        if before.get(kernel_id) == evaluation:
            kernels.append(known[kernel_id])
            continue
        name = _file_of(texts[kernel_id], files)
        origin = _origin(store, texts[kernel_id]) or (known[kernel_id].origin if kernel_id in known else None)
        kernels.append(MeasuredKernel(name, texts[kernel_id], evaluation, origin))
    for name in {one.file for one in kernels}:
        _write(folder / op / name, files[name].text)
    device = own[-1].device
    if kernels or before:
        _write(folder / op / measured.file_name(device), measured.text(op, kernels))
    new = frozenset(kernel_id for kernel_id, evaluation in after.items() if before.get(kernel_id) != evaluation)
    return Champions(op, device.name, tuple(kernels), new, frozenset(before.keys() - after.keys()))


def _champions(held: Mapping[str, Evaluation], own: Sequence[Evaluation]) -> dict[str, Evaluation]:
    """Return the verdicts that win a workload, in the form in which they ship.

    Those that win the most workloads come first.
    """
    verdicts = dict(held)
    for one in sorted(own, key=lambda verdict: verdict.created):
        if one.passed and one.confirmed and one.measurements:
            verdicts[one.kernel_id] = measured.as_shipped(one)
        elif not one.passed:
            verdicts.pop(one.kernel_id, None)
    won = [verdict.kernel_id for verdict in population.leaders(verdicts.values()).values()]
    return {kernel_id: verdicts[kernel_id] for kernel_id in sorted(set(won), key=lambda one: (-won.count(one), one))}


def _on(evaluation: Evaluation, name: str) -> bool:
    return evaluation.device.name == name


def _file_of(kernel: Kernel, files: dict[str, Kernel]) -> str:
    """Return the name of the file that holds the kernel, perhaps with other knobs. A new name is added to `files`."""
    for name, text in files.items():
        if text.id == kernel.id or (text.family == kernel.family and text.with_knobs(kernel.settings).id == kernel.id):
            return name
    name = _name(kernel, files)
    files[name] = kernel
    return name


def _name(kernel: Kernel, taken: Collection[str]) -> str:
    """Return a file name that describes the kernel's idea."""
    words = [word for word in re.findall(r"[a-z0-9]+", kernel.plan.note.lower()) if word not in SKIPPED_WORDS]
    said = ""
    for word in words:
        if len(said) + 1 + len(word) > NAME_CHARACTERS:
            break
        said = f"{said}_{word}" if said else word
    free = said and f"{said}.cu" not in taken
    return f"{said}.cu" if free else f"{said or 'kernel'}_{kernel.id[:8]}.cu"


def _origin(store: Store, kernel: Kernel) -> Origin | None:
    """Return the first proposer of a kernel; None if it came with the package and no proposer is recorded."""
    proposals = store.find(Proposal, kernel.op, kernels=[kernel.id])
    named = [one for one in proposals if one.proposer != SHIPPED]
    if not named:
        return None
    first = min(named, key=lambda one: one.created)
    return Origin(first.operator, first.proposer, first.parents, float(int(first.created)))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")

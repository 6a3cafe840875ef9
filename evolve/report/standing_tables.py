"""Tables of the standing of an op on a device, and the notes and next commands below them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.kernel import Kernel
from archive.records import Outcome
from archive.summaries import ProposalSummary
from evolve.devices.choose import policy_of
from evolve.report.basis import PYTORCH
from evolve.report.best_so_far import sparkline
from evolve.report.standing import Standing
from evolve.report.tables import OVER_FIRST, WIDE, WIDER, fitted, headings, measured, narrowed, plain_table, speed_style
from evolve.report.words import (
    change,
    command_lines,
    counted,
    idea,
    knobs,
    outcomes,
    say,
    short,
    times,
    times_note,
    typed,
    workload_labels,
)
from evolve.selection.population import Champion

EMULATED = ("verdict", OVER_FIRST, "launches", "bytes/load")
UNCONFIRMED = "?"  # appended to the id of a champion that is not confirmed yet
ELSEWHERE = "*"  # appended to the id of a kernel whose times ship with the package
ELSEWHERE_MEANS = f"{ELSEWHERE}: measured elsewhere on such a GPU and shipped; `evolve verify` measures it here"
HEADING_SHOWN, KINDS_SHOWN = 24, 2
ALIVE_MEANS = (
    "fittest first: by best known time over the kernel's time, as a geometric mean over all workloads; a workload that "
    "a kernel does not accept counts as slow. mean: geometric mean of {ratios}; on: workloads that the kernel accepts"
)
EMULATED_MEANS = {
    OVER_FIRST: f"{OVER_FIRST}: time of the op's first kernel over this kernel's time, on the CPU",
    "bytes/load": "bytes/load: width of the widest load from global memory",
}


def print_standing(
    output: Console, standing: Standing, workloads: Sequence[str] = (), *, population: bool = True
) -> None:
    """Print the champions beside PyTorch, the population if requested, and the number of kernels per outcome."""
    output.print(headline(standing))
    if standing.champions or workloads:
        table = champions_table(standing, output.width, workloads)
        output.print(table)
        output.print(footnotes(standing, workloads, [str(column.header) for column in table.columns]), style="dim")
    if population and standing.population:
        output.print("\npopulation", style="bold")
        output.print(population_table(standing, output.width))
        ratios = "its speedups" if standing.basis.is_pytorch else "the first kernel's times over the kernel's own"
        output.print(ALIVE_MEANS.format(ratios=ratios), style="dim")
    output.print(f"\n{counts_line(standing)}")


def of_dtype(standing: Standing, dtype: str) -> Standing:
    """Return the standing with the champions of one dtype only; an empty dtype means all."""
    kept = tuple(one for one in standing.champions if not dtype or dtype in one.workload.split())
    return replace(standing, champions=kept)


def best_so_far_line(standing: Standing, *, unicode: bool) -> str:
    """Return a small curve of the best so far over the evaluations, or nothing if only one kernel passed."""
    found = standing.curve
    if len(found) < 2:
        return ""
    (_, first), (spent, last) = found[0], found[-1]
    curve, arrow = sparkline(found, unicode=unicode), "→" if unicode else "to"
    where = f"in {counted(int(spent), 'evaluation')}, mean over workloads"
    return f"best so far {curve} {times(first)} {arrow} {times(last)} {where}"


def print_next_steps(output: Console, standing: Standing, locator: str, given: str) -> None:
    """Print commands to continue with. `locator` identifies the op, and the arguments in `given` the archive."""
    op, on_gpu = typed(locator), policy_of(standing.device.kind).times_are_gpu_times
    steps = []
    if standing.judged:
        purpose = "all kernels that are alive" if standing.population else "the outcome of every kernel"
        purpose += ", those of other runs too" if standing.only_run else ""
        steps.append((f"evolve top {standing.op}{given}", purpose))
    if standing.leading:
        kernel_id, won = standing.leading
        steps.append((f"evolve show {short(kernel_id)}{given}", _place(won, len(standing.champions))))
    if any(champion.confirmed is None for champion in standing.champions):
        there = "" if on_gpu else f" --device {standing.device.kind}"
        steps.append((f"evolve confirm {op}{there}{given}", "confirm the champions in a fresh process"))
    if standing.champions and on_gpu:
        steps.append((f"evolve export {op}{given}", "write the champions as a package"))
    elif standing.champions:
        steps.append((f"evolve run {op}{given}", "on a machine with a GPU: measure the same kernels there"))
    print_commands(output, steps)


def print_commands(output: Console, steps: Sequence[tuple[str, str]]) -> None:
    """Print the next commands, with their purposes beside them or, on a narrow terminal, above them."""
    if not steps:
        return
    longest = max(len(command) for command, _ in steps)
    narrow = longest + max(len(purpose) for _, purpose in steps) + 5 > output.width
    output.print("\nnext")
    for command, purpose in steps:
        if narrow:
            whole = command_lines(command, output.width - 2) if output.is_terminal else command
            say(output, purpose, "dim", begin="  # ")
            # not wrapped by rich, so that it can be copied
            output.print(Text("  " + whole.replace("\n", "\n  "), "cyan"), soft_wrap=True)
        else:
            output.print(Text.assemble((f"  {command:<{longest}}   ", "cyan"), (purpose, "dim")), soft_wrap=True)


def _place(won: int, workloads: int) -> str:
    """Return a line on the workloads won by the champion that ranks first over all workloads."""
    if workloads == 1:
        return "the champion"
    if won == workloads:
        return "the champion of every workload"
    return f"the best champion over all workloads; champion of {won} of {workloads}"


def headline(standing: Standing) -> Text:
    """Return the op and the device, with a warning if the times are not GPU times."""
    text = Text.assemble((standing.op, "bold"), " on ", standing.device.name)
    if standing.only_run:
        text.append(f", only kernels that run {standing.only_run} proposed")
    note = times_note(standing.device.kind)
    return text.append(f"  ({note})", "yellow") if note else text


def champions_table(
    standing: Standing, width: int, workloads: Sequence[str] = (), *, interval: bool = True, most: int = 0
) -> Table:
    """Return a table with a row per workload: its champion beside PyTorch. `workloads` adds rows without a champion."""
    held = {champion.workload: champion for champion in standing.champions}
    keys = [*workloads, *(key for key in held if key not in workloads)]
    labels = workload_labels(keys)
    tuned = width >= WIDER and any(c.measurement.autotune_us for c in standing.champions)
    pytorch = standing.basis.is_pytorch
    numbers = headings(standing.basis, interval=interval, tuned=tuned) if pytorch else [*EMULATED]
    heading = labels.heading if len(labels.heading) <= HEADING_SHOWN else "workload"
    notes = ["idea"] if width >= WIDE or not pytorch else []
    whole = ["kernel", *([heading] if max(map(len, labels.of.values()), default=0) <= HEADING_SHOWN else [])]
    table = plain_table(heading, "kernel", *numbers, *notes, numbers=numbers, whole=whole)
    visible = keys[:most] if 0 < most < len(keys) else keys
    for key in visible:
        champion = held.get(key)
        cells = [Text("none yet", "dim")]
        if champion and pytorch:
            cells = [
                _champion_id(champion, standing),
                *measured(champion.measurement, PYTORCH, interval=interval, tuned=tuned),
            ]
        elif champion:
            cells = [_champion_id(champion, standing), *_emulated_cells(champion, standing)]
        kernel = standing.kernels.get(champion.kernel_id) if champion else None
        note = [fitted(idea(kernel), "dim")] if notes else []
        table.add_row(fitted(labels.of[key]), *cells, *([Text("")] * (1 + len(numbers) - len(cells))), *note)
    if len(visible) < len(keys):
        table.add_row(Text(f"and {len(keys) - len(visible)} more", "dim", no_wrap=True))
    return narrowed(table, width)


def population_table(standing: Standing, width: int, most: int = 0) -> Table:
    """Return a table with a row per kernel of the population, fittest first."""
    wide = width >= WIDE
    notes, children = (["idea"], ["children"]) if wide else ([], [])
    numbers = ["#", "mean", "on", *children]
    table = plain_table(
        "#", "kernel", "mean", "on", "made by", *children, "knobs", *notes, numbers=numbers, whole=["kernel"]
    )
    visible = standing.population[:most] if most else standing.population
    for rank, evaluation in enumerate(visible, start=1):
        kernel = standing.kernels.get(evaluation.kernel_id)
        proposal = standing.proposals.get(evaluation.kernel_id)
        setting = knobs(kernel.plan.settings) if kernel else ""
        count = [str(standing.children.get(evaluation.kernel_id, 0))] if wide else []
        table.add_row(
            str(rank),
            f"{short(evaluation.kernel_id)}{ELSEWHERE if evaluation.shipped else ''}",
            times(standing.basis.mean(evaluation)),
            f"{len(evaluation.measurements)}/{len(evaluation.measurements) + len(evaluation.skipped)}",
            fitted(proposal.operator if proposal else "-"),
            *count,
            fitted(setting or ("" if wide else idea(kernel))),
            *([fitted(idea(kernel), "dim")] if wide else []),
        )
    return narrowed(table, width, ["children", "made by"])


def unmeasured_table(kernels: Sequence[Kernel], proposals: Mapping[str, ProposalSummary], width: int) -> Table:
    """Return a table with a row per kernel of an op that no device has evaluated."""
    table = plain_table("kernel", "made by", "knobs", "idea", whole=["kernel"])
    for kernel in kernels:
        made = proposals.get(kernel.id)
        table.add_row(
            short(kernel.id), fitted(made.proposer if made else "-"), fitted(knobs(kernel.settings)),
            fitted(idea(kernel), "dim"),
        )  # fmt: skip
    return narrowed(table, width, ["knobs"])


def counts_line(standing: Standing) -> str:
    """Return the number of kernels with each outcome.

    If there are more than two kinds of failure, their sum comes first.
    """
    counts = standing.outcomes
    failures = {outcome: count for outcome, count in counts.items() if outcome != str(Outcome.PASSED)}
    summed = len(failures) > KINDS_SHOWN
    listed = {**counts, **dict.fromkeys(failures, 0), "failed": sum(failures.values())} if summed else counts
    parts = [outcomes(listed)] if listed else ["nothing evaluated yet"]
    if standing.unread:
        parts.append(f"{counted(standing.unread, 'request')} without a kernel")
    if standing.pending:
        parts.append(f"{standing.pending} pending")
    return ", ".join(parts) + (f" ({outcomes(failures)})" if summed else "")


def footnotes(standing: Standing, workloads: Sequence[str] = (), shown: Collection[str] | None = None) -> str:
    """Return a note on the columns of the champions table, and on what all its rows have in common.

    `shown` are the headings of the columns if a narrow terminal leaves some out.
    """
    labels = workload_labels([*workloads] or [champion.workload for champion in standing.champions])
    parts = [f"sizes: {labels.heading}"] if len(labels.heading) > HEADING_SHOWN else []
    parts += [f"all workloads: {labels.throughout}"] if labels.throughout else []
    if any(champion.confirmed is None for champion in standing.champions):
        parts.append(f"{UNCONFIRMED}: not confirmed yet")
    if any(champion.kernel_id in standing.elsewhere for champion in standing.champions):
        parts.append(ELSEWHERE_MEANS)
    if not standing.basis.is_pytorch:
        meant = [words for name, words in EMULATED_MEANS.items() if shown is None or name in shown]
        return "; ".join([*parts, *(meant if standing.champions else [])])
    parts.append("speedup: over the best of eager, torch.compile and max-autotune")
    if any(champion.measurement.floor_us for champion in standing.champions) and (shown is None or "light" in shown):
        parts.append("light: share of the speed of light reached")
    return "; ".join(parts)


def origin(standing: Standing, kernel_id: str) -> str:
    """Return the operator that produced a kernel, and the change that it made."""
    kernel, proposal = standing.kernels.get(kernel_id), standing.proposals.get(kernel_id)
    if kernel is None:
        return proposal.operator if proposal else "kernel"
    parent = standing.kernels.get(proposal.parents[0]) if proposal and proposal.parents else None
    return f"{proposal.operator if proposal else 'kernel'}: {change(kernel, parent)}"


def _champion_id(champion: Champion, standing: Standing) -> Text:
    mark = "" if champion.confirmed else UNCONFIRMED
    mark += ELSEWHERE if champion.kernel_id in standing.elsewhere else ""
    return Text.assemble(short(champion.kernel_id), (mark, "yellow"))


def _emulated_cells(champion: Champion, standing: Standing) -> list[Text]:
    """Return the facts that are known without a GPU: a kernel's verdict, launches, and width of loads."""
    verdict = next((one for one in standing.population if one.kernel_id == champion.kernel_id), None)
    traits, ratio = verdict.traits if verdict else None, standing.basis.ratio(champion.measurement)
    loads = str(traits.load_bytes) if traits else "-"
    launches = str(traits.launches) if traits else "-"
    return [Text("correct", "green"), Text(times(ratio), speed_style(ratio)), Text(launches), Text(loads)]

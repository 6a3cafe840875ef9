"""The standing of an op on a device: reads the champions, the population and the counts, and prints them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Outcome
from archive.store import Store, evaluations_of, uncollected
from archive.summaries import BriefEvaluation, EvaluationSummary, KernelSummary, ProposalSummary, RankedTimes
from evolve.devices.choose import policy_of
from evolve.report.basis import PYTORCH, Basis, basis_of
from evolve.report.best_so_far import rises, sparkline
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
from evolve.selection import population
from evolve.selection.population import Champion
from evolve.selection.scope import judged_on_gpus, unasked

EMULATED = ("verdict", OVER_FIRST, "launches", "bytes/load")
UNCONFIRMED = "?"  # appended to the id of a champion that is not confirmed yet
ELSEWHERE = "*"  # appended to the id of a kernel whose times ship with the package
ELSEWHERE_MEANS = f"{ELSEWHERE}: measured elsewhere on such a GPU and shipped; `evolve verify` measures it here"
HEADING_SHOWN, KINDS_SHOWN = 24, 2
ALIVE_MEANS = (
    "fittest first: by best known time over the kernel's time, as a geometric mean over all workloads; a workload that "
    "a kernel does not accept counts as slow. mean: geometric mean of {ratios}; on: workloads it accepts"
)
EMULATED_MEANS = {
    OVER_FIRST: f"{OVER_FIRST}: time of the op's first kernel over this one's, on the CPU",
    "bytes/load": "bytes/load: of the widest load from global memory",
}


@dataclass(frozen=True)
class Standing:
    """Champions, population and counts of one op on one device."""

    op: str
    device: DeviceInfo
    champions: tuple[Champion, ...] = ()  # in the order of the op's workloads
    population: tuple[Evaluation, ...] = ()  # fittest first
    outcomes: Mapping[str, int] = field(default_factory=dict)  # kernels by outcome, in the order of Outcome
    pending: int = 0  # kernels without a verdict on the device, or on a GPU if this device is none
    held: int = 0  # kernels of the op in the archive
    unread: int = 0  # requests that gave no kernel
    verdicts: Mapping[str, Evaluation] = field(default_factory=dict)  # verdicts on the kernels requested by id
    # These cover the champions, the population and the kernels requested by id:
    kernels: Mapping[str, Kernel] = field(default_factory=dict)  # including their first parents
    proposals: Mapping[str, ProposalSummary] = field(default_factory=dict)  # the first proposal of each kernel
    children: Mapping[str, int] = field(default_factory=dict)
    basis: Basis = PYTORCH
    elsewhere: frozenset[str] = frozenset()  # kernels whose verdict ships with the package
    only_run: str = ""  # id of the run whose own kernels are covered, and no others; empty for all kernels
    ranked: Sequence[RankedTimes] = field(default=(), repr=False, compare=False)  # of all kernels that passed

    @property
    def leading(self) -> tuple[str, int] | None:
        """The champion that ranks first over all workloads, and the number of workloads that it is champion of."""
        won = Counter(champion.kernel_id for champion in self.champions)
        ranked = (verdict.kernel_id for verdict in self.population)
        return next(((kernel_id, won[kernel_id]) for kernel_id in ranked if won[kernel_id]), None)

    @property
    def judged(self) -> int:
        """The number of kernels with a verdict on the device."""
        return sum(self.outcomes.values())


def standing(store: Store, op: str, device: DeviceInfo, named: Collection[str] = (), only_run: str = "") -> Standing:
    """Read the standing of an op on a device, with the verdicts on the kernels whose ids are in `named`.

    With `only_run`, the kernels that this run has not proposed are left out, but the basis remains that of the op.
    """
    every = store.find(RankedTimes, op, device=device.key)
    own = _proposed_by(only_run, store, op) if only_run else None
    ranked = every if own is None else [one for one in every if one.kernel_id in own]
    leaders, alive = population.fittest(ranked)
    in_force = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=named) if named else []
    evaluations = evaluations_of(store, {*alive, *leaders.values(), *in_force})
    ids = {*named, *(verdict.kernel_id for verdict in (*alive, *leaders.values()))}
    proposals = first_proposals(store, ids)
    parents = (proposal.parents[0] for proposal in proposals.values() if proposal.parents)
    counts, held, pending = _counts(store, op, device, own)
    return Standing(
        op=op,
        device=device,
        champions=tuple(
            population.champion(workload, evaluations[leaders[workload].id])
            for workload in workloads_in_order(evaluations.values())
            if workload in leaders
        ),
        population=tuple(evaluations[verdict.id] for verdict in alive),
        outcomes={str(outcome): counts[str(outcome)] for outcome in Outcome if str(outcome) in counts},
        pending=pending,
        held=held,
        verdicts={verdict.kernel_id: evaluations[verdict.id] for verdict in in_force},
        unread=sum(
            bool(reply.failure) and only_run in {"", reply.run}
            for reply in store.find(ProposalSummary, op, kernels=[""])
        ),
        kernels={kernel.id: kernel for kernel in store.find(Kernel, ids={*ids, *parents})},
        proposals=proposals,
        children={verdict.kernel_id: _children(store, verdict.kernel_id) for verdict in alive},
        basis=basis_of(store, op, device, every),
        only_run=only_run,
        elsewhere=frozenset(one.kernel_id for one in evaluations.values() if one.shipped),
        ranked=every,
    )


def _proposed_by(run: str, store: Store, op: str) -> frozenset[str]:
    return frozenset(one.kernel_id for one in store.find(ProposalSummary, op, run=run) if one.kernel_id)


def _counts(
    store: Store, op: str, device: DeviceInfo, own: frozenset[str] | None
) -> tuple[Mapping[str, int], int, int]:
    """Return the kernels by outcome, the kernels held and those pending: of all kernels, or of a run's own."""
    if own is None:
        counts = store.count(EvaluationSummary, "outcome", op, device=device.key, in_force=True)
        held = store.count(KernelSummary, "op", op).get(op, 0)
        return counts, held, max(0, held - sum(counts.values()) - _not_waiting(store, op, device))
    judged = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=own) if own else []
    return Counter(str(one.outcome) for one in judged), len(own), len(own) - len(judged)


def workloads_in_order(evaluations: Iterable[Evaluation]) -> list[str]:
    """Return all workloads in the order of their op, which each evaluation keeps, also for those that it skipped."""
    found: list[str] = []
    every = [
        keys
        for one in evaluations
        for keys in ([m.workload for m in one.measurements], [skipped.partition(": ")[0] for skipped in one.skipped])
    ]
    for keys in sorted(every, key=len, reverse=True):
        at = next((found.index(key) for key in keys if key in found), len(found))
        for key in keys:
            if key not in found:
                found.insert(at, key)
            at = found.index(key) + 1
    return found


def _not_waiting(store: Store, op: str, device: DeviceInfo) -> int:
    """Return how many kernels have no verdict on this device and need none: judged on a GPU, or only shipped."""
    elsewhere = judged_on_gpus(store, op, device)
    if elsewhere:
        elsewhere = elsewhere.difference(one.kernel_id for one in store.find(BriefEvaluation, op, device=device.key))
    return len(elsewhere | unasked(store, op, device))


def standings(store: Store, op: str = "", device: str = "") -> list[Standing]:
    """Read the standing of each op on each device that it was evaluated on; `device` is part of the device's key."""
    ops = [op] if op else sorted(store.count(Evaluation, "op"))
    with uncollected():
        return [standing(store, name, info) for name in ops for info in devices(store, name, device)]


def devices(store: Store, op: str = "", part: str = "") -> list[DeviceInfo]:
    """Return the devices with evaluations, GPUs first; of devices with equal keys, the one used last."""
    infos = {info.key: info for info in store.find(DeviceInfo, op)}
    found = [info for key, info in infos.items() if part.lower() in key.lower()]
    return sorted(found, key=lambda info: (not policy_of(info.kind).times_are_gpu_times, info.key))


def decisive_evaluations(store: Store, op: str, device: DeviceInfo) -> list[Evaluation]:
    """Return the evaluations that determine the champions and PyTorch's latest times on a device, oldest first."""
    passed = store.find(RankedTimes, op, device=device.key)
    replaced = store.find(EvaluationSummary, op, device=device.key, in_force=False, measured=True)
    failed = store.find(EvaluationSummary, op, device=device.key, in_force=True, measured=True, passed=False)
    leaders = [
        *population.leaders(passed).values(),
        *population.leaders(verdict for verdict in passed if verdict.confirmed).values(),
    ]
    newest: dict[str, RankedTimes | EvaluationSummary] = {}  # by the workloads that were timed
    timed: list[RankedTimes | EvaluationSummary] = [*passed, *replaced, *failed]
    for verdict in sorted(timed, key=lambda one: one.created):
        newest[verdict.workloads] = verdict
    kernels = {verdict.kernel_id for verdict in newest.values()}
    in_force = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=kernels)
    found = evaluations_of(store, {*leaders, *newest.values(), *in_force})
    return sorted(found.values(), key=lambda evaluation: evaluation.created)


def first_proposals(store: Store, kernels: Collection[str]) -> dict[str, ProposalSummary]:
    """Return the first proposal of each kernel."""
    found: dict[str, ProposalSummary] = {}
    for proposal in store.find(ProposalSummary, kernels=kernels):
        found.setdefault(proposal.kernel_id, proposal)
    return found


def _children(store: Store, kernel_id: str) -> int:
    return len({child.kernel_id for child in store.find(ProposalSummary, parents=[kernel_id]) if child.kernel_id})


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
        ratios = "its speedups" if standing.basis.is_pytorch else "the first kernel's times over its own"
        output.print(ALIVE_MEANS.format(ratios=ratios), style="dim")
    output.print(f"\n{counts_line(standing)}")


def of_dtype(standing: Standing, dtype: str) -> Standing:
    """Return the standing with the champions of one dtype only; an empty dtype stands for all."""
    kept = tuple(one for one in standing.champions if not dtype or dtype in one.workload.split())
    return replace(standing, champions=kept)


def best_so_far_line(store: Store, standing: Standing, *, unicode: bool) -> str:
    """Return a small curve of the best so far over the evaluations, or nothing if only one kernel passed."""
    evaluations = store.find(BriefEvaluation, standing.op, device=standing.device.key)
    found = rises(standing.ranked, evaluations, standing.basis)
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
    """Print what to do next: commands with their purposes beside them or, on a narrow terminal, above them."""
    if not steps:
        return
    longest = max(len(command) for command, _ in steps)
    narrow = longest + max(len(purpose) for _, purpose in steps) + 5 > output.width
    output.print("\nnext")
    for command, purpose in steps:
        if narrow:
            whole = command_lines(command, output.width - 2) if output.is_terminal else command
            say(output, purpose, "dim", begin="  # ")
            output.print(Text("  " + whole.replace("\n", "\n  "), "cyan"), soft_wrap=True)  # so that it can be copied
        else:
            output.print(Text.assemble((f"  {command:<{longest}}   ", "cyan"), (purpose, "dim")), soft_wrap=True)


def _place(won: int, workloads: int) -> str:
    """Return what the champion that ranks first over all workloads has won."""
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
    """Return a table with a row per workload, its champion beside PyTorch. `workloads` adds rows without a champion."""
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
    """Return the number of kernels with each outcome; more than two kinds of failure are added up first."""
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
    """Return what the columns of the champions table mean, and what all its rows have in common.

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
    parts.append("speedup: over the best of eager and torch.compile, with max-autotune")
    if any(champion.measurement.floor_us for champion in standing.champions) and (shown is None or "light" in shown):
        parts.append("light: share of the speed of light reached")
    return "; ".join(parts)


def origin(standing: Standing, kernel_id: str) -> str:
    """Return the operator that produced a kernel, and what it changed."""
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
    """Return what is known of a kernel without a GPU: its verdict, launches, and the width of its loads."""
    verdict = next((one for one in standing.population if one.kernel_id == champion.kernel_id), None)
    traits, ratio = verdict.traits if verdict else None, standing.basis.ratio(champion.measurement)
    loads = str(traits.load_bytes) if traits else "-"
    launches = str(traits.launches) if traits else "-"
    return [Text("correct", "green"), Text(times(ratio), speed_style(ratio)), Text(launches), Text(loads)]

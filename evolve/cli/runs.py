"""`evolve runs` and `evolve compare`: costs of runs, and the quality of their kernels."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table

from archive.records import kind_in
from archive.runs import Run
from archive.sqlite import SqliteStore
from archive.store import Store, uncollected
from archive.summaries import BriefProposal, ProposalSummary, RankedTimes
from evolve import budget, wiring
from evolve.budget import History, Spent
from evolve.cli import lookup, options
from evolve.cli.options import (
    ArchiveOption,
    CsvOption,
    DevicePart,
    FamilyPart,
    JsonOption,
    OpFilter,
    ProposerPart,
    SincePart,
    archive_option,
)
from evolve.errors import UserError
from evolve.report import runs as report
from evolve.report.basis import known_basis
from evolve.report.best_so_far import Curve, largest_ratio, sparkline
from evolve.report.failures import failed_requests, failures_line
from evolve.report.output import EVERYTHING, csv_of
from evolve.report.runs import PER, Trajectory, comparison, has_unicode
from evolve.report.standing import first_kernel
from evolve.report.tables import WIDE, fitted, narrowed, plain_table, when
from evolve.report.words import (
    clock,
    console,
    counted,
    dollars,
    print_json,
    print_text,
    say,
    times,
    times_label,
    times_note,
)

OVER_FIRST_KERNEL = "best, on a device without GPU times: over the op's first kernel"
NOTHING_OWN = "best: `-` if no kernel proposed by the run itself has passed; shipped kernels do not count"
REPLAYED = "replay: the answers come from the archive; tokens and dollars are those of the recorded run"
# name under which values are archived; increase the number when their computation changes
FIGURES = "figures of runs, 1"
Figures = tuple[Spent, float | None, Curve]


@dataclass(frozen=True)
class RunSummary:
    """A run, its cost, and the best speedup of a kernel that it proposed: over PyTorch or the first kernel."""

    run: Run
    spent: Spent
    best: float | None
    curve: Curve = ()  # best speedup as a function of the number of kernels proposed so far

    @property
    def idle(self) -> bool:
        """Whether the run's campaign spent its budget on other ops."""
        return bool(self.run.campaign) and not self.spent.something


SORTED_BY: Mapping[str, Callable[[RunSummary], float | str]] = {
    "when": lambda line: line.run.created,
    "op": lambda line: line.run.op,
    "best": lambda line: line.best or 0.0,
    "evals": lambda line: line.spent.evals,
    "tokens": lambda line: line.spent.tokens,
    "usd": lambda line: line.spent.usd,
}
SORTS = tuple(SORTED_BY)


def runs(  # noqa: PLR0913, PLR0917 - one per option
    op: OpFilter = "",
    family: FamilyPart = "",
    device: DevicePart = "",
    proposer: ProposerPart = "",
    since: SincePart = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="|".join(SORTS), help="Sort by this column, smallest first.")
    ] = "",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List the runs with their costs and best speedups. Only kernels that a run itself proposed count."""
    options.check_sort(sort, SORTS)
    options.check_family(family)
    began = options.moment_of(since)
    store = wiring.archive(archive, read_only=True)
    with uncollected():
        every = _lines(store, lookup.op_name(op))
    lines = [
        line for line in every
        if device.lower() in line.run.device.lower() and proposer.lower() in line.run.proposer.lower()
        and line.run.created >= began and options.of_family(line.run.op, family)
    ]  # fmt: skip
    lines.sort(key=SORTED_BY[sort or "when"])
    if as_json:
        print_json([_facts(line) for line in lines])
    if not lines:
        of = f" of {op}" if op else ""
        lookup.absent(f"the archive holds no runs{of} yet", f"`evolve run {op or 'softmax'}` makes one")
    if as_csv:
        print_text(csv_of(_table(lines, EVERYTHING, unicode=True)), end="")
    if as_json or as_csv:
        return
    output = console()
    whole = op or all(line.idle for line in lines)
    listed = [line for line in lines if whole or not line.idle]
    output.print(_table(listed, output.width, unicode=has_unicode(output)))
    failed = defaultdict[str, list[ProposalSummary]](list)
    for request in failed_requests(store, lookup.op_name(op)):
        failed[request.run].append(request)
    for line in listed:
        if own := failed.get(line.run.id):
            say(output, f"{line.run.id}: {failures_line(own, archive_option(store.path))}", "dim")
    for remark in _remarks(listed, [] if whole else [line.run.campaign for line in lines if line.idle]):
        output.print(remark, style="dim")
    output.print("\nevolve run --resume RUN continues a run", style="dim")
    output.print("evolve compare RUN RUN compares two runs", style="dim")


def _remarks(listed: Sequence[RunSummary], elsewhere: Sequence[str]) -> Iterator[str]:
    """Yield notes on the table, and for each campaign in `elsewhere` the number of its unlisted runs."""
    if any(options.recorded(line.run).replay for line in listed):
        yield REPLAYED
    if any(line.spent.evals and line.best is None for line in listed):
        yield NOTHING_OWN
    if any(line.best and not known_basis(kind_in(line.run.device)).is_pytorch for line in listed):
        yield OVER_FIRST_KERNEL
    for campaign, others in Counter(elsewhere).items():
        yield f"campaign {campaign} has spent nothing on {counted(others, 'other op')}"


def _table(lines: Sequence[RunSummary], width: int, *, unicode: bool) -> Table:
    """Return a table of runs, without empty columns and, on a narrow terminal, without the least important columns."""
    tokens = ["tokens"] if any(line.spent.tokens for line in lines) else []
    usd = ["usd"] if any(line.spent.usd for line in lines) else []
    device = ["device"] if width >= WIDE else []
    campaign = ["campaign"] if device and any(line.run.campaign for line in lines) else []
    numbers = ["evals", *tokens, *usd, "time", "best"]
    curve = ["best so far"] if width >= WIDE and any(len(line.curve) > 1 for line in lines) else []
    table = plain_table(
        "run",
        "op",
        *device,
        "when",
        "proposer",
        "strategy",
        *numbers,
        *curve,
        *campaign,
        numbers=numbers,
        whole=["run", "when", "best so far"],
    )
    for line in lines:
        run, spent = line.run, line.spent
        table.add_row(
            fitted(run.id, "bold"),
            fitted(run.op),
            *[fitted(run.device, "yellow" if times_label(kind_in(run.device)) else "") for _ in device],
            when(run.created, width),
            fitted(f"replay, {run.proposer}" if options.recorded(run).replay else run.proposer),
            fitted(run.strategy),
            str(spent.evals),
            *[f"{spent.tokens:,}" for _ in tokens],
            *[dollars(spent.usd) for _ in usd],
            clock(spent.seconds),
            times(line.best),
            *[sparkline(line.curve, unicode=unicode) for _ in curve],
            *[run.campaign for _ in campaign],
        )
    return narrowed(table, width, ["best so far", "strategy", "when", "proposer", "time"])


def _lines(store: SqliteStore, op: str) -> list[RunSummary]:
    """Return a line per run, oldest first. Only the records of one op on one device are in memory at a time."""
    found = store.find(Run, op)
    figures = dict[str, Figures]()
    for name in dict.fromkeys(run.op for run in found):
        figures |= store.derived(FIGURES, name, partial(_figures, store, name), _figures_in)
    return [RunSummary(run, *figures[run.id]) for run in found if run.id in figures]


def _figures(store: Store, op: str) -> dict[str, tuple[object, ...]]:
    """Return the cost, the best speedup and the curve of each run of an op, by run id."""
    on_devices = defaultdict[str, list[Run]](list)
    for run in store.find(Run, op):
        on_devices[run.device].append(run)
    past: History | None = None
    found = dict[str, tuple[object, ...]]()
    for device, runs_there in on_devices.items():
        past = budget.history(store, op, device, past)
        found |= {run: (astuple(spent), best, curve) for run, (spent, best, curve) in _on(store, runs_there, past)}
    return found


def _figures_in(kept: Mapping[str, Any]) -> dict[str, Figures]:
    return {
        run: (Spent(*spent), best, tuple((proposed, reached) for proposed, reached in curve))
        for run, (spent, best, curve) in kept.items()
    }


def _on(store: Store, found: Sequence[Run], past: History) -> Iterator[tuple[str, Figures]]:
    """Yield the ids and figures of these runs of one op on one device."""
    on_gpu = known_basis(kind_in(found[0].device)).is_pytorch
    largest = None if on_gpu else _over_first(store, found[0])
    for run in found:
        curve = tuple(_curve(run, past)) if on_gpu else ()
        best = largest(past.of_run.get(run.id, ())) if largest else curve[-1][1] if curve else 0.0
        yield run.id, (budget.spent(run.id, past), best or None, curve)


def _curve(run: Run, past: History) -> Iterator[tuple[float, float]]:
    """Yield the best speedup so far after the run's first and last kernel that passed, and whenever it rose."""
    best, last, in_force = 0.0, 0, past.in_force
    for number, proposal in enumerate(past.of_run.get(run.id, ()), 1):
        verdict = in_force.get(proposal.kernel_id)
        if verdict and verdict.passed:
            if verdict.speedup > best or not last:
                best = verdict.speedup
                yield float(number), best
            last = number
    if last:
        yield float(last), best


def _over_first(store: Store, run: Run) -> Callable[[Iterable[BriefProposal]], float]:
    """Return a function that finds the largest ratio of the first kernel's times to those of proposed kernels."""
    ranked = store.find(RankedTimes, run.op, device=run.device)
    basis, of_kernel = first_kernel(store, run.op, ranked), {one.kernel_id: one for one in ranked}
    return lambda own: largest_ratio([of_kernel[one.kernel_id] for one in own if one.kernel_id in of_kernel], basis)


def _facts(line: RunSummary) -> dict[str, object]:
    run = line.run
    return {
        "run": run.id,
        "campaign": run.campaign or None,
        "replay_of": options.recorded(run).replay or None,
        **{name: getattr(run, name) for name in ("op", "device", "created", "proposer", "strategy", "seed")},
        "budget": asdict(run.budget),
        "spent": asdict(line.spent),
        "best_speedup": line.best if known_basis(kind_in(run.device)).is_pytorch else None,
    }


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Ids of runs of one op, their first characters, or `last`."),
    ],
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs per evaluation, per token and per dollar."""
    store = wiring.archive(archive, read_only=True)
    found = list({run.id: run for run in (lookup.one(store, requested) for requested in runs)}.values())
    _check(found)
    trajectories = report.trajectories(store, found)
    if as_json:
        print_json(_comparison_facts(trajectories))
        return
    output = console()
    output.print(f"{found[0].op} on {found[0].device.partition(' ')[2]}", style="bold")
    for part in comparison(trajectories, output, times_note(kind_in(found[0].device))):
        output.print(part)


def _check(found: Sequence[Run]) -> None:
    if len(found) < 2:
        raise UserError("a single run cannot be compared", "name two or more; `evolve runs` lists them")
    for what, values in (("ops", [run.op for run in found]), ("devices", [run.device for run in found])):
        if len(set(values)) > 1:
            named = ", ".join(f"{run.id}: {value}" for run, value in zip(found, values, strict=True))
            raise UserError(
                f"these runs are of different {what}: {named}",
                "compare runs of one op on one device; see `evolve runs`",
            )


def _comparison_facts(trajectories: Sequence[Trajectory]) -> dict[str, object]:
    return {
        "op": trajectories[0].run.op,
        "device": trajectories[0].run.device,
        "runs": [
            {
                "run": one.run.id,
                "proposer": one.run.proposer,
                "strategy": one.run.strategy,
                "seed": one.run.seed,
                "points": [{**_spent(point.spent), "quality": point.quality} for point in one.points],
            }
            for one in trajectories
        ],
        **{
            f"per_{PER[axis]}": [
                {axis: amount, "quality": {one.run.id: q for one, q in zip(trajectories, qualities, strict=True)}}
                for amount, qualities in report.compared(trajectories, axis)
            ]
            for axis in report.AXES
        },
    }


def _spent(spent: budget.Spent) -> dict[str, float]:
    return {name: value for name, value in asdict(spent).items() if name != "seconds"}

"""`evolve compare`: runs of one op beside each other, by what they spent."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from archive.proposals import Run
from archive.store import Store
from evolve import budget, course, wiring
from evolve.cli import resuming
from evolve.cli.options import ArchiveOption, JsonOption
from evolve.course import Course
from evolve.errors import UserError
from evolve.report.compare import PER, comparison
from evolve.report.console import console, print_json


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN RUN...", help="Runs of one op: their ids, how they begin, or `last`.")
    ],
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how good runs were for what they had spent: per evaluation, per token and per dollar."""
    store = wiring.archive(archive, read_only=True)
    found = list({run.id: run for run in (resuming.one(store, wished) for wished in runs)}.values())
    _check(found)
    courses = _courses(found, store)
    if as_json:
        print_json(_facts(courses))
        return
    shown = console()
    shown.print(f"{found[0].op} on {found[0].device.partition(' ')[2]}", style="bold")
    for part in comparison(courses, shown, emulated=_emulated(found[0])):
        shown.print(part)


def _check(found: Sequence[Run]) -> None:
    if len(found) < 2:
        raise UserError("one run alone cannot be compared", "name two or more; `evolve runs` lists them")
    for what, values in (("ops", [run.op for run in found]), ("devices", [run.device for run in found])):
        if len(set(values)) > 1:
            named = ", ".join(f"{run.id}: {value}" for run, value in zip(found, values, strict=True))
            raise UserError(
                f"these runs are of different {what}: {named}",
                "compare runs of one op on one device; see `evolve runs`",
            )


def _courses(found: Sequence[Run], store: Store) -> list[Course]:
    past = budget.history(store, found[0].op, found[0].device)
    goals = course.slowest(past, [run.id for run in found]) if _emulated(found[0]) else None
    return [course.course(run, past, goals) for run in found]


def _emulated(run: Run) -> bool:
    return not run.device.startswith("cuda ")


def _facts(courses: Sequence[Course]) -> dict[str, object]:
    return {
        "op": courses[0].run.op,
        "device": courses[0].run.device,
        "runs": [
            {
                "run": one.run.id,
                "proposer": one.run.proposer,
                "strategy": one.run.strategy,
                "seed": one.run.seed,
                "points": [{**_spent(point.spent), "quality": point.quality} for point in one.points],
            }
            for one in courses
        ],
        **{
            f"per_{PER[axis]}": [
                {axis: amount, "quality": {one.run.id: q for one, q in zip(courses, qualities, strict=True)}}
                for amount, qualities in course.compared(courses, axis)
            ]
            for axis in course.AXES
        },
    }


def _spent(spent: budget.Spent) -> dict[str, float]:
    return {name: value for name, value in asdict(spent).items() if name != "seconds"}

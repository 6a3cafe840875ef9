"""`evolve ops --measure`: PyTorch's own times at every workload, each archived as soon as it is known."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from archive.records import DeviceInfo, Standard
from archive.store import Store
from evolve.cli import signals
from evolve.cli.starting import engine_on
from evolve.engines.engine import Gauging
from evolve.engines.messages import Gauge, Gauged
from evolve.errors import UserError
from evolve.report.progress import Phases
from evolve.report.prospects import shares
from evolve.report.words import clock, counted, one_line, percent

if TYPE_CHECKING:
    from reference_ops.op import Op

IN_VAIN = 2  # workloads in a row at which torch.compile cost a worker: it would at the op's others
NO_LIGHT = "the emulated device has no speed of light that PyTorch could be held against"
ELSEWHERE = "on a machine with a GPU: `evolve ops --measure --archive FILE`; then here: `evolve merge FILE`"


@dataclass
class Work:
    """An op, what is to be measured of it, and what came of that."""

    locator: str
    op: "Op"
    missing: tuple[str, ...]  # workloads
    found: list[Standard] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)  # by workload
    without_compile: dict[str, str] = field(default_factory=dict)


def check_device(kind: str) -> None:
    if kind != "cuda":
        raise UserError(NO_LIGHT, ELSEWHERE)


def measure(
    listed: Sequence[tuple[str, "Op"]], kind: str, store: Store, shown: Console, *, again: bool
) -> tuple[dict[str, dict[str, str]], str]:
    """Every op, given with its locator. Why some workloads could not be measured, by both; and the device's key."""
    with engine_on(kind, Phases(), shown) as engine:
        if not isinstance(engine, Gauging):
            raise UserError("this engine times kernels alone", "measure on the machine that has the GPU")
        key = engine.info.key
        works = [Work(locator, op, _missing(op, store, engine.info, again=again)) for locator, op in listed]
        todo = [work for work in works if work.missing]
        _say_what_is_to_do(works, todo, shown)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as progress:
            bar = progress.add_task("", total=sum(len(work.missing) for work in todo))
            for work in todo:
                began = time.monotonic()
                progress.update(bar, description=work.op.name)
                for _ in _measured(work, engine, store, again=again):
                    progress.update(bar, advance=1)
                    signals.check()
                _say(work, time.monotonic() - began, shown)
    return {work.op.name: work.faults for work in todo}, key


def _missing(op: "Op", store: Store, info: DeviceInfo, *, again: bool) -> tuple[str, ...]:
    """Times by another PyTorch or another driver are missing too."""
    known = {
        one.workload
        for one in store.find(Standard, op.name)
        if (one.device.key, one.device.torch, one.device.driver) == (info.key, info.torch, info.driver)
    }
    return tuple(workload.key for workload in op.workloads(info.kind) if again or workload.key not in known)


def _measured(work: Work, engine: Gauging, store: Store, *, again: bool) -> Iterator[str]:
    """Each workload, once it is done with."""
    lost = 0  # workers, one after the other
    for workload in work.missing:
        wanted = Gauge(work.locator, workload, again, eager_alone=lost >= IN_VAIN)
        answer = engine.gauge(wanted)
        if answer.standard is None and answer.leaving and not wanted.eager_alone:
            lost += 1
            answer = _eager_alone(work, wanted, answer, engine)
        elif wanted.eager_alone:
            work.without_compile[workload] = "not tried again"
        else:
            lost = 0
        if answer.standard:
            store.append(answer.standard)
            work.found.append(answer.standard)
        else:
            work.faults[workload] = answer.fault
        yield workload


def _eager_alone(work: Work, wanted: Gauge, failed: Gauged, engine: Gauging) -> Gauged:
    answer = engine.gauge(Gauge(wanted.op, wanted.workload, wanted.again, eager_alone=True))
    if answer.standard:
        work.without_compile[wanted.workload] = failed.fault
    return answer


def _say_what_is_to_do(works: Sequence[Work], todo: Sequence[Work], shown: Console) -> None:
    number = sum(len(work.missing) for work in todo)
    known = len(works) - len(todo)
    if known:
        shown.print(f"{counted(known, 'op')} known from earlier; --again measures everything anew", style="dim")
    if number:
        shown.print(
            f"timing PyTorch at {counted(number, 'workload')} of {counted(len(todo), 'op')}; Ctrl-C loses nothing"
        )


def _say(work: Work, seconds: float, shown: Console) -> None:
    found = shares([one.floor_us / one.best_us if one.floor_us else None for one in work.found])
    light = f"PyTorch at {percent(found.mean)} of light, worst {percent(found.worst)}" if found else "light unknown"
    figures = light if work.found else "nothing measured"
    shown.print(
        f"{work.op.name}: {figures} ({counted(len(work.missing), 'workload')}, {clock(seconds)})", soft_wrap=True
    )
    for workload, why in work.without_compile.items():
        shown.print(f"    {workload}: eager alone; torch.compile: {one_line(why)}", style="yellow", soft_wrap=True)
    for workload, why in work.faults.items():
        shown.print(f"    {workload}: {one_line(why)}", style="red", soft_wrap=True)

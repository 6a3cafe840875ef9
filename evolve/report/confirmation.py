"""How a champion stood its confirmation, and what speaks for a speedup that sounds too good."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from archive.records import Confirmed, Duel, Evaluation
from evolve.report.tables import fitted, plain_table
from evolve.report.words import counted, listed, one_line, percent, short, times, workload_labels

NO_DUEL = "no duel: nowhere does it come close to the best of PyTorch"
AUDIT_SPEEDUP = 10.0  # above it, a fault of the measurement is likelier than so good a kernel


def confirmation_details(evaluation: Evaluation) -> Iterator[RenderableType]:
    """Duels, held-out shapes and the sanitizer's words; nothing of what was not confirmed."""
    confirmed = evaluation.confirmed
    if confirmed is None:
        return
    if confirmed.duels:
        yield duels_table(confirmed.duels)
    else:
        yield Text(NO_DUEL)
    yield Text(f"held out: {held_out_words(confirmed)}")
    said, style = sanitizer_words(evaluation)
    yield Text(f"sanitizer: {said}", style)


def duels_table(duels: tuple[Duel, ...], kernels: dict[str, str] | None = None) -> Table:
    """A row per workload; `kernels` says whose duel it was, where they are of several."""
    labels = workload_labels([duel.workload for duel in duels])
    numbers = ["speedup", "95 %", "noise"]
    whose = ["kernel"] if kernels else []
    table = plain_table(labels.heading, *whose, "against", *numbers, "", numbers=numbers)
    for duel in duels:
        table.add_row(
            fitted(labels.of[duel.workload]),
            *([short(kernels[duel.workload])] if kernels else []),
            fitted(duel.baseline),
            Text(times(duel.speedup), "bold"),
            Text(f"{duel.low:.2f}–{duel.high:.2f}", "dim"),
            percent(duel.noise, digits=1),
            Text("won", "green") if duel.won else Text("not won", "yellow"),
        )
    return table


def held_out_words(confirmed: Confirmed) -> str:
    shapes = confirmed.held_out
    return f"right on {counted(len(shapes), 'shape')} drawn at random: {', '.join(shapes)}" if shapes else "no shapes"


def sanitizer_words(evaluation: Evaluation) -> tuple[str, str]:
    """What compute-sanitizer's tools said of a confirmed kernel, and the style to say it in."""
    sanitized = evaluation.confirmed.sanitized if evaluation.confirmed else ()
    if evaluation.device.kind != "cuda":
        return "compute-sanitizer is for GPUs alone", "dim"
    if not sanitized:
        return "compute-sanitizer was not found, so it has not looked for races and stray accesses", "yellow"
    clean = list(dict.fromkeys(said.tool for said in sanitized if said.errors == 0))
    unfinished = {said.tool: said for said in sanitized if said.errors is None}
    parts = [f"{listed(clean)} found nothing"] if clean else []
    parts += [f"{said.tool} could not finish: {one_line(said.report)}" for said in unfinished.values()]
    return "; ".join(parts), "yellow" if unfinished else ""


def audit(evaluation: Evaluation) -> Iterator[RenderableType]:
    """A marked block for speedups above 10x: what was checked, and what was not yet. Else nothing."""
    high = [m for m in evaluation.measurements if m.speedup > AUDIT_SPEEDUP] if evaluation.passed else []
    if not high:
        return
    labels = workload_labels([measurement.workload for measurement in high])
    where = ", ".join(f"{times(m.speedup)} at {labels.of[m.workload]}" for m in high)
    yield Text(f"AUDIT: more than {AUDIT_SPEEDUP:g}x over the best of PyTorch ({where})", "bold yellow")
    done, open_ = _audited(evaluation)
    table = Table.grid(padding=(0, 0, 0, 2))
    for said in done:
        table.add_row("", "checked", said)
    for said in open_:
        table.add_row("", Text("not yet", "yellow"), Text(said, "yellow"))
    yield table


def _audited(evaluation: Evaluation) -> tuple[list[str], list[str]]:
    """What speaks for the times, and what nobody has looked at."""
    done, open_ = [], []
    checks, conditions, confirmed = evaluation.checks, evaluation.conditions, evaluation.confirmed
    if checks:
        shapes, kinds = {check.workload for check in checks}, {check.values for check in checks}
        worst = max(check.worst for check in checks)
        done.append(
            f"{counted(len(checks), 'output')} on {counted(len(shapes), 'shape')} and {len(kinds)} kinds of values, "
            f"timed calls among them; the worst element is off by {percent(worst)} of what is allowed"
        )
    else:
        open_.append("how far off its outputs were was not recorded")
    floors = [m.share_of_light for m in evaluation.measurements if m.share_of_light]
    if floors:
        done.append(f"its times against what is physical: {percent(max(floors))} of the speed of light at most")
    if conditions:
        slowed = f"slowed down by {conditions.throttled}" if conditions.throttled else "not slowed down"
        done.append(f"the GPU at {conditions.sm_mhz} MHz and {conditions.temperature_c} °C, {slowed}")
    if confirmed is None:
        open_.append(f"a fresh process, held-out shapes, duels and the sanitizer: evolve confirm {evaluation.op}")
        return done, open_
    done.append(f"in a fresh process, on {counted(len(confirmed.held_out), 'held-out shape')}")
    duels = ", ".join(f"{times(duel.speedup)} against {duel.baseline}" for duel in confirmed.duels)
    done.append(f"duels: {duels}")
    said, style = sanitizer_words(evaluation)
    (open_ if style else done).append(f"sanitizer: {said}")
    return done, open_

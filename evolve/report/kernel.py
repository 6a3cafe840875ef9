"""Reports on one kernel: its text, origin, evaluations, confirmation, and differences from another kernel."""

import difflib
import re
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from archive.kernel import OPEN, Kernel, Proposal
from archive.records import SHIPPED, Confirmed, Duel, Evaluation
from evolve.devices.choose import policy_of
from evolve.report.basis import Basis, known_basis
from evolve.report.differences import Side, side_by_side
from evolve.report.tables import fitted, measurements_table, plain_table
from evolve.report.words import (
    counted,
    listed,
    moment,
    one_line,
    percent,
    short,
    times,
    times_note,
    workload_labels,
)

NO_OTHER_SHAPES = "correct on the listed shapes; no other shape was found that both the op and the kernel accept"
NO_DUEL = "no duel: the kernel is not close to the best of PyTorch on any workload"
DUELS_NEED_A_GPU = "no duel with PyTorch: that needs a GPU"
MEASURED_ELSEWHERE = "measured elsewhere and shipped with the package; `evolve verify` measures it on this machine"
AUDIT_SPEEDUP = 10.0  # a larger speedup is more likely a measurement error


def confirmation_details(evaluation: Evaluation) -> Iterator[RenderableType]:
    """Yield the duels, held-out shapes and sanitizer results of a confirmed kernel; nothing for other kernels."""
    confirmed = evaluation.confirmed
    if confirmed is None:
        return
    if not known_basis(evaluation.device.kind).is_pytorch:
        yield Text(DUELS_NEED_A_GPU)
    elif confirmed.duels:
        yield duels_table(confirmed.duels)
    else:
        yield Text(NO_DUEL)
    yield Text(f"held out: {held_out_words(confirmed)}")
    words, style = sanitizer_words(evaluation)
    yield Text(f"sanitizer: {words}", style)


def duels_table(duels: tuple[Duel, ...], kernels: dict[str, str] | None = None) -> Table:
    """Return a table with a row per workload. For duels of several kernels, `kernels` maps workloads to their ids."""
    labels = workload_labels([duel.workload for duel in duels])
    numbers = ["speedup", "95 %", "noise"]
    owner = ["kernel"] if kernels else []
    table = plain_table(labels.heading, *owner, "against", *numbers, "", numbers=numbers)
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
    return (
        f"correct on {counted(len(shapes), 'shape')} drawn at random: {', '.join(shapes)}"
        if shapes
        else NO_OTHER_SHAPES
    )


def sanitizer_words(evaluation: Evaluation) -> tuple[str, str]:
    """Return the results of compute-sanitizer's tools for a confirmed kernel, and the style in which to print them."""
    sanitized = evaluation.confirmed.sanitized if evaluation.confirmed else ()
    if not sanitized:
        policy = policy_of(evaluation.device.kind)
        return policy.no_sanitizer, "yellow" if policy.times_are_gpu_times else "dim"
    clean = list(dict.fromkeys(result.tool for result in sanitized if result.errors == 0))
    unfinished = {result.tool: result for result in sanitized if result.errors is None}
    parts = [f"{listed(clean)} found nothing"] if clean else []
    parts += [f"{result.tool} could not finish: {one_line(result.report)}" for result in unfinished.values()]
    return "; ".join(parts), "yellow" if unfinished else ""


def audit(evaluation: Evaluation) -> Iterator[RenderableType]:
    """Yield a list of the checks that were made and that were not, if a speedup exceeds 10x."""
    comparable = evaluation.passed and known_basis(evaluation.device.kind).is_pytorch
    high = [m for m in evaluation.measurements if m.speedup > AUDIT_SPEEDUP] if comparable else []
    if not high:
        return
    labels = workload_labels([measurement.workload for measurement in high])
    where = ", ".join(f"{times(m.speedup)} at {labels.of[m.workload]}" for m in high)
    yield Text(f"AUDIT: more than {AUDIT_SPEEDUP:g}x over the best of PyTorch ({where})", "bold yellow")
    done, missing = _audited(evaluation)
    table = Table.grid(padding=(0, 0, 0, 2))
    for item in done:
        table.add_row("", "checked", item)
    for item in missing:
        table.add_row("", Text("not yet", "yellow"), Text(item, "yellow"))
    yield table


def _audited(evaluation: Evaluation) -> tuple[list[str], list[str]]:
    """Return the checks that support the measured times, and the checks that are missing."""
    done, missing = [], []
    checks, conditions, confirmed = evaluation.checks, evaluation.conditions, evaluation.confirmed
    if checks:
        shapes, kinds = {check.workload for check in checks}, {check.values for check in checks}
        worst = max(check.worst for check in checks)
        done.append(
            f"{counted(len(checks), 'output')} on {counted(len(shapes), 'shape')} and {len(kinds)} kinds of values, "
            f"timed calls included; the largest error is {percent(worst)} of the allowed error"
        )
    else:
        missing.append("the errors of its outputs were not recorded")
    floors = [m.share_of_light for m in evaluation.measurements if m.share_of_light]
    if floors:
        done.append(f"times against the speed of light: at most {percent(max(floors))} of it")
    if conditions:
        throttled = f"throttled by {conditions.throttled}" if conditions.throttled else "not throttled"
        done.append(f"the GPU at {conditions.sm_mhz} MHz and {conditions.temperature_c} °C, {throttled}")
    if confirmed is None:
        missing.append(f"a fresh process, held-out shapes, duels and the sanitizer: evolve confirm {evaluation.op}")
        return done, missing
    done.append(f"in a fresh process, on {counted(len(confirmed.held_out), 'held-out shape')}")
    duels = ", ".join(f"{times(duel.speedup)} against {duel.baseline}" for duel in confirmed.duels)
    done.append(f"duels: {duels}")
    words, style = sanitizer_words(evaluation)
    (missing if style else done).append(f"sanitizer: {words}")
    return done, missing


FENCED_KERNEL = re.compile(rf"^[ \t]*(?:`{{3,}}|~{{3,}}).*\n(?:[ \t]*//.*\n)*{re.escape(OPEN)}", re.MULTILINE)
THEME = "ansi_dark"
NUMBER_COLUMNS = 4  # width of line numbers
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def kernel_details(
    kernel: Kernel,
    proposals: list[Proposal],
    evaluations: list[tuple[Evaluation, Basis]],
    children: list[Proposal],
    width: int,
) -> Iterator[RenderableType]:
    """Yield the text of a kernel, its proposals and children, and its evaluations with their basis of comparison."""
    yield Text.assemble((kernel.id, "bold"), f"  {kernel.op}")
    yield Text()
    yield Syntax(kernel.text.rstrip("\n"), "cuda", theme=THEME, background_color="default", word_wrap=False)
    yield _heading("Proposed")
    yield from (_proposal_line(proposal) for proposal in proposals)
    if not proposals:
        yield Text("the archive has no proposal of this kernel", "dim")
    if children:
        ids = list(dict.fromkeys(short(child.kernel_id) for child in children if child.kernel))
        yield fitted(f"children: {', '.join(ids) or 'none with a kernel'}")
    for evaluation, basis in reversed(evaluations):
        yield from evaluation_details(evaluation, width, basis)
    if not evaluations:
        yield _heading("Not evaluated yet")


def evaluation_details(evaluation: Evaluation, width: int, basis: Basis) -> Iterator[RenderableType]:
    """Yield the outcome, the measurements, the confirmation and the log of one evaluation."""
    confirmed = ", confirmed in a fresh process" if evaluation.confirmed else ""
    style = "green" if evaluation.passed else "red"
    yield _heading(f"On {evaluation.device.name}: {evaluation.outcome}{confirmed}", style)
    if evaluation.shipped:
        yield Text(MEASURED_ELSEWHERE, "yellow")
    facts = [moment(evaluation.created), f"{evaluation.seconds:.1f} s" if evaluation.seconds else ""]
    if evaluation.deterministic is not None:
        facts.append("deterministic" if evaluation.deterministic else "not deterministic")
    if evaluation.measurements:
        over = "" if basis.is_pytorch else " over the first kernel"
        facts.append(f"best {times(basis.best(evaluation))}, mean {times(basis.mean(evaluation))}{over}")
    facts += [
        f"{spent.entry}: {spent.registers} registers, {spent.shared_bytes} B shared"
        + (f", {spent.local_bytes} B spilled" if spent.local_bytes else "")
        for spent in evaluation.resources
    ]
    yield Text("; ".join(filter(None, facts)))
    if evaluation.measurements:
        if note := times_note(evaluation.device.kind):
            yield Text(note, "yellow")
        yield measurements_table(evaluation, width, basis)
    if evaluation.skipped:
        labels = workload_labels([_workload(skipped) for skipped in evaluation.skipped])
        yield Text(f"not accepted ({labels.heading}): {', '.join(labels.of.values())}", "dim")
    if evaluation.confirmed:
        yield Text()
        yield from confirmation_details(evaluation)
    yield from audit(evaluation)
    if evaluation.log.strip():
        yield Text(evaluation.log.rstrip(), "dim" if evaluation.passed else "")


def reply_details(proposal: Proposal) -> Iterator[RenderableType]:
    """Yield a reply without a kernel, and, if the prompt requested a kernel, the reason why none was found."""
    what = "a reply without a kernel" if proposal.failure else "a reply in words, from which kernels are written"
    yield Text.assemble((proposal.id, "bold"), f"  {proposal.op}: {what}")
    yield _proposal_line(proposal)
    if proposal.failure:
        yield Text(f"reason: {proposal.failure}", "red")
    yield _heading("The reply")
    yield Text(proposal.reply.rstrip() or "(empty)", "" if proposal.reply.strip() else "dim")


def difference(a: Kernel, b: Kernel) -> RenderableType:
    """Return a unified diff of two kernels' canonical texts."""
    lines = difflib.unified_diff(a.text.splitlines(), b.text.splitlines(), short(a.id), short(b.id), lineterm="")
    return Group(*(Text(line, DIFF_STYLES.get(line[:1], "")) for line in lines))


def beside(a: Kernel, b: Kernel, width: int) -> RenderableType:
    """Return two kernels' texts side by side, highlighted, without the lines that are far from any change."""
    half = (width - 2 * NUMBER_COLUMNS - 5) // 2
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for kernel in (a, b):
        table.add_column("", justify="right", width=NUMBER_COLUMNS, style="dim")
        table.add_column(f"{short(kernel.id)}  {one_line(kernel.plan.note, max(1, half - 10))}", width=half)
    highlighting = Syntax("", "cuda", theme=THEME, background_color="default")
    for number, group in enumerate(side_by_side(a.text, b.text)):
        if number:
            table.add_row("", Text("…", "dim"), "", Text("…", "dim"))
        for pair in group:
            table.add_row(*_side(pair.left, "red", highlighting, changed=pair.changed),
                          *_side(pair.right, "green", highlighting, changed=pair.changed))  # fmt: skip
    return table


def _side(side: Side, color: str, highlighting: Syntax, *, changed: bool) -> tuple[str, Text]:
    if not side.number:
        return "", Text()
    text = highlighting.highlight(side.text.expandtabs(4) or " ")
    text.right_crop(1)  # the newline that highlighting adds
    if changed and "\t" in side.text:
        text.stylize(color)
    elif changed:
        at = 0
        for part in side.parts:
            text.stylize(
                f"bold {color} underline" if part.changed and len(side.parts) > 1 else color, at, at + len(part.text)
            )
            at += len(part.text)
    text.overflow, text.no_wrap = "fold", False
    return str(side.number), text


def _heading(text: str, style: str = "") -> Text:
    return Text(f"\n{text}", f"bold {style}".strip())


def _proposal_line(proposal: Proposal) -> Text:
    parts = [f"{moment(proposal.created)} by {proposal.proposer}: {proposal.operator}".strip()]
    if proposal.parents:
        parts.append(f"of {', '.join(map(short, proposal.parents))}")
    if proposal.run:
        parts.append("elsewhere" if proposal.run == SHIPPED else f"in run {proposal.run}")
    cost = proposal.cost
    if cost.prompt_tokens or cost.completion_tokens:
        parts.append(f"({cost.prompt_tokens} + {cost.completion_tokens} tokens, {cost.seconds:.0f} s)")
    if proposal.kernel and (kernels := len(FENCED_KERNEL.findall(proposal.reply))) > 1:
        parts.append(f"(the reply has {kernels} kernels; the last complete kernel was used)")
    return Text(" ".join(parts))


def _workload(skipped: str) -> str:
    """Return the workload from text such as `rows=2 cols=8 float32: the reason`."""
    return skipped.partition(": ")[0]

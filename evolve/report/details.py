"""Everything about one kernel, or about one reply that held none."""

import difflib
import re
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.text import Text

from archive.kernel import OPEN, Kernel
from archive.proposals import Proposal
from archive.records import Evaluation
from evolve.report.confirmation import audit, confirmation_details
from evolve.report.tables import fitted, measurements_table
from evolve.report.words import EMULATED_TIMES, best_speedup, mean_speedup, moment, short, times, workload_labels

FENCED_KERNEL = re.compile(rf"^[ \t]*(?:`{{3,}}|~{{3,}}).*\n(?:[ \t]*//.*\n)*{re.escape(OPEN)}", re.MULTILINE)
THEME = "ansi_dark"
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def kernel_details(
    kernel: Kernel, proposals: list[Proposal], evaluations: list[Evaluation], children: list[Proposal], width: int
) -> Iterator[RenderableType]:
    """The text of a kernel, where it came from, what became of it."""
    yield Text.assemble((kernel.id, "bold"), f"  {kernel.op}")
    yield Text()
    yield Syntax(kernel.text.rstrip("\n"), "cuda", theme=THEME, background_color="default", word_wrap=False)
    yield _heading("Proposed")
    yield from (_proposal_line(proposal) for proposal in proposals)
    if not proposals:
        yield Text("by nobody that this archive knows of", "dim")
    if children:
        born = list(dict.fromkeys(short(child.kernel_id) for child in children if child.kernel))
        yield fitted(f"children: {', '.join(born) or 'none with a kernel'}")
    for evaluation in reversed(evaluations):
        yield from evaluation_details(evaluation, width)
    if not evaluations:
        yield _heading("Not evaluated yet")


def evaluation_details(evaluation: Evaluation, width: int) -> Iterator[RenderableType]:
    confirmed = ", confirmed by a fresh process" if evaluation.confirmed else ""
    style = "green" if evaluation.passed else "red"
    yield _heading(f"On {evaluation.device.name}: {evaluation.outcome}{confirmed}", style)
    facts = [moment(evaluation.created), f"{evaluation.seconds:.1f} s" if evaluation.seconds else ""]
    if evaluation.deterministic is not None:
        facts.append("deterministic" if evaluation.deterministic else "not deterministic")
    if evaluation.measurements:
        facts.append(f"best {times(best_speedup(evaluation))}, mean {times(mean_speedup(evaluation))}")
    facts += [
        f"{spent.entry}: {spent.registers} registers, {spent.shared_bytes} B shared"
        + (f", {spent.local_bytes} B spilled" if spent.local_bytes else "")
        for spent in evaluation.resources
    ]
    yield Text("; ".join(filter(None, facts)))
    if evaluation.device.kind != "cuda" and evaluation.measurements:
        yield Text(EMULATED_TIMES, "yellow")
    if evaluation.measurements:
        yield measurements_table(evaluation, width)
    if evaluation.skipped:
        labels = workload_labels([_workload(said) for said in evaluation.skipped])
        yield Text(f"not accepted ({labels.heading}): {', '.join(labels.of.values())}", "dim")
    if evaluation.confirmed:
        yield Text()
        yield from confirmation_details(evaluation)
    yield from audit(evaluation)
    if evaluation.log.strip():
        yield Text(evaluation.log.rstrip(), "dim" if evaluation.passed else "")


def reply_details(proposal: Proposal) -> Iterator[RenderableType]:
    """A reply that held no kernel, and why it counts as one."""
    yield Text.assemble((proposal.id, "bold"), f"  {proposal.op}: a reply without a kernel")
    yield _proposal_line(proposal)
    yield Text(f"reason: {proposal.failure}", "red")
    yield _heading("The reply")
    yield Text(proposal.reply.rstrip() or "(empty)", "" if proposal.reply.strip() else "dim")


def difference(a: Kernel, b: Kernel) -> RenderableType:
    """A unified diff of two kernels' canonical texts."""
    lines = difflib.unified_diff(a.text.splitlines(), b.text.splitlines(), short(a.id), short(b.id), lineterm="")
    return Group(*(Text(line, DIFF_STYLES.get(line[:1], "")) for line in lines))


def _heading(text: str, style: str = "") -> Text:
    return Text(f"\n{text}", f"bold {style}".strip())


def _proposal_line(proposal: Proposal) -> Text:
    parts = [f"{moment(proposal.created)} by {proposal.proposer}: {proposal.operator}".strip()]
    if proposal.parents:
        parts.append(f"of {', '.join(map(short, proposal.parents))}")
    if proposal.run:
        parts.append(f"in run {proposal.run}")
    cost = proposal.cost
    if cost.prompt_tokens or cost.completion_tokens:
        parts.append(f"({cost.prompt_tokens} + {cost.completion_tokens} tokens, {cost.seconds:.0f} s)")
    if proposal.kernel and (kernels := len(FENCED_KERNEL.findall(proposal.reply))) > 1:
        parts.append(f"(the reply holds {kernels} kernels: the last complete one was taken)")
    return Text(" ".join(parts))


def _workload(skipped: str) -> str:
    """Of `rows=2 cols=8 float32: the reason`, the workload."""
    return skipped.partition(": ")[0]

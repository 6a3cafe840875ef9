"""What a profiler counted while the parent ran, in plain words, and the one bottleneck that it points to."""

from archive.records import Profile
from evolve.devices import counters
from evolve.devices.counters import COUNTERS, Counter
from evolve.prompting.bottleneck import Counted, bottleneck, side
from evolve.prompting.op_sections import MAX_WORKLOAD
from evolve.prompting.text import nbytes, one_line
from evolve.request import Candidate
from evolve.selection.population import weakest
from reference_ops.op import Op

TOO_MUCH = 1.1  # times the least bytes
# Counts that say something only as a share of another.
RATIOS = (
    ("32-byte sectors for each global load of a warp", counters.LOAD_SECTORS, counters.LOAD_REQUESTS),
    ("32-byte sectors for each global store of a warp", counters.STORE_SECTORS, counters.STORE_REQUESTS),
    ("bank conflicts for each pass over shared memory, of loads", counters.LOAD_CONFLICTS, counters.SHARED_WAVES),
    ("bank conflicts for each pass over shared memory, of stores", counters.STORE_CONFLICTS, counters.SHARED_WAVES),
)
PARTS = {counter.name for _, *pair in RATIOS for counter in pair}


def profile_section(title: str, candidate: Candidate, op: Op, *, brief: bool = False) -> str:
    """Of several profiles that of the weakest workload; the brief form names the bottleneck alone."""
    profile = _of_weakest(candidate)
    if profile is None:
        return ""
    counted = dict(profile.counters)
    traits = candidate.evaluation.traits
    found = bottleneck(counted, max(traits.load_bytes, traits.store_bytes)) if traits else bottleneck(counted)
    at = one_line(profile.workload, MAX_WORKLOAD)
    lines = [f"# {title} as NVIDIA's profiler saw it at {at}"]
    if not brief:
        alone = [counter for counter in COUNTERS if counter.name in counted and counter.name not in PARTS]
        lines += [f"- {counter.words}: {_value(counter, counted)}" for counter in alone]
        lines += [
            f"- {words}: {counted[of.name] / counted[to.name]:.3g}"
            for words, of, to in RATIOS
            if of.name in counted and counted.get(to.name)
        ]
        lines += _moved(counted, op, profile, candidate)
    if where := side(counted):
        lines.append(f"It is {where}.")
    lines.append(f"The bottleneck: {found.kind}: {found.words}" if found else "No single bottleneck stands out.")
    return "\n".join(lines)


def _of_weakest(candidate: Candidate) -> Profile | None:
    weak = weakest(candidate.evaluation)
    ordered = sorted(candidate.profiles, key=lambda profile: weak is None or profile.workload != weak.workload)
    return next((profile for profile in ordered if profile.counters), None)


def _moved(counted: Counted, op: Op, profile: Profile, candidate: Candidate) -> list[str]:
    """How much of the traffic was needless, where it was counted."""
    moved = counted.get(counters.DRAM_READ.name, 0.0) + counted.get(counters.DRAM_WRITTEN.name, 0.0)
    workloads = op.workloads(candidate.evaluation.device.kind)
    least = next((op.least_bytes(workload) for workload in workloads if workload.key == profile.workload), 0)
    if not least or moved < TOO_MUCH * least:
        return []
    return [f"- so it moves {moved / least:.2f} times the bytes that it must"]


def _value(counter: Counter, counted: Counted) -> str:
    value = counted[counter.name]
    if counter.unit == "B":
        return nbytes(value)
    if counter.unit == "ns":
        return f"{value / 1e3:.4g} us"
    if counter.unit == "%":
        return f"{value:.0f} %"
    return f"{value:.4g}" if value < 10_000 else f"{value:.3g}"

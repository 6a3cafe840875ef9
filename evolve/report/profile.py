"""A profile as text: the counters with their units, and the bottleneck that they indicate."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from archive.records import Profile
from evolve.devices.counters import COUNTERS
from evolve.prompting.bottleneck import bottleneck, side
from evolve.report.tables import fitted, plain_table
from evolve.report.words import figure, short

STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def profile_details(profile: Profile, access_bytes: int) -> Iterator[RenderableType]:
    """Yield the counters, the roofline and the bottleneck; `access_bytes` is the widest global memory access."""
    counted = dict(profile.counters)
    yield Text.assemble((short(profile.kernel_id), "bold"), f"  {profile.op} at {profile.workload}")
    table = plain_table("counted", "", numbers=["", ""])
    table.show_header = False
    table.columns[0].justify, table.columns[0].no_wrap = "left", False
    for name, words, unit in COUNTERS:
        if name in counted:
            table.add_row(fitted(words), quantity(counted[name], unit))
    yield table
    yield Text(side(counted) or "the counters for the roofline are missing", "dim")
    if found := bottleneck(counted, access_bytes):
        yield Text.assemble((f"bottleneck: {found.kind}: ", "bold yellow"), found.words)
    else:
        yield Text("no single bottleneck")


def facts_of_profile(profile: Profile, access_bytes: int) -> dict[str, Any]:
    """Return the profile as plain values for --json."""
    found = bottleneck(dict(profile.counters), access_bytes)
    return {
        "kernel": profile.kernel_id,
        "op": profile.op,
        "device": profile.device,
        "workload": profile.workload,
        "counters": dict(profile.counters),
        "bottleneck": {"kind": str(found.kind), "words": found.words} if found else None,
    }


def quantity(value: float, unit: str) -> str:
    """Format a value as `31.4 µs`, `67.1 MB`, `92.5 %`, or a plain count."""
    if unit == "ns":
        return f"{figure(value / 1000)} µs"
    if unit == "%":
        return f"{value:.1f} %"
    scale, letter = next(((scale, letter) for scale, letter in STEPS if value >= scale), (1.0, ""))
    digits = f"{value:g}" if scale == 1.0 and value == int(value) else figure(value / scale)
    return f"{digits} {letter}{unit}".strip()

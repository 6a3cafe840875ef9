"""Measurements of shipped kernels on one GPU, as text for clear diffs: sorted keys, one workload per line.

Each kernel is named by the file that holds its text and by its knobs. Its verdict is stored without most of its checks:
only the worst check of each timed workload remains. `speedup` and `light` are only for readers.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from archive import plain
from archive.kernel import Kernel, Proposal
from archive.plan import PlanError
from archive.records import (
    SHIPPED,
    Check,
    Confirmed,
    DeviceInfo,
    Duel,
    Envelope,
    Evaluation,
    Measurement,
    Outcome,
    Sanitized,
    Traits,
    content_id,
    device_fields,
)
from archive.soundness import UnsoundError, check

FORMAT = 1
DIGITS = 4  # number of significant digits of a time
DUEL_DECIMALS = 4
FOR_READERS = ("speedup", "light")


class MeasuredError(ValueError):
    """Raised when a text does not hold valid measurements. The message says where it is wrong."""


@dataclass(frozen=True)
class Origin:
    """Origin of a kernel: its proposer, operator, time and parents."""

    operator: str
    proposer: str
    parents: tuple[str, ...] = ()
    created: float = 0.0


@dataclass(frozen=True)
class MeasuredKernel:
    """A shipped kernel with its verdict on one GPU."""

    file: str  # name of the file that holds its text
    kernel: Kernel  # the kernel of the file, perhaps with other knobs
    evaluation: Evaluation
    origin: Origin | None = None

    def records(self) -> list[Proposal | Evaluation]:
        """Return the verdict, and the proposal that names the kernel's origin."""
        if self.origin is None:
            return [self.evaluation]
        made = self.origin
        proposal = Proposal(
            self.kernel.op, made.operator, made.proposer, self.kernel, made.parents, run=SHIPPED, created=made.created
        )
        return [proposal, self.evaluation]


def as_shipped(evaluation: Evaluation) -> Evaluation:
    """Return the verdict as it ships: rounded, with the worst check of each workload, and marked as shipped."""
    timed = {measurement.workload for measurement in evaluation.measurements}
    worst: dict[str, Check] = {}
    for one in evaluation.checks:
        held = worst.get(one.workload)
        if one.workload in timed and (held is None or one.worst > held.worst):
            worst[one.workload] = one
    return replace(
        evaluation,
        log="",
        measurements=tuple(map(_rounded, evaluation.measurements)),
        seed=0,
        seconds=0.0,
        created=float(int(evaluation.created)),
        checks=tuple(_rounded(worst[m.workload]) for m in evaluation.measurements if m.workload in worst),
        conditions=None,
        resources=(),
        confirmed=_rounded_confirmation(evaluation.confirmed),
        run=SHIPPED,
    )


def file_name(device: DeviceInfo) -> str:
    """Return the name of the file for measurements on this device."""
    return f"{re.sub(r'[^A-Za-z0-9.+-]+', '-', device.name).strip('-')}.json"


def text(op: str, found: Sequence[MeasuredKernel]) -> str:
    """Return the text of these measurements, which must all be of one op and one device's name."""
    devices = {_label(one.evaluation.device): device_fields(one.evaluation.device) for one in found}
    kernels = {one.kernel.id: _written(one) for one in found}
    return "\n".join(_lines({"format": FORMAT, "op": op, "devices": devices, "kernels": kernels}, ())) + "\n"


def read(name: str, written: str, texts: Mapping[str, Kernel]) -> list[MeasuredKernel]:
    """Return the measurements in a text. `texts` are the op's shipped kernels by file name."""
    try:
        found = json.loads(written)
        if found["format"] != FORMAT:
            raise MeasuredError(f"{name} has format {found['format']}, this version reads {FORMAT}")
        devices = {label: plain.record(DeviceInfo, fields) for label, fields in found["devices"].items()}
        return [_read(found["op"], known, each, devices, texts) for known, each in found["kernels"].items()]
    except (KeyError, TypeError, ValueError, AttributeError, UnsoundError, PlanError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise MeasuredError(f"{name} cannot be read: {what}") from error


def _read(
    op: str, kernel_id: str, entry: Mapping[str, Any], devices: Mapping[str, DeviceInfo], texts: Mapping[str, Kernel]
) -> MeasuredKernel:
    kernel = texts[entry["file"]]
    if kernel.id != kernel_id:
        kernel = kernel.with_knobs(entry["knobs"])
    if kernel.id != kernel_id or kernel.op != op:
        raise MeasuredError(f"{entry['file']} does not contain the kernel {kernel_id} of {op}")
    lines = entry["workloads"]
    duels = tuple(plain.record(Duel, {"workload": w, **line["duel"]}) for w, line in lines.items() if "duel" in line)
    checks = (plain.record(Check, {"workload": w, **line["check"]}) for w, line in lines.items() if "check" in line)
    confirmed = entry.get("confirmed")
    evaluation = Evaluation(
        kernel_id, op, devices[entry["device"]], Outcome.PASSED, "",
        tuple(_measurement(workload, line) for workload, line in lines.items()),
        skipped=tuple(entry.get("skipped", ())),
        deterministic=entry.get("deterministic"),
        created=_moment(entry["measured"]),
        checks=tuple(checks),
        confirmed=_confirmed(confirmed, duels) if confirmed else None,
        traits=plain.record(Traits, entry["traits"]) if "traits" in entry else None,
        envelope=plain.record(Envelope, entry["envelope"]) if "envelope" in entry else None,
        run=SHIPPED,
    )  # fmt: skip
    check(evaluation)
    origin = None
    if "proposer" in entry:
        origin = Origin(
            entry["operator"], entry["proposer"], tuple(entry.get("parents", ())), _moment(entry["proposed"])
        )
        check(origin)
    return MeasuredKernel(entry["file"], kernel, evaluation, origin)


def _written(one: MeasuredKernel) -> dict[str, Any]:
    evaluation, kernel = one.evaluation, one.kernel
    entry: dict[str, Any] = {
        "file": one.file,
        "knobs": dict(kernel.settings),
        "device": _label(evaluation.device),
        "measured": _date(evaluation.created),
        "deterministic": evaluation.deterministic,
        "skipped": list(evaluation.skipped),
        "workloads": {m.workload: _line(m, evaluation) for m in evaluation.measurements},
    }
    if one.origin:
        made = one.origin
        entry |= {"operator": made.operator, "proposer": made.proposer, "parents": list(made.parents)}
        entry["proposed"] = _date(made.created)
    if evaluation.confirmed:
        # The number of errors, or the reason why the tool could not finish.
        sanitized = {
            one.tool: one.report if one.errors is None else one.errors for one in evaluation.confirmed.sanitized
        }
        entry["confirmed"] = {"held_out": list(evaluation.confirmed.held_out), "sanitized": sanitized}
    if evaluation.traits:
        entry["traits"] = asdict(evaluation.traits)
    if evaluation.envelope:
        entry["envelope"] = evaluation.envelope.fields()
    return {name: value for name, value in entry.items() if value not in (None, [], {})}


def _line(measurement: Measurement, evaluation: Evaluation) -> dict[str, Any]:
    line = {name: value for name, value in asdict(measurement).items() if value is not None and name != "workload"}
    line["speedup"] = round(measurement.speedup, 3)
    if share := measurement.share_of_light:
        line["light"] = round(share, 3)
    checked = next((one for one in evaluation.checks if one.workload == measurement.workload), None)
    duel = evaluation.confirmed.duel(measurement.workload) if evaluation.confirmed else None
    for name, record in (("check", checked), ("duel", duel)):
        if record:
            line[name] = {key: value for key, value in asdict(record).items() if key != "workload"}
    return line


def _measurement(workload: str, line: Mapping[str, Any]) -> Measurement:
    left_out = (*FOR_READERS, "check", "duel")
    return plain.record(Measurement, {"workload": workload} | {k: v for k, v in line.items() if k not in left_out})


def _confirmed(written: Mapping[str, Any], duels: tuple[Duel, ...]) -> Confirmed:
    sanitized = tuple(
        Sanitized(tool, None, result) if isinstance(result, str) else Sanitized(tool, result)
        for tool, result in written["sanitized"].items()
    )
    return Confirmed(tuple(written["held_out"]), duels, sanitized)


def _rounded(record: Any) -> Any:
    """Return the record with its numbers rounded to few digits. Rounding keeps the order of a time's bounds."""
    given = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{name: _short(value) for name, value in given.items() if isinstance(value, float)})


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _rounded_confirmation(confirmed: Confirmed | None) -> Confirmed | None:
    if confirmed is None:
        return None
    duels = tuple(map(_rounded_duel, confirmed.duels))
    reports = (replace(one, report=one.report if one.errors is None else "") for one in confirmed.sanitized)
    return replace(confirmed, duels=duels, sanitized=tuple(sorted(reports, key=lambda one: one.tool)))


def _rounded_duel(duel: Duel) -> Duel:
    """Round a duel: its lower bound and its noise to the kernel's disadvantage, so that a loss never becomes a win."""
    down, up = _to(math.floor), _to(math.ceil)
    low = down(duel.low)
    return replace(duel, speedup=max(low, _to(round)(duel.speedup)), low=low, high=up(duel.high), noise=up(duel.noise))


def _to(rounding: Callable[[float], int]) -> Callable[[float], float]:
    return lambda value: rounding(value * 10**DUEL_DECIMALS) / 10**DUEL_DECIMALS


def _label(device: DeviceInfo) -> str:
    return content_id(device_fields(device))[:8]


def _date(created: float) -> str:
    return datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(written: str) -> float:
    return datetime.strptime(written, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def _lines(value: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Return the lines of an object: its own keys one per line; workloads, devices and other values on one line."""
    indent = " " * len(path)
    lines = ["{"]
    # A kernel's workloads come last and stay in the op's order.
    order = value if path[-1:] == ("workloads",) else sorted(value, key=lambda key: (key == "workloads", key))
    for name in order:
        inner = value[name]
        opened = not path or path == ("kernels",) or name == "workloads"
        if isinstance(inner, dict) and opened:
            written = "\n".join(_lines(inner, (*path, name)))
        else:
            written = json.dumps(inner, sort_keys=True, ensure_ascii=False)
        lines.append(f"{indent} {json.dumps(name)}: {written},")
    if len(lines) > 1:
        lines[-1] = lines[-1].removesuffix(",")
    return [*lines, f"{indent}}}"]

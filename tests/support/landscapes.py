"""Landscapes: the times of all legal settings of a kernel's knobs, and requests that contain some of them.

A file consists of JSON lines. The first one describes the measurement:
    {"op": "softmax", "device": {...}, "workloads": ["rows=8192 cols=4096 bfloat16", ...], "kernel": "/*---..."}
Each further line is one setting, with its knobs in the order of the plan. It has the times in us on these workloads
(null where the setting is illegal or not accepted), or the outcome if the setting failed:
    {"setting": [4, 128], "us": [37.1, null]}
    {"setting": [8, 1024], "failed": "launch error"}
Lines may be appended at any time; a truncated line is skipped.
"""

import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from archive.kernel import Kernel, parse
from archive.records import DeviceInfo, Evaluation, Measurement, Outcome
from evolve.proposers.tuner.proposer import OfflineProposer
from evolve.request import Candidate, Request
from evolve.selection.population import survivors
from reference_ops import catalog
from reference_ops.op import Op, Workload

Setting = tuple[int, ...]
BASELINE, WIDTH = 2.0, 0.01  # ratio of PyTorch's time to the optimum; ratio of half the interval to the median


@dataclass(frozen=True)
class Result:
    """Result of one setting: a time for each workload (None if not accepted), or the outcome if it failed."""

    times_us: tuple[float | None, ...] = ()
    failed: str = ""


@dataclass(frozen=True)
class Landscape:
    """All settings of one kernel's knobs with their times."""

    name: str
    op: Op = field(repr=False)
    kernel: Kernel = field(repr=False)
    device: DeviceInfo = field(repr=False)
    workloads: tuple[str, ...] = field(repr=False)
    results: Mapping[Setting, Result] = field(repr=False)

    @cached_property
    def optimum_us(self) -> tuple[float, ...]:
        """Return the best time on each workload; infinite if no setting passed."""
        passed = [result.times_us for result in self.results.values() if result.times_us]
        found = tuple(min((us for us in of_one if us), default=math.inf) for of_one in zip(*passed, strict=True))
        return found or tuple(math.inf for _ in self.workloads)

    @property
    def singles(self) -> "tuple[Landscape, ...]":
        """Return one landscape for each workload that any setting accepts."""
        return tuple(self.alone(index) for index, least in enumerate(self.optimum_us) if math.isfinite(least))

    def needed(self, order: Iterable[Setting], near: float) -> int | None:
        """Return the number of settings in this order up to one within a factor `near` of the optimum, or None."""
        best = [math.inf] * len(self.workloads)
        for number, setting in enumerate(order, 1):
            times = self.result(setting).times_us
            if not any(us and us < held for held, us in zip(best, times or best, strict=True)):
                continue
            best = [min(held, us) if us else held for held, us in zip(best, times, strict=True)]
            if _mean_ratio(best, self.optimum_us) <= near:
                return number
        return None

    def result(self, setting: Setting) -> Result:
        return self.results.get(setting, Result(failed=str(Outcome.ILLEGAL)))

    def alone(self, index: int) -> "Landscape":
        """Return the landscape of one workload."""
        results = {
            setting: Result((result.times_us[index],) if result.times_us else (), result.failed)
            for setting, result in self.results.items()
            if result.failed or result.times_us[index] is not None
        }
        wanted = self.workloads[index]
        kept = tuple(w for w in self.op.workloads(self.device.kind) if w.key == wanted)
        op = _narrowed(self.op, self.device.kind, kept)
        return Landscape(f"{self.name} | {wanted}", op, self.kernel, self.device, (wanted,), results)

    def candidate(self, kernel: Kernel, number: int = 0) -> Candidate:
        """Return the kernel as a candidate with the evaluation of its setting."""
        result = self.result(setting_of(kernel))
        measurements = tuple(
            Measurement(workload, us, us * (1 - WIDTH), us * (1 + WIDTH), 30, BASELINE * self.optimum_us[index])
            for index, workload in enumerate(self.workloads)
            if result.times_us and (us := result.times_us[index]) is not None
        )
        outcome = Outcome(result.failed) if result.failed else Outcome.PASSED
        return Candidate(
            kernel, Evaluation(kernel.id, self.op.name, self.device, outcome, "", measurements, created=float(number))
        )


def _narrowed(op: Op, kind: str, kept: tuple[Workload, ...]) -> Op:
    return replace(op, gpu=kept) if kind == "cuda" else replace(op, emulated=kept)


def _mean_ratio(best: Sequence[float], optimum: Sequence[float]) -> float:
    """Return the geometric mean of the ratios over the workloads that any setting accepts."""
    logs = [math.log(found / least) for found, least in zip(best, optimum, strict=True) if math.isfinite(least)]
    return math.exp(sum(logs) / len(logs))


def searched(landscape: Landscape, seed: int, wanted: int) -> Iterator[Setting]:
    """Yield the kernel's own setting, then the settings that the offline proposer proposes, in order."""
    tried = [landscape.candidate(landscape.kernel)]
    rng = random.Random(seed)
    yield setting_of(landscape.kernel)
    while True:
        asked = request(landscape, tried, wanted, rng.randrange(2**31))
        kernels = [proposal.kernel for proposal in OfflineProposer().propose(asked) if proposal.kernel]
        if not kernels:
            return
        for kernel in kernels:
            tried.append(landscape.candidate(kernel, len(tried)))
            yield setting_of(kernel)


def shuffled(landscape: Landscape, seed: int) -> Iterator[Setting]:
    """Yield the kernel's own setting, then all others in random order."""
    others = [setting for setting in landscape.results if setting != setting_of(landscape.kernel)]
    random.Random(seed).shuffle(others)
    return itertools.chain([setting_of(landscape.kernel)], others)


def setting_of(kernel: Kernel) -> Setting:
    return tuple(kernel.plan.settings.values())


def request(landscape: Landscape, tried: Sequence[Candidate], wanted: int, seed: int) -> Request:
    """Return the request that comes after the evaluation of these candidates."""
    by_id = {candidate.kernel.id: candidate for candidate in tried}
    alive = survivors([candidate.evaluation for candidate in tried])
    population = tuple(by_id[evaluation.kernel_id] for evaluation in alive)
    return Request(
        op=landscape.op,
        device=landscape.device,
        wanted=wanted,
        seed=seed,
        run="run",
        population=population,
        parents=population[:wanted],
        known=frozenset(by_id),
        tried=tuple(tried),
    )


def header(op: str, kernel: Kernel, device: DeviceInfo, workloads: Sequence[str]) -> str:
    """Return the first line of a landscape's file."""
    return json.dumps({"op": op, "device": asdict(device), "workloads": list(workloads), "kernel": kernel.text}) + "\n"


def line(setting: Setting, evaluation: Evaluation, workloads: Sequence[str]) -> str:
    """Return the line for one setting."""
    if not evaluation.passed:
        return json.dumps({"setting": setting, "failed": str(evaluation.outcome)}) + "\n"
    times = {m.workload: round(m.median_us, 3) for m in evaluation.measurements}
    return json.dumps({"setting": setting, "us": [times.get(workload) for workload in workloads]}) + "\n"


def read(path: Path) -> Landscape:
    """Read a landscape from its file."""
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    first_line = json.loads(first)
    device = first_line["device"]
    device["tflops"] = tuple((dtype, rate) for dtype, rate in device["tflops"])
    return Landscape(
        name=path.stem,
        op=catalog.load(first_line["op"]),
        kernel=parse(first_line["kernel"]),
        device=DeviceInfo(**device),
        workloads=tuple(first_line["workloads"]),
        results=dict(filter(None, map(_result, rest))),
    )


def _result(text: str) -> tuple[Setting, Result] | None:
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    return tuple(entry["setting"]), Result(tuple(entry.get("us", ())), entry.get("failed", ""))

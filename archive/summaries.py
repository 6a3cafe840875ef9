"""Summaries: the small fields of kernels, proposals and evaluations, for code that reads many of them at once.

Summaries that are read are named tuples, not dataclasses, because a run may read a hundred thousand of them.
The archive stores them in separate columns, so that texts, replies, logs and checks are not read with them.
"""

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import NamedTuple

from archive import plain
from archive.records import SHIPPED, Evaluation, Measurement, Outcome, Traits
from archive.runs import Cost

LOG_CHARACTERS = 600
FREE = Cost()
TIMES = struct.Struct("<5d")  # median, low, high, baseline and speed of light of one workload


class Timing(NamedTuple):
    """The times of one kernel on one workload, in microseconds."""

    workload: str
    median_us: float
    low_us: float
    high_us: float
    baseline_us: float  # the fastest PyTorch baseline
    floor_us: float | None  # time at the speed of light, if the device's rates are known

    @property
    def speedup(self) -> float:
        return self.baseline_us / self.median_us

    @property
    def share_of_light(self) -> float | None:
        return self.floor_us / self.median_us if self.floor_us else None


class KernelSummary(NamedTuple):
    """A kernel without its text."""

    number: int  # position in the order in which kernels were added
    id: str
    op: str
    family: str
    outline: str


class ProposalSummary(NamedTuple):
    """A proposal without its kernel's text, its reply and its question."""

    number: int
    id: str
    op: str
    operator: str
    proposer: str
    kernel_id: str  # empty if the reply has no kernel
    parents: tuple[str, ...]
    run: str
    failure: str
    created: float
    call: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    cached_tokens: int
    reasoning_tokens: int
    usd: float

    @property
    def shipped(self) -> bool:
        """Whether its kernel ships with the package."""
        return SHIPPED in (self.proposer, self.run)

    @property
    def cost(self) -> Cost:
        if not (self.prompt_tokens or self.completion_tokens or self.seconds or self.usd):
            return FREE
        return Cost(
            self.prompt_tokens, self.completion_tokens, self.seconds, self.cached_tokens, self.reasoning_tokens,
            self.usd,
        )  # fmt: skip


class Origin(NamedTuple):
    """The parents of a proposed kernel."""

    kernel_id: str  # empty if the reply has no kernel
    parents_json: str

    @property
    def parents(self) -> Sequence[str]:
        if self.parents_json == "[]":
            return ()
        one = only_id(self.parents_json)
        found: Sequence[str] = (one,) if one else json.loads(self.parents_json)
        return found


def only_id(text: str) -> str:
    """Return the id in a JSON list with a single id, as most lists of parents are, or an empty string."""
    simple = text[:2] == '["' and text[-2:] == '"]' and text.count('"') == 2 and "\\" not in text
    return text[2:-2] if simple else ""


class Skips(NamedTuple):
    """The declared workloads that a kernel did not accept."""

    evaluation_id: str
    workloads: tuple[str, ...]


class KernelId(NamedTuple):
    """The id of a kernel."""

    id: str


class Judged(NamedTuple):
    """The kernel and the time of an evaluation."""

    kernel_id: str
    created: float


class BriefProposal(NamedTuple):
    """A proposal's cost, time and run, which suffice for a budget."""

    kernel_id: str  # empty if the reply has no kernel
    run: str
    created: float
    tokens: int
    usd: float
    seconds: float  # time that the model took
    number: int = 0  # position in the order in which proposals were added


class BriefEvaluation(NamedTuple):
    """The time and the result of an evaluation, with the kernel's largest speedup."""

    kernel_id: str
    created: float
    seconds: float
    passed: bool
    speedup: float  # as in `EvaluationSummary`
    run: str = ""  # the run that made the evaluation; empty outside of a run, or in earlier versions


class EvaluationSummary(NamedTuple):
    """An evaluation without its checks, resources and duels."""

    number: int
    id: str
    kernel_id: str
    op: str
    device: str  # a DeviceInfo's key
    outcome: Outcome
    created: float
    seconds: float
    confirmed: bool
    code: str  # hash of the machine code, empty if the kernel was not compiled
    traits_json: str  # traits without the code, so that they are equal for many kernels; empty without traits
    log: str  # beginning of the log; empty if the kernel passed
    speedup: float  # largest speedup over the fastest baseline on any workload; 0 without measurements
    workloads: str  # one workload per line
    times: bytes  # times of each workload, packed with TIMES

    @property
    def measurements(self) -> tuple[Timing, ...]:
        return timings(self.workloads, self.times)

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def traits(self) -> Traits | None:
        return traits_in(self.traits_json, self.code)


class RankedTimes(NamedTuple):
    """The times that rank a kernel among others, from its latest evaluation, which it passed."""

    id: str  # id of the evaluation
    kernel_id: str
    device: str  # a DeviceInfo's key
    created: float
    confirmed: int
    traits_json: str
    workloads: str  # one workload per line
    times: bytes  # times of each workload, packed with TIMES

    @property
    def measurements(self) -> tuple[Timing, ...]:
        return timings(self.workloads, self.times)

    @property
    def passed(self) -> bool:
        return True

    @property
    def traits(self) -> Traits | None:
        return traits_in(self.traits_json)


@dataclass(frozen=True, slots=True)
class Tried:
    """A kernel with its outcome and its times, but without its text, because there may be tens of thousands."""

    kernel_id: str
    family: str
    settings: Mapping[str, int]  # the value of each knob
    evaluation: EvaluationSummary


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of an earlier proposal, which shows whether its model and operator are worth using again."""

    operator: str
    proposer: str
    cost: Cost
    passed: bool
    # mean over all workloads of log(previous best time / own time), with 0 for workloads where it was not faster
    gain: float


def timing(measurement: Measurement) -> Timing:
    m = measurement
    return Timing(m.workload, m.median_us, m.low_us, m.high_us, m.baseline_us, m.floor_us)


def summary(evaluation: Evaluation, number: int = 0) -> EvaluationSummary:
    traits = evaluation.traits
    return EvaluationSummary(
        number, evaluation.id, evaluation.kernel_id, evaluation.op, evaluation.device.key, evaluation.outcome,
        evaluation.created, evaluation.seconds, evaluation.confirmed is not None, traits.code if traits else "",
        without_code(json.dumps(asdict(traits))) if traits else "",
        "" if evaluation.passed else evaluation.log[:LOG_CHARACTERS],
        max((m.speedup for m in evaluation.measurements), default=0.0), *packed(map(timing, evaluation.measurements)),
    )  # fmt: skip


CODE = re.compile(r'"code": "([^"]*)", ')


def without_code(traits_json: str) -> str:
    """Return the JSON of traits without the hash of the machine code."""
    first = CODE.match(traits_json, 1)  # the place where the archive writes the code; a search would take longer
    return "{" + traits_json[first.end() :] if first else CODE.sub("", traits_json, count=1)


def with_code(traits_json: str, code: str) -> str:
    """Return the JSON with which `without_code` was called."""
    return f'{{"code": {json.dumps(code)}, {traits_json[1:]}' if traits_json else ""


def traits_in(traits_json: str, code: str = "") -> Traits | None:
    """Return the traits in a JSON that was stripped of the code."""
    return plain.record(Traits, {"code": code} | json.loads(traits_json)) if traits_json else None


def packed(timings: Iterable[Timing]) -> tuple[str, bytes]:
    """Return the workloads, one per line, and their packed times."""
    kept = list(timings)
    times = (TIMES.pack(t.median_us, t.low_us, t.high_us, t.baseline_us, t.floor_us or math.nan) for t in kept)
    return "\n".join(t.workload for t in kept), b"".join(times)


@lru_cache(maxsize=1_000)  # cached, because the same times are unpacked several times in a row
def timings(workloads: str, times: bytes) -> tuple[Timing, ...]:
    """Return the times with which `packed` was called."""
    found = zip(_names(workloads), TIMES.iter_unpack(times), strict=bool(times))
    return tuple(
        Timing(workload, median, low, high, baseline, floor if floor > 0 else None)
        for workload, (median, low, high, baseline, floor) in found
    )


@lru_cache(maxsize=1_000)
def _names(workloads: str) -> tuple[str, ...]:
    """Return the workloads. The strings are the same objects for every kernel."""
    return tuple(workloads.split("\n"))


def is_sound(workloads: str, times: bytes) -> bool:
    """Return whether there are times for each workload."""
    return len(times) == TIMES.size * (workloads.count("\n") + 1) if times else not workloads

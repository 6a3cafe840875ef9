"""The records of the archive: what became of a kernel, on which device, and how that was found out.

All are plain frozen values with content ids, so appending one twice changes nothing and a merge of two
archives is a set union.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any


class Outcome(StrEnum):
    """The verdict on a kernel. Everything but PASSED comes with a log that says why."""

    PASSED = "passed"
    UNSUPPORTED = "unsupported"  # asks for something this device or this version does not offer
    ILLEGAL = "illegal"  # its knobs break a `require` or a hardware limit on every workload it accepts
    MALFORMED = "malformed"  # the plan does not fit the op, or the entry or its arguments do not fit the plan
    COMPILE_ERROR = "compile error"
    LAUNCH_ERROR = "launch error"
    CRASHED = "crashed"  # an illegal access, a trap, or the death of the worker
    TIMED_OUT = "timed out"
    WRONG = "wrong"  # its numbers differ from PyTorch's by more than rounding explains
    OUT_OF_BOUNDS = "out of bounds"  # it wrote outside its buffers
    CHANGED_INPUT = "changed input"
    KEEPS_STATE = "keeps state"  # remembers something from one call to the next
    UNSAFE = "unsafe"  # right so far, but NVIDIA's sanitizer found a race or an access it had no right to
    IMPLAUSIBLE = "implausible"  # faster than its inputs can be read
    DUPLICATE = "duplicate"  # compiles to the machine code of a kernel that was judged already, so it was not run


@dataclass(frozen=True)
class DeviceInfo:
    """What a kernel was evaluated on, with the limits a plan must keep and the rates measured there."""

    kind: str  # the name of a device, such as "cuda"
    name: str
    arch: str  # what kernels are compiled for, such as sm_90a
    sms: int
    shared_bytes: int  # the most shared memory a block may have
    l2_bytes: int = 0
    driver: str = ""
    torch: str = ""
    copy_gb_s: float = 0.0
    tflops: tuple[tuple[str, float], ...] = ()  # matrix product rate by dtype

    @property
    def key(self) -> str:
        """Measurements are compared only between equal keys."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Measurement:
    """The time of one kernel on one workload, beside the baselines timed in the same minute."""

    workload: str
    median_us: float
    low_us: float  # a 95 % interval of the median
    high_us: float
    samples: int
    eager_us: float
    compile_us: float | None = None
    floor_us: float | None = None  # the speed of light, where the device's rates are known
    autotune_us: float | None = None  # torch.compile(mode="max-autotune")
    graph_us: float | None = None  # one call of several in a CUDA graph, for kernels that take hardly any time

    @property
    def baseline_us(self) -> float:
        """The best that PyTorch offers."""
        return min(time for time in (self.eager_us, self.compile_us, self.autotune_us) if time)

    @property
    def speedup(self) -> float:
        """Over the best that PyTorch offers."""
        return self.baseline_us / self.median_us

    @property
    def share_of_light(self) -> float | None:
        return self.floor_us / self.median_us if self.floor_us else None


@dataclass(frozen=True)
class Standard:
    """What PyTorch takes for one workload of an op, with no kernel beside it: where a search would begin."""

    op: str
    workload: str
    device: DeviceInfo
    eager_us: float
    compile_us: float | None = None  # None where torch.compile cannot
    autotune_us: float | None = None
    floor_us: float | None = None  # the speed of light, where the device's rates are known
    created: float = 0.0

    @cached_property
    def id(self) -> str:
        return content_id(asdict(self))

    @property
    def best_us(self) -> float:
        return min(time for time in (self.eager_us, self.compile_us, self.autotune_us) if time)


@dataclass(frozen=True)
class Resources:
    """What the compiler spent on one entry."""

    entry: str
    registers: int
    shared_bytes: int
    local_bytes: int  # spills and indexed arrays


@dataclass(frozen=True)
class Traits:
    """What a kernel is once it is compiled, over all its workloads; its words and its source may hide that."""

    code: str  # hash of the machine code and the launches: where equal, two kernels are one
    load_bytes: int  # the widest load from global memory that a thread makes
    store_bytes: int
    shared_bytes: int  # the most a block has, static and dynamic
    registers: int  # the most a thread has
    threads: int  # of the largest block
    launches: int
    tensor_cores: bool
    atomics: bool
    occupancy: float  # the least share of a multiprocessor's threads that can be resident at once


@dataclass(frozen=True)
class Profile:
    """What NVIDIA's profiler counted while a kernel ran one workload."""

    kernel_id: str
    op: str
    device: str  # a DeviceInfo's key
    workload: str
    counters: tuple[tuple[str, float], ...]
    created: float = 0.0

    @cached_property
    def id(self) -> str:
        return content_id(asdict(self))


@dataclass(frozen=True, slots=True)  # an evaluation has a hundred of them
class Check:
    """One output that was judged: at which workload, on which values, and how far off it was."""

    workload: str
    values: str  # how the inputs were drawn
    output: str
    error: float  # root mean square, against float64
    theirs: float  # PyTorch's own, or what stands for it where PyTorch was lucky
    worst: float  # the worst element's error as a share of what is allowed there


@dataclass(frozen=True)
class Conditions:
    """The state of the GPU at the end of the timing."""

    sm_mhz: int
    memory_mhz: int
    temperature_c: int
    power_w: int
    throttled: str = ""  # the driver's reasons, such as "power cap"; empty when there was none


@dataclass(frozen=True)
class Duel:
    """A kernel against the best baseline, timed in pairs: one right after the other, in random order."""

    workload: str
    baseline: str  # eager, compile or autotune
    speedup: float  # the median of the pairs' ratios
    low: float  # a 95 % interval of it
    high: float
    noise: float  # how far the same ratio strays from 1 when the kernel is timed against itself

    @property
    def won(self) -> bool:
        return self.low > 1 + self.noise


@dataclass(frozen=True)
class Sanitized:
    """What one of compute-sanitizer's tools said; `errors` is None where it could not finish."""

    tool: str
    errors: int | None
    report: str = ""


@dataclass(frozen=True)
class Confirmed:
    """What a fresh process found when it tested a champion again, harder."""

    held_out: tuple[str, ...]  # shapes drawn at random for this one test
    duels: tuple[Duel, ...]
    sanitized: tuple[Sanitized, ...] = ()  # empty where the tool is absent

    def duel(self, workload: str) -> Duel | None:
        return next((duel for duel in self.duels if duel.workload == workload), None)


@dataclass(frozen=True)
class Evaluation:
    """The verdict on one kernel on one device."""

    kernel_id: str
    op: str
    device: DeviceInfo
    outcome: Outcome
    log: str
    measurements: tuple[Measurement, ...] = ()
    skipped: tuple[str, ...] = ()  # workloads the kernel does not accept
    deterministic: bool | None = None
    resources: tuple[Resources, ...] = ()
    seed: int = 0
    seconds: float = 0.0
    created: float = 0.0
    checks: tuple[Check, ...] = ()
    conditions: Conditions | None = None
    confirmed: Confirmed | None = None
    traits: Traits | None = None

    @cached_property
    def id(self) -> str:
        """What earlier versions did not record does not count where it is absent, so what they wrote keeps its id."""
        fields = asdict(self)
        for measurement in fields["measurements"]:
            _drop_absent(measurement, "autotune_us", "graph_us")
        _drop_absent(fields, "checks", "conditions", "confirmed", "traits")
        return content_id(fields)

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED


@dataclass(frozen=True)
class Merged:
    """Says of a verdict that it came with a merge: another archive's word, which nobody has tested here."""

    evaluation_id: str
    op: str

    @property
    def id(self) -> str:
        return self.evaluation_id


def _drop_absent(fields: dict[str, Any], *names: str) -> None:
    for name in names:
        if fields[name] in (None, ()):
            del fields[name]


def content_id(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]

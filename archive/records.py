"""Records of evaluations: the verdict on a kernel, the device, and the checks and measurements behind it.

All records are frozen dataclasses with content ids, so appending one twice changes nothing, and a merge of two
archives is a set union.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

# The proposer of the kernels that ship with the package, and the run of the verdicts and proposals that ship with them.
SHIPPED = "shipped"


class Outcome(StrEnum):
    """The verdict on a kernel. All outcomes except PASSED come with a log that gives the reason."""

    PASSED = "passed"
    UNSUPPORTED = "unsupported"  # the kernel needs a feature that this device or version does not support
    ILLEGAL = "illegal"  # its knobs break a `require` or a hardware limit on every workload that it accepts
    MALFORMED = "malformed"  # the plan does not fit the op, or the entry or its arguments do not fit the plan
    COMPILE_ERROR = "compile error"
    LAUNCH_ERROR = "launch error"
    CRASHED = "crashed"  # an illegal access, a trap, or the death of the worker
    TIMED_OUT = "timed out"
    WRONG = "wrong"  # its results differ from PyTorch's by more than rounding explains
    OUT_OF_BOUNDS = "out of bounds"  # the kernel wrote outside its buffers
    CHANGED_INPUT = "changed input"
    KEEPS_STATE = "keeps state"  # a call depends on earlier calls
    UNSAFE = "unsafe"  # its code, or NVIDIA's sanitizer, shows a race or an invalid access
    IMPLAUSIBLE = "implausible"  # the kernel is faster than its inputs can be read
    DUPLICATE = "duplicate"  # not run, because it compiles to the machine code of a previously judged kernel


@dataclass(frozen=True)
class DeviceInfo:
    """The device of an evaluation, with the limits for plans and the rates measured on it."""

    kind: str  # the name of a device, such as "cuda"
    name: str
    arch: str  # architecture for which kernels are compiled, such as sm_90a
    sms: int
    shared_bytes: int  # largest shared memory of a block
    l2_bytes: int = 0
    driver: str = ""
    torch: str = ""
    copy_gb_s: float = 0.0
    tflops: tuple[tuple[str, float], ...] = ()  # matrix product rate by dtype
    # The following fields are measured like the rates; 0 if unknown, as in records of earlier versions.
    l2_gb_s: float = 0.0  # rate of reads from the L2
    launch_us: float = 0.0  # cost of one more launch in the same stream
    grid_barrier_us: float = 0.0  # cost of one barrier of all blocks of a cooperative launch

    @property
    def key(self) -> str:
        """The kind and the name. Measurements are compared only between equal keys."""
        return f"{self.kind} {self.name}"


def device_fields(info: DeviceInfo) -> dict[str, Any]:
    """Return the fields of a device for its id, without unknown fields that earlier versions did not have."""
    return _identifying(asdict(info))


def kind_in(key: str) -> str:
    """Return the kind of the device with this key."""
    return key.partition(" ")[0]


FULL_SAMPLES = 9  # the least number of samples of a measurement that is not coarse


@dataclass(frozen=True)
class Measurement:
    """The time of one kernel on one workload, and of the baselines, which were timed within the same minute."""

    workload: str
    median_us: float
    low_us: float  # bounds of a 95 % interval of the median
    high_us: float
    samples: int
    eager_us: float
    compile_us: float | None = None
    floor_us: float | None = None  # time at the speed of light, if the device's rates are known
    autotune_us: float | None = None  # torch.compile(mode="max-autotune")
    graph_us: float | None = None  # time per call of several calls in a CUDA graph, for very short kernels

    @property
    def coarse(self) -> bool:
        """Whether the kernel was so clearly slower than the champion that a few samples were enough."""
        return self.samples < FULL_SAMPLES

    @property
    def baseline_us(self) -> float:
        """The time of the fastest PyTorch baseline."""
        return min(time for time in (self.eager_us, self.compile_us, self.autotune_us) if time)

    @property
    def speedup(self) -> float:
        """The speedup over the fastest PyTorch baseline."""
        return self.baseline_us / self.median_us

    @property
    def share_of_light(self) -> float | None:
        return self.floor_us / self.median_us if self.floor_us else None


@dataclass(frozen=True)
class Standard:
    """PyTorch's times for one workload of an op, measured without a kernel to show the starting point of a search."""

    op: str
    workload: str
    device: DeviceInfo
    eager_us: float
    compile_us: float | None = None  # None if torch.compile fails
    autotune_us: float | None = None
    floor_us: float | None = None  # time at the speed of light, if the device's rates are known
    created: float = 0.0

    @cached_property
    def id(self) -> str:
        fields = asdict(self)
        return content_id({**fields, "device": _identifying(fields["device"])})

    @property
    def best_us(self) -> float:
        return min(time for time in (self.eager_us, self.compile_us, self.autotune_us) if time)


@dataclass(frozen=True)
class Resources:
    """The resources that the compiler assigned to one entry."""

    entry: str
    registers: int
    shared_bytes: int
    local_bytes: int  # memory for spills and indexed arrays


@dataclass(frozen=True)
class Traits:
    """Properties of the compiled kernel over all its workloads, which need not be visible in its note and source."""

    code: str  # hash of the machine code and the launches; equal hashes mean duplicates
    load_bytes: int  # size of the widest load from global memory
    store_bytes: int
    shared_bytes: int  # largest per block, static and dynamic together
    registers: int  # largest number per thread
    threads: int  # number of threads of the largest block
    launches: int
    tensor_cores: bool
    atomics: bool
    occupancy: float  # lowest share of a multiprocessor's threads that can be resident at once


@dataclass(frozen=True)
class Profile:
    """Counters of NVIDIA's profiler for one kernel on one workload."""

    kernel_id: str
    op: str
    device: str  # a DeviceInfo's key
    workload: str
    counters: tuple[tuple[str, float], ...]
    created: float = 0.0

    @cached_property
    def id(self) -> str:
        return content_id(asdict(self))


@dataclass(frozen=True, slots=True)  # slots, because an evaluation has a hundred of them
class Check:
    """The check of one output: the workload, the distribution of the inputs, and the errors."""

    workload: str
    values: str  # name of the distribution of the inputs
    output: str
    error: float  # root mean square error, against float64
    theirs: float  # PyTorch's own error, or an estimate if that is unusually small
    worst: float  # largest error of an element, as a share of its tolerance


@dataclass(frozen=True)
class Envelope:
    """The largest sizes, parameters and tensors at which a kernel passed, each maximum taken separately."""

    largest: tuple[tuple[str, int | float], ...]
    elements: int  # of the largest tensor
    of_tensors: tuple[tuple[str, int], ...] = ()  # elements of each tensor; empty in records of earlier versions

    def excess(self, sizes: Mapping[str, int | float], elements: Mapping[str, int]) -> str:
        """Return a description of what exceeds the envelope, or an empty string.

        `elements` are those of each tensor.
        """
        for name, most in self.largest:
            if sizes.get(name, most) > most:
                return f"{name}={sizes[name]} is more than the {most} up to which it was tested"
        if (largest := max(elements.values())) > self.elements:
            return f"a tensor of {largest} elements is larger than those of {self.elements} with which it was tested"
        for name, most in self.of_tensors:
            if elements.get(name, most) > most:
                return f"`{name}` has {elements[name]} elements, more than the {most} up to which it was tested"
        return ""

    def fields(self) -> dict[str, Any]:
        """Return the fields as they are stored, without those that earlier versions did not have if they are absent."""
        fields = asdict(self)
        _drop_absent(fields, "of_tensors")
        return fields


@dataclass(frozen=True)
class Conditions:
    """The state of the GPU at the end of the timing."""

    sm_mhz: int
    memory_mhz: int
    temperature_c: int
    power_w: int
    throttled: str = ""  # the driver's reasons, such as "power cap"; empty if the GPU was not throttled


@dataclass(frozen=True)
class Duel:
    """A comparison of a kernel with the best baseline.

    Both are timed in pairs, one right after the other, in random order.
    """

    workload: str
    baseline: str  # eager, compile or autotune
    speedup: float  # the median of the pairs' ratios
    low: float  # bounds of the speedup's 95 % interval
    high: float
    noise: float  # distance of this ratio from 1 when the kernel is timed against itself

    @property
    def won(self) -> bool:
        return self.low > 1 + self.noise


TOO_LONG = "took more than"  # begins the report of a tool that was ended at its time limit


@dataclass(frozen=True)
class Sanitized:
    """The result of one of compute-sanitizer's tools; `errors` is None if it could not finish."""

    tool: str
    errors: int | None
    report: str = ""

    @property
    def late(self) -> bool:
        """Whether the tool was ended because the kernel took too long under it."""
        return self.errors is None and self.report.startswith(TOO_LONG)


@dataclass(frozen=True)
class Confirmed:
    """The result of a second, stricter test of a champion in a fresh process."""

    held_out: tuple[str, ...]  # shapes drawn at random for this one test
    duels: tuple[Duel, ...]
    sanitized: tuple[Sanitized, ...] = ()  # empty if the tool is not installed

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
    skipped: tuple[str, ...] = ()  # workloads that the kernel does not accept
    deterministic: bool | None = None
    resources: tuple[Resources, ...] = ()
    seed: int = 0
    seconds: float = 0.0
    created: float = 0.0
    checks: tuple[Check, ...] = ()
    conditions: Conditions | None = None
    confirmed: Confirmed | None = None
    traits: Traits | None = None
    envelope: Envelope | None = None  # None if unknown, or if the kernel did not pass
    run: str = ""  # the run that made the evaluation; empty outside of a run, or in earlier versions

    @cached_property
    def id(self) -> str:
        """A hash without the absent fields that earlier versions did not have, so that old records keep their ids."""
        fields = asdict(self)
        for measurement in fields["measurements"]:
            _drop_absent(measurement, "autotune_us", "graph_us")
        fields["envelope"] = self.envelope.fields() if self.envelope else None
        _drop_absent(fields, "checks", "conditions", "confirmed", "traits", "envelope", "run")
        fields["device"] = _identifying(fields["device"])
        return content_id(fields)

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def shipped(self) -> bool:
        """Whether it ships with the package, so that it was not made on this machine."""
        return self.run == SHIPPED


@dataclass(frozen=True)
class Merged:
    """A mark on an evaluation that was merged from another archive and has not been confirmed here."""

    evaluation_id: str
    op: str

    @property
    def id(self) -> str:
        return self.evaluation_id


@dataclass(frozen=True)
class Leg:
    """A period of a run. A run that was continued has several.

    If the run was killed, the end of its last leg is unknown.
    """

    run: str
    started: float
    ended: float = 0.0  # 0 until a second record gives the end

    @property
    def id(self) -> str:
        return content_id([self.run, self.started, self.ended])


def _identifying(device: dict[str, Any]) -> dict[str, Any]:
    later = ("l2_gb_s", "launch_us", "grid_barrier_us")
    return {name: value for name, value in device.items() if value or name not in later}


def _drop_absent(fields: dict[str, Any], *names: str) -> None:
    for name in names:
        if fields[name] in (None, (), ""):
            del fields[name]


def content_id(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]

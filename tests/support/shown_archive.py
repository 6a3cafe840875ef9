"""An archive with content for every page, whose texts try to inject HTML into the page."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from archive import library
from archive.kernel import Kernel, Proposal, parse
from archive.records import (
    Check,
    Conditions,
    Confirmed,
    DeviceInfo,
    Duel,
    Envelope,
    Evaluation,
    Leg,
    Measurement,
    Outcome,
    Profile,
    Resources,
    Sanitized,
    Traits,
)
from archive.runs import Budget, Cost, Question, Run
from archive.sqlite import SqliteStore, open_archive
from archive.store import Record

H200 = DeviceInfo(
    "cuda", "NVIDIA H200", "sm_90a", 132, 232_448, 60 << 20, "580.65", "2.11.0", 4270.0,
    (("bfloat16", 715.0), ("float16", 715.0), ("tf32", 364.0), ("float32", 50.0)), 5500.0, 1.9, 1.4,
)  # fmt: skip
A100 = DeviceInfo("cuda", "NVIDIA A100", "sm_80", 108, 166_912, copy_gb_s=1400.0, tflops=(("float32", 19.5),))
CPU = DeviceInfo("emulated", "Some CPU", "sm_90a", 4, 232_448)
SCRIPT = "<script>alert('note')</script><img src=x onerror=alert(1)>"
TERMINAL = "\x1b[31mred\x1b[0m \x1b]0;title\x07 and \u202eright to left"
HTML_PROMPT = '</pre></template><h1 id="injected">prompt</h1><iframe src=//example.com></iframe> {{ 7 * 7 }}'
WORKLOADS = {
    "softmax": ("rows=32768 cols=256 bfloat16", "rows=8192 cols=4096 bfloat16", "rows=8192 cols=4096 float32"),
    "gelu": ("n=67108864 bfloat16", "n=67108864 float32"),
}
SMALL = {"softmax": ("rows=64 cols=256 float32",), "gelu": ("n=4096 float32",)}
FLOOR_US, EAGER_US, COMPILE_US = 30.0, 110.0, 80.0
RUNS = {"softmax": ("4a7d1ed414474e40", "c3fcd3d76192e400"), "gelu": ("8277e0910d750195",)}
MODELS = ("gpt-5", "qwen3-coder")
START = 1_763_900_000.0  # a time in November 2025


def fill(path: Path, kernels: int = 24) -> SqliteStore:
    """Create the archive with this many kernels per run, and return it open for writing."""
    store = open_archive(path)
    for op, runs in RUNS.items():
        for number, run in enumerate(runs):
            store.append(*_run(op, run, number, kernels))
    return store


def champion(op: str = "softmax") -> Kernel:
    """Return the kernel that is the fastest of an op, confirmed, profiled, and proposed by a model."""
    return noted(library.shipped(op)[-1], f"one warp per row, 16-byte loads {SCRIPT}")


def broken(op: str = "softmax") -> Kernel:
    """Return a kernel that does not compile; terminal codes are in its log."""
    return noted(library.shipped(op)[0], "does not compile")


def noted(kernel: Kernel, note: str) -> Kernel:
    return kernel.with_plan(replace(kernel.plan, note=note))


def _run(op: str, run: str, number: int, kernels: int) -> Iterator[Record]:
    rng, now = random.Random(run), START + 100_000.0 * number
    yield Run(run, op, H200.key, MODELS[number], number, now, budget=Budget(evals=50, usd=2.0), words=(op,))
    yield Leg(run, now, now + 40.0 * kernels)
    made: list[Kernel] = []
    if number == 0:
        seed = library.shipped(op)[-1]
        made.append(seed)
        yield Proposal(op, "seed", "library", seed, run=run, created=now)
        yield from (passed(seed, device, 2.2, now + 1, run) for device in (H200, A100, CPU))
        yield from _noteworthy(op, run, seed, now + 2)
        made.append(champion(op))
    for index in range(kernels):
        now += 30.0
        if index % 8 == 7:
            yield Proposal(op, "draft", MODELS[number], None, run=run, reply=f"Sorry {index}", created=now,
                           failure="the reply contains no kernel", cost=Cost(3_000, 40, 3.0, usd=0.004))  # fmt: skip
            continue
        parent = rng.choice(made[-4:]) if made else None
        kernel = _varied(op, f"idea {index} of run {number}", rng)
        made.append(kernel)
        operator = rng.choice(("improve", "explore", "crossover")) if parent else "draft"
        others = [rng.choice(made[:-1]).id] if operator == "crossover" else []
        parents = tuple(dict.fromkeys([parent.id, *others])) if parent else ()
        cost = Cost(4_000 + 10 * index, 1_500, 11.0, usd=0.012)
        yield Proposal(op, operator, MODELS[number], kernel, parents, run, kernel.text, cost=cost, created=now,
                       question=_question(op))  # fmt: skip
        if index % 5 == 4:
            yield _failed(kernel, rng.choice((Outcome.WRONG, Outcome.TIMED_OUT)), now + 2, run)
        elif index != kernels - 1:  # the last one stays pending
            yield passed(kernel, H200, 2.2 / (1 + 0.02 * index) * rng.uniform(0.97, 1.3), now + 2, run)


def _varied(op: str, note: str, rng: random.Random) -> Kernel:
    base = rng.choice(library.shipped(op))
    text = noted(base, note).text
    return parse(f"{text}__device__ int extra_{rng.getrandbits(24):x}(int a) {{ return a + 1; }}\n")


def _noteworthy(op: str, run: str, seed: Kernel, now: float) -> Iterator[Record]:
    """Yield the champion with records of every kind, and the kernel that does not compile."""
    best, bad = champion(op), broken(op)
    reply = f"Here it is: {SCRIPT}\n```cuda\n{best.text}```\n"
    cost = Cost(5_120, 2_048, 21.0, 1_024, 900, 0.031)
    yield Proposal(op, "improve", MODELS[0], best, (seed.id,), run, reply, cost=cost, created=now,
                   question=_question(op))  # fmt: skip
    yield Proposal(op, "repair", MODELS[0], bad, (best.id,), run, bad.text, cost=cost, created=now + 1)
    yield confirmed(best, now + 3, run)
    yield passed(best, CPU, 1.0, now + 3, run)
    yield Evaluation(bad.id, op, H200, Outcome.COMPILE_ERROR, f"kernel.cu(3): error: {TERMINAL}", created=now + 4,
                     run=run)  # fmt: skip
    counters = (("gpu__time_duration.sum", 31_400.0), ("dram__bytes_read.sum", 67_108_864.0))
    yield Profile(best.id, op, H200.key, WORKLOADS[op][0], counters, now + 5)


def _question(op: str) -> Question:
    messages = (("system", "You write CUDA kernels."), ("user", f"Improve {op}. {HTML_PROMPT}"))
    return Question(MODELS[0], "https://api.example.com/v1", '{"temperature": 1}', messages)


def passed(kernel: Kernel, device: DeviceInfo, slowness: float, created: float, run: str = "") -> Evaluation:
    """Return an evaluation in which every workload takes `slowness` times the speed of light, or a little more."""
    workloads = WORKLOADS[kernel.op] if device.kind == "cuda" else SMALL[kernel.op]
    return Evaluation(
        kernel.id, kernel.op, device, Outcome.PASSED, "",
        tuple(_measurement(one, FLOOR_US * slowness * (1 + 0.1 * place)) for place, one in enumerate(workloads)),
        deterministic=True,
        resources=(Resources("softmax_rows", 40, 4_096, 0),),
        seed=7,
        seconds=1.5,
        created=created,
        checks=tuple(Check(one, drawn, "out", 1e-3, 1e-3, 0.25) for one in workloads for drawn in ("normal", "zeros")),
        conditions=Conditions(1980, 3201, 41, 512) if device.kind == "cuda" else None,
        traits=Traits(kernel.id[:8], 16, 16, 4_096, 40, 256, 1, tensor_cores=False, atomics=False, occupancy=0.5),
        envelope=Envelope((("rows", 32_768), ("cols", 4_096)), 1 << 26),
        run=run,
    )  # fmt: skip


def confirmed(kernel: Kernel, created: float, run: str) -> Evaluation:
    evaluation = passed(kernel, H200, 1.05, created, run)
    duels = tuple(
        Duel(m.workload, "compile", m.speedup, m.speedup * 0.98, m.speedup * 1.02, 0.01)
        for m in evaluation.measurements
    )
    clean = (Sanitized("memcheck", 0), Sanitized("racecheck", None, f"took too long {TERMINAL}"))
    return replace(evaluation, confirmed=Confirmed(("rows=7 cols=1023 float32",), duels, clean))


def _failed(kernel: Kernel, outcome: Outcome, created: float, run: str) -> Evaluation:
    log = f"at element 7: expected 1.0, got 2.0 {SCRIPT}"
    return Evaluation(kernel.id, kernel.op, H200, outcome, log, created=created, run=run, seconds=0.4)


def _measurement(workload: str, us: float) -> Measurement:
    return Measurement(workload, us, us * 0.99, us * 1.02, 100, EAGER_US, COMPILE_US, FLOOR_US, 85.0)

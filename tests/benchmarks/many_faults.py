"""Many faulting kernels in a row, on a GPU: `python3 tests/benchmarks/many_faults.py`.

It checks that each fault is contained and gets the right outcome, that the worker is replaced every time, and that no
GPU memory and no process is left over.
"""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from bad_kernels import twice_kernel  # noqa: E402

from archive.records import Outcome  # noqa: E402
from evolve import wiring  # noqa: E402
from evolve.engines.engine import Job  # noqa: E402

OP = str(ROOT / "tests" / "samples" / "twice.py")
FAULTS = {
    "illegal address": ("if (i < n) out[(1ll << 44) + i] = x_t(1.0f);", Outcome.CRASHED),
    "trap": ('if (i < n) asm volatile("trap;");', Outcome.CRASHED),
    "misaligned": ("if (i < n) *(volatile double*)((char*)out + 2) = 1.0;", Outcome.CRASHED),
    "hang": ("while (((volatile int*)out)[0] != 123456789) {}", Outcome.TIMED_OUT),
}
HANGS = 0.1  # share of kernels that hang; each of them runs until its deadline, which takes seconds


def main() -> int:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    hanging = round(HANGS * most)
    crashing = [name for name in FAULTS if name != "hang"]
    named = [crashing[number % len(crashing)] for number in range(most - hanging)] + ["hang"] * hanging
    jobs = [
        (Job(twice_kernel(FAULTS[name][0], f"{name} {number}"), OP), FAULTS[name][1])
        for number, name in enumerate(named)
    ]
    wanted = {job.kernel.id: outcome for job, outcome in jobs}
    jobs.sort(key=lambda pair: pair[0].kernel.id)  # a mixed order that is the same every time
    before = _gpu_megabytes()
    engine = wiring.engine("cuda")
    started, wrong, outcomes = time.monotonic(), [], Counter[str]()
    try:
        for evaluation in engine.evaluate(job for job, _ in jobs):
            outcomes[str(evaluation.outcome)] += 1
            if evaluation.outcome is not wanted[evaluation.kernel_id]:
                wrong.append(f"{evaluation.kernel_id}: {evaluation.outcome}: {evaluation.log[:200]}")
        took = time.monotonic() - started
        right = next(iter(engine.evaluate([Job(twice_kernel(note="honest, after all of them"), OP)])))
    finally:
        engine.close()
    time.sleep(2)  # the driver needs some time to clean up after a process
    left = _gpu_megabytes() - before
    print(f"{len(jobs)} faulting kernels in {took:.0f} s: {dict(outcomes)}, {len(wrong)} with a wrong outcome")
    print(f"an honest kernel afterwards: {right.outcome}; {left} MB more in use on the GPU; {_workers()} workers left")
    print(*wrong[:10], sep="\n")
    return 1 if wrong or left > 0 or _workers() or not right.passed else 0


def _gpu_megabytes() -> int:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def _workers() -> int:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return sum("evolve.engines.worker" in line or "evolve.engines.fork_server" in line for line in listed.splitlines())


if __name__ == "__main__":
    sys.exit(main())

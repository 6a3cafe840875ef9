"""Benchmark of timing: the spread of medians of the same kernels in fresh processes, on a GPU.

Arguments: names of ops.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from archive.library import shipped  # noqa: E402
from archive.records import Measurement  # noqa: E402
from evolve import wiring  # noqa: E402
from evolve.engines.engine import Job  # noqa: E402

OPS = ("softmax", "rms_norm", "gelu")
PROCESSES = 10


def main() -> None:
    kernels = [shipped(op)[0] for op in sys.argv[1:] or OPS]
    found: dict[tuple[str, str], list[Measurement]] = {}
    for _ in range(PROCESSES):
        engine = wiring.engine("cuda")
        try:
            for evaluation in engine.evaluate(Job(kernel, kernel.op) for kernel in kernels):
                for measurement in evaluation.measurements:
                    found.setdefault((evaluation.op, measurement.workload), []).append(measurement)
        finally:
            engine.close()
    for (op, workload), measurements in found.items():
        medians = sorted(m.median_us for m in measurements)
        spread = medians[-1] / medians[0] - 1
        widest = max((m.high_us - m.low_us) / m.median_us for m in measurements)
        print(f"{op:9} {workload:34} {len(medians):3} x {medians[0]:8.2f}-{medians[-1]:.2f} us: "
              f"{spread:6.2%} apart; the widest interval {widest:.2%}")  # fmt: skip


if __name__ == "__main__":
    main()

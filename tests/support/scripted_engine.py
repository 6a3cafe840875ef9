"""An engine without a device: what becomes of a kernel follows from the number in its note."""

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import bad_kernels
from records import CPU

from archive.kernel import Kernel
from archive.records import Confirmed, DeviceInfo, Evaluation, Measurement, Outcome
from evolve.engines.engine import Job

WORKLOADS = ("n=4096 float32", "n=4096 bfloat16")
EAGER_US, FLOOR_US = 100.0, 5.0


def numbered(number: int) -> Kernel:
    """One of as many as there are numbers; the code differs too, so that none is another's duplicate."""
    return bad_kernels.twice_kernel(
        f"if (i < n && i != -{number}) out[i] = x_t(2.0f * float(x[i]));", f"number {number}"
    )


def times_us(number: int) -> tuple[float, ...]:
    """Later kernels are faster, by and large; every seventh fails and has none."""
    if number % 7 == 3:
        return ()
    drawn = random.Random(number)
    return tuple(EAGER_US * drawn.uniform(0.5, 1.5) / (1 + 0.02 * number) for _ in WORKLOADS)


@dataclass
class NumberedEngine:
    """Evaluates in no time, always with the same verdict."""

    info: DeviceInfo = CPU
    unprofiled: str = "there is no profiler here"
    evaluated: list[str] = field(default_factory=list)

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            self.evaluated.append(job.kernel.id)
            times = times_us(int(job.kernel.plan.note.split()[1]))
            measured = tuple(
                Measurement(workload, us, us * 0.99, us * 1.01, 9, EAGER_US, floor_us=FLOOR_US)
                for workload, us in zip(WORKLOADS, times, strict=False)
            )
            yield Evaluation(
                job.kernel.id, job.kernel.op, self.info,
                Outcome.PASSED if times else Outcome.COMPILE_ERROR, "" if times else "error: expected a ;", measured,
                created=time.time(), confirmed=Confirmed((), ()) if times and job.confirm else None,
            )  # fmt: skip

    def profile(self, kernel: Kernel, op: str, workload: str) -> None:
        pass

    def close(self) -> None:
        pass

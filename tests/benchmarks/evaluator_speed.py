"""Benchmark of the evaluator: kernels judged per second, and where the time goes. Run this file with Python.

There are three kinds of softmax kernels: correct ones (checked and timed on three workloads), kernels that do not
compile, and kernels with wrong results. Each kind is timed separately, on one engine that is already warm.
"""

import argparse
import itertools
import sys
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from archive.binding import IllegalError, accepts, bind  # noqa: E402
from archive.kernel import Kernel, parse  # noqa: E402
from archive.library import shipped  # noqa: E402
from archive.records import DeviceInfo  # noqa: E402
from evolve import wiring  # noqa: E402
from evolve.devices import choose  # noqa: E402
from evolve.engines.engine import Engine, Job  # noqa: E402
from evolve.op_on_device import point  # noqa: E402
from reference_ops import catalog  # noqa: E402

OP = str(ROOT / "tests" / "samples" / "softmax_at_three.py")
OPERATION = catalog.load(OP)
H200 = DeviceInfo("cuda", "NVIDIA H200", "sm_90a", sms=132, shared_bytes=232448)


class Profile:
    """Seconds that workers spent in each phase; the engine calls `watch` when a phase begins."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: dict[str, tuple[str, float]] = {}

    def watch(self, kernel_id: str, phase: str) -> None:
        self.close(kernel_id)
        self._open[kernel_id] = (phase, time.monotonic())

    def close(self, kernel_id: str) -> None:
        if held := self._open.pop(kernel_id, None):
            self.seconds[held[0]] += time.monotonic() - held[1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="")
    options.add_argument("--gpus", default="", help="GPUs to use, such as `all`")
    options.add_argument("--kernels", type=int, default=100)
    requested = options.parse_args()
    profile = Profile()
    engine = wiring.engine(choose.device_kind(requested.device), profile.watch, requested.gpus)
    try:
        _warm(engine, len(choose.cards(choose.device_kind(requested.device), requested.gpus)))
        right = _settings(requested.kernels)
        _report("checked and timed on three workloads", engine, right, profile)
        _report("does not compile", engine, [_altered(k, "softmax", "not C++;") for k in right], profile)
        _report("wrong", engine, [_altered(k, "wrong", "") for k in right], profile)
    finally:
        engine.close()


def _warm(engine: Engine, cards: int) -> None:
    """Start the workers and time the baselines of each card, so that neither counts towards the kernels that follow."""
    for _ in engine.evaluate(Job(kernel, OP) for kernel in _settings(4 * cards)):
        pass


def _settings(most: int) -> list[Kernel]:
    """Return settings of the shipped kernels in turn, limited to settings that run all three workloads."""
    ours = [parse(kernel.text.replace('op = "softmax"', f'op = "{OPERATION.name}"')) for kernel in shipped("softmax")]
    of_each = [list(filter(_legal, _every_setting(kernel))) for kernel in ours]
    mixed = [kernel for group in itertools.zip_longest(*of_each) for kernel in group if kernel]
    return (mixed * (most // len(mixed) + 1))[:most]


def _every_setting(kernel: Kernel) -> list[Kernel]:
    names = [knob for knob, _ in kernel.plan.knobs]
    choices = itertools.product(*(values for _, values in kernel.plan.knobs))
    return [kernel.with_knobs(dict(zip(names, values, strict=True))) for values in choices]


def _legal(kernel: Kernel) -> bool:
    try:
        places = [point(OPERATION, workload, H200) for workload in OPERATION.gpu]
        return all(accepts(kernel, place) and bind(kernel, place) for place in places)
    except IllegalError:
        return False


def _altered(kernel: Kernel, note: str, code: str) -> Kernel:
    """Return the same kernel with a line that does not compile, or with a slightly wrong result."""
    text = f"{kernel.text}\n{code}\n" if code else kernel.text.replace("1.0f", "1.01f")
    return parse(text.replace(f'note = "{kernel.plan.note}"', f'note = "{note}"'))


def _report(title: str, engine: Engine, kernels: list[Kernel], profile: Profile) -> None:
    profile.seconds.clear()
    started = time.monotonic()
    outcomes: defaultdict[str, int] = defaultdict(int)
    everywhere, slowest = 0, 0.0
    for evaluation in engine.evaluate(Job(kernel, OP) for kernel in kernels):
        profile.close(evaluation.kernel_id)
        outcomes[str(evaluation.outcome)] += 1
        everywhere += len(evaluation.measurements) == len(OPERATION.gpu)
        slowest = max(slowest, evaluation.seconds)
    took = time.monotonic() - started
    print(f"{title}: {len(kernels) / took:.1f} a second in {took:.1f} s; slowest {slowest:.2f} s")
    print(f"    {dict(outcomes)}, {everywhere} of them timed on all {len(OPERATION.gpu)} workloads")
    for phase, seconds in sorted(profile.seconds.items(), key=lambda item: -item[1]):
        print(f"    {phase:10} {1000 * seconds / len(kernels):7.1f} ms a kernel")


if __name__ == "__main__":
    main()
